"""Packages that only some uses need, and the extra that brings each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

EXTRAS = {
    "numpy": "lead",
    "ortools": "lead",
    "rich": "lead",
    "aiohttp": "member",
    "aiokafka": "member",
    "cramjam": "member",
    "prometheus_client": "member",
    "rocksdict": "member",
    "faust": "kafka",
    "fastavro": "registry",
    "google": "registry",
    "jsonschema": "registry",
    "referencing": "registry",
    "obstore": "spark",
    "pandas": "spark",
    "pyarrow": "spark",
    "pyspark": "spark",
}
"""Package -> the smallest extra that has it."""


def missing_extra(error: BaseException) -> str | None:
    """Returns the extra whose package an import did not find; None: it is another error."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    return None if name is None else EXTRAS.get(name.partition(".")[0])


def needs(what: str, extra: str) -> str:
    """Returns the sentence that names the extra."""
    return f"{what} needs the extra: pip install 'equipoise[{extra}]'"


@contextlib.contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Within the block an import that misses an extra raises InputError, which names it."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = missing_extra(error)
        if extra is None:
            raise
        from equipoise.events.errors import InputError  # with the events, which a witness never loads

        raise InputError(needs(what, extra)) from None
