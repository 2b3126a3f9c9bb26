"""Serves the metrics of a command that follows something over HTTP, beside its own thread."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Self

from prometheus_client import CollectorRegistry

from equipoise.hosting.runtime import LoopThread
from equipoise.hosting.serving import MetricsServer


class MetricsExporter(MetricsServer):
    """Serves on every address of the machine while it is entered. `what`: the command. Raises
    InputError when it cannot listen on `port`.
    """

    def __init__(self, what: str, registry: CollectorRegistry, port: int) -> None:
        super().__init__(what, registry, "0.0.0.0", port)

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
