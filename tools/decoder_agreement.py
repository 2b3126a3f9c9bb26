"""Compares the importer's reading of a recorded group with another decoder's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from equipoise.events.tasks import TaskId
from equipoise.replay.importers.kafka_streams.offsets_records import GroupMetadata
from equipoise.replay.importers.kafka_streams.scan import group_records
from equipoise.replay.importers.kafka_streams.source import StreamsSource


class ReferenceSource(StreamsSource):
    """A recorded run, and beside it two other readings of it: ``history.jsonl`` has another
    decoder's generations, ``leader_view.jsonl`` the leader's own computations.
    """

    def history(self) -> Iterator[dict[str, Any]]:
        """Yields the other decoder's generations in file order; none without that file."""
        return self._references("history.jsonl")

    def leader_view(self) -> Iterator[dict[str, Any]]:
        """Yields the leader's computations in file order; none without that file."""
        return self._references("leader_view.jsonl")

    def _references(self, name: str) -> Iterator[dict[str, Any]]:
        if self.path(name) is not None:
            for _, line in self._lines(name):
                yield line


@attrs.frozen(kw_only=True)
class Agreement:
    """Generations compared field by field with ``history.jsonl``. `first_difference`: path of the
    first field that differs, None when all agree.
    """

    available: bool
    compared: int
    agreed: int
    missing_in_history: int
    missing_in_topic: int
    first_difference: str | None

    @property
    def complete(self) -> bool:
        """Returns whether every generation was compared and agrees."""
        return self.available and self.compared == self.agreed and not self.missing_in_history and not self.missing_in_topic


def readable(at_ms: int, offset: int, event: GroupMetadata) -> dict[str, Any]:
    """Returns a generation in the form of ``history.jsonl``: one JSON object, members by id."""
    read = _plain(event)
    del read["group"], read["deleted"]
    for member in read["members"]:
        member["process_id"] = member["subscription"].pop("process_id")
    read["members"].sort(key=lambda member: member["member_id"])
    return {"at_ms": at_ms, "offset": offset, **read}


def _plain(value: Any) -> Any:
    """A value of the decoder as JSON has it."""
    if isinstance(value, TaskId):
        return str(value)
    if attrs.has(type(value)):
        return {field.name: _plain(getattr(value, field.name)) for field in attrs.fields(type(value))}
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def first_difference(path: str, ours: Any, theirs: Any) -> str | None:
    """Returns the path of the first place where two JSON values differ, with both values; None when
    they are equal.
    """
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted({*ours, *theirs}):
            if key not in ours or key not in theirs:
                return f"{path}.{key}: only in {'history' if key in theirs else 'the topic'}"
            found = first_difference(f"{path}.{key}", ours[key], theirs[key])
            if found:
                return found
        return None
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return next((found for index, pair in pairs if (found := first_difference(f"{path}[{index}]", *pair))), None)
    return None if ours == theirs and type(ours) is type(theirs) else f"{path}: {ours!r:.60} in the topic, {theirs!r:.60} in history"


def compare_history(source: ReferenceSource, group: str) -> Agreement:
    """Compares every generation of the dump with the one of the same offset in ``history.jsonl``,
    in every field. Raises WireError when a record of the dump is damaged, InputError when a file is
    missing or malformed.
    """
    theirs = {line.get("offset"): line for line in source.history()}
    if not theirs:
        return Agreement(available=False, compared=0, agreed=0, missing_in_history=0, missing_in_topic=0, first_difference=None)
    compared = agreed = missing = 0
    first: str | None = None
    for raw, event in group_records(source, group):
        if isinstance(event, GroupMetadata) and not event.deleted:
            other = theirs.pop(raw.offset, None)
            if other is None:
                missing += 1
                continue
            if isinstance(other.get("members"), list):
                other["members"] = sorted(other["members"], key=lambda each: str(each.get("member_id")) if isinstance(each, dict) else "")
            found = first_difference(f"offset {raw.offset}", readable(raw.timestamp_ms, raw.offset, event), other)
            compared += 1
            agreed += found is None
            first = first or found
    return Agreement(
        available=True, compared=compared, agreed=agreed, missing_in_history=missing, missing_in_topic=len(theirs), first_difference=first
    )
