"""Reads assignments and exceptions in lines of clients."""

from __future__ import annotations

import re

from equipoise.replay.importers.evidence.patterns import partitions

WHERE = re.compile(r"\btopic=([\w.-]+), partition=([0-9]+), offset=([0-9]+)")
_MOST_EXCEPTION = 120


def exception_of(text: str) -> str:
    """An exception without its package."""
    found = re.match(r"(?:[a-z][\w$]*\.)*([A-Z][\w$]*(?:Exception|Error)\b.*)", text.strip())
    return "" if found is None else found[1][:_MOST_EXCEPTION].rstrip(" .:")


def read_dealt(text: str) -> dict[str, tuple[str, ...]]:
    """Member id -> its partitions, as a leader that is a Java consumer writes them."""
    return {name: partitions(work) for name, work in re.findall(r"([^\s{},=]+)=Assignment\(partitions=\[([^\]]*)\]", text)}


def connect_work(text: str) -> tuple[str, ...]:
    """Connectors and tasks of a worker of Kafka Connect."""
    found: list[str] = []
    for name in ("connectorIds", "taskIds"):
        match = re.search(rf"\b{name}=\[([^\]]*)\]", text)
        found += [each.strip() for each in match[1].split(",") if each.strip()] if match is not None else []
    return tuple(found)


def delay_of(text: str) -> int:
    match = re.search(r"\bdelay=([0-9]+)", text)
    return int(match[1]) if match is not None and len(match[1]) < 12 else 0
