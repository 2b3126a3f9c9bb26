"""Serves the metrics of `equipoise spark stream` over HTTP, beside the thread of Spark's driver."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Self

from prometheus_client import CollectorRegistry

from equipoise.hosting.runtime import LoopThread
from equipoise.hosting.serving import MetricsServer


class StreamExporter(MetricsServer):
    """Serves on every address of the machine while it is entered. Raises InputError when it cannot
    listen on `port`.
    """

    def __init__(self, registry: CollectorRegistry, port: int) -> None:
        super().__init__("equipoise spark stream", registry, "0.0.0.0", port)

    def __enter__(self) -> Self:
        self._thread = LoopThread("equipoise-metrics")
        try:
            self._run(self.start())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self.stop())
        self._end()

    def _run(self, what: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._thread.loop).result()

    def _end(self) -> None:
        asyncio.run(self._thread.stop())
