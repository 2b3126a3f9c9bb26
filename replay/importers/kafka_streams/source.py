"""The files of a recorded Kafka Streams group, read as streams.

A SOURCE folder holds these files, each plain or gzipped (``.gz``). Required:

- ``offsets_topic.jsonl``: raw records of `__consumer_offsets`: ``{partition, offset, timestamp
  (ms), key, value}``, key and value in base64.
- ``end_offsets.jsonl``: samples: ``{ms, end: {topic: [end offset of partition 0, 1, ..]}}``.

Optional:

- ``actions.jsonl``: operators' actions: ``{ms, action, instance?, ...}``. The topic does not hold
  them.
- ``settings.json``: settings that are not on the wire (see `ImportOptions`).
- ``unavailability.json``: measured unavailability per action, for comparison tables.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import attrs

from equipoise.events.errors import InputError
from equipoise.kafka.offsets_topic.record_keys import RawRecord

OFFSETS = "offsets_topic.jsonl"
END_OFFSETS = "end_offsets.jsonl"
ACTIONS = "actions.jsonl"
SETTINGS = "settings.json"
MEASURED = "unavailability.json"


SHIPPED = Path(__file__).parents[2] / "data"


def shipped_runs() -> dict[str, Path]:
    """Returns name -> SOURCE folder of the recorded runs shipped with equipoise (small form), in
    rising order of names.
    """
    return {folder.name: folder for folder in sorted(SHIPPED.iterdir()) if folder.is_dir()}


class EndOffsetSample(NamedTuple):
    """End offsets of all topics at one time: topic -> end offset of partition 0, 1, ..."""

    ms: int
    end: dict[str, list[int]]


@attrs.frozen(kw_only=True)
class Action:
    """An operator's action. `details`: the rest of its line."""

    at_ms: int
    action: str
    instance: str | None
    details: dict[str, Any]


@attrs.frozen(kw_only=True)
class MeasuredAction:
    """Measured unavailability from one action until the next (`end_ms`). Times in milliseconds;
    counts of tasks or rounds.
    """

    action: str
    start_ms: int
    end_ms: int
    cut_off: bool
    """The next action came while rebalances were pending: the counts are lower bounds."""
    totals: dict[str, int | float]
    """Name of a total -> its value, as in the file; see TOTALS."""
    unavailable_ms_per_task: dict[str, int]


TOTALS = (
    "unavailable_task_seconds",
    "unavailable_stateful_task_seconds",
    "unavailable_task_seconds_of_tasks_on_untouched_instances",
    "tasks_unavailable",
    "longest_silence_ms",
    "generations",
    "probing_rebalances",
    "active_moves",
    "stateful_active_moves",
    "net_active_moves",
    "stateful_moves_between_untouched_instances",
    "min_moves_for_balance",
    "min_stateful_moves_for_balance",
    "records_restored_before_running",
    "standby_copies_begun",
    "standby_copies_promoted",
    "standby_copies_dropped",
    "seconds_to_last_generation",
)
"""Totals of ``unavailability.json`` that comparison tables use."""


class StreamsSource:
    """One SOURCE folder. Files are opened when they are read; every reader starts at the file's
    beginning.

    Raises InputError when the folder or a required file is missing; the text names it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = str(folder)
        """Name of the source in error messages."""
        self.where_to_look = "in the dump; dump the partition of __consumer_offsets that holds it"
        """What to do when a group is not in it."""
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder}: is a file; give the folder that holds {OFFSETS}[.gz] and {END_OFFSETS}[.gz]")
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder; give the folder that holds {OFFSETS}[.gz] and {END_OFFSETS}[.gz]")
        for name in (OFFSETS, END_OFFSETS):
            if self.path(name) is None:
                raise InputError(f"{folder}: {name} (or {name}.gz) is missing, which a folder with a recorded run must have; name another folder")

    def path(self, name: str) -> Path | None:
        """Returns the file of that name, plain or gzipped, or None. The plain one wins."""
        for candidate in (self.folder / name, self.folder / f"{name}.gz"):
            if candidate.is_file():
                return candidate
        return None

    def files(self) -> dict[str, dict[str, str | int]]:
        """Returns name -> sha256 and size of every file that an import reads."""
        found: dict[str, dict[str, str | int]] = {}
        for name in (OFFSETS, END_OFFSETS, ACTIONS, SETTINGS, MEASURED):
            path = self.path(name)
            if path is not None:
                with path.open("rb") as stream:
                    found[path.name] = {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
        return found

    def digest(self) -> str:
        """Returns the sha256 of the records, from which the log's id is made."""
        path = self.path(OFFSETS)
        assert path is not None, "it is required"
        return str(self.files()[path.name]["sha256"])

    def records(self) -> Iterator[RawRecord]:
        """Yields the raw records in file order. Raises InputError for a malformed record or one out
        of order, with line and offset.
        """
        last: dict[int, int] = {}
        for where, line in self._lines(OFFSETS):
            partition, offset, timestamp_ms = (_whole(where, line, field) for field in ("partition", "offset", "timestamp"))
            if offset <= last.get(partition, -1):
                raise InputError(f"{where}: offset {offset} of partition {partition} comes after {last[partition]}; sort the dump and drop repeats")
            last[partition] = offset
            key, value = (_bytes(f"{where} (offset {offset})", line, field) for field in ("key", "value"))
            if key is None:
                raise InputError(f"{where} (offset {offset}): the record has no key; it is no record of __consumer_offsets")
            yield RawRecord(partition, offset, timestamp_ms, key, value)

    def end_offsets(self) -> Iterator[EndOffsetSample]:
        """Yields the samples in file order. Raises InputError for a malformed sample or one earlier
        than the one before.
        """
        last = -1
        for where, line in self._lines(END_OFFSETS):
            ms, end = _whole(where, line, "ms"), line.get("end")
            if ms < last:
                raise InputError(f"{where}: the sample of {ms} ms comes after one of {last} ms; sort the file by time")
            last = ms
            if not isinstance(end, dict) or not all(isinstance(offsets, list) and all(map(_is_count, offsets)) for offsets in end.values()):
                raise InputError(f"{where}: field 'end' must be {{topic: [end offset >= 0 per partition]}}")
            yield EndOffsetSample(ms, end)

    def actions(self) -> list[Action]:
        """Returns the operators' actions by time; empty without an actions file."""
        if self.path(ACTIONS) is None:
            return []
        found = []
        for where, line in self._lines(ACTIONS):
            details = dict(line)
            at_ms, action, instance = _whole(where, details, "ms"), details.pop("action", None), details.pop("instance", None)
            del details["ms"]
            if not isinstance(action, str) or not action or not (instance is None or isinstance(instance, str)):
                raise InputError(f"{where}: fields 'action' and 'instance' must be texts")
            found.append(Action(at_ms=at_ms, action=action, instance=instance, details=details))
        return sorted(found, key=lambda each: each.at_ms)

    def settings(self) -> dict[str, Any]:
        """Returns the settings that are not on the wire; empty without a settings file."""
        return self._document(SETTINGS)

    def measured(self) -> list[MeasuredAction]:
        """Returns the measured actions; empty without a measurements file."""
        document = self._document(MEASURED)
        entries = document.get("actions", [])
        try:
            return [
                MeasuredAction(
                    action=entry["action"],
                    start_ms=entry["start_ms"],
                    end_ms=entry["end_ms"],
                    cut_off=entry.get("cut_off", False) is True or _probing_at_end(entry),
                    totals={name: totals[name] for name in TOTALS if name in totals},
                    unavailable_ms_per_task=dict(entry["unavailable_ms_per_task"]),
                )
                for entry in entries
                for totals in [entry.get("totals", entry)]  # the small form has them together
            ]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            needed = "each of 'actions' needs action, start_ms, end_ms and unavailable_ms_per_task"
            raise InputError(f"{MEASURED}: {needed} ({error!r})") from None

    def _open(self, path: Path) -> IO[str]:
        return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")

    def _lines(self, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
        path = self.path(name)
        assert path is not None
        number = 0
        try:
            with self._open(path) as stream:
                for text in stream:
                    number += 1
                    if text.isspace():
                        continue
                    where = f"{path.name} line {number}"
                    line = json.loads(text)
                    if not isinstance(line, dict):
                        raise InputError(f"{where}: not a JSON object")
                    yield where, line
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(f"{path.name} line {number}: not JSON ({error}); dump the file again") from None
        except UnicodeDecodeError as error:
            raise InputError(f"{path.name} after line {number}: not UTF-8 ({error.reason}); dump the file again") from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{path.name} after line {number}: the gzip stream is damaged or cut off ({error}); copy the file again") from None

    def _document(self, name: str) -> dict[str, Any]:
        path = self.path(name)
        if path is None:
            return {}
        try:
            with self._open(path) as stream:
                document = json.load(stream)
        except (ValueError, RecursionError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{path.name}: not JSON ({error}); write the file again") from None
        if not isinstance(document, dict):
            raise InputError(f"{path.name}: not a JSON object")
        return document


class HeldSource(StreamsSource):
    """Records of a running group that were read from its broker so far
    (`equipoise.replay.importers.kafka_streams.broker_reading`), held in memory. It grows and can be
    imported again at any time.

    It has no operators' actions and no measurements.
    """

    def __init__(self, place: str, where_to_look: str = "is left there; correct --group (`equipoise cluster` lists the groups)") -> None:
        self.place, self.where_to_look = place, where_to_look
        self.held: list[RawRecord] = []
        self.samples: dict[int, dict[str, list[int]]] = {}
        """Time in ms -> topic -> end offset of partition 0, 1, ..."""

    def path(self, name: str) -> Path | None:
        return None

    def files(self) -> dict[str, dict[str, str | int]]:
        held_bytes = sum(len(record.key) + len(record.value or b"") for record in self.held)
        return {f"{self.place} __consumer_offsets": {"bytes": held_bytes, "sha256": self.digest()}}

    def digest(self) -> str:
        found = hashlib.sha256()
        for record in self.held:
            found.update(repr(record).encode())
        return found.hexdigest()

    def records(self) -> Iterator[RawRecord]:
        return iter(self.held)

    def end_offsets(self) -> Iterator[EndOffsetSample]:
        return (EndOffsetSample(ms, ends) for ms, ends in sorted(self.samples.items()))


def _probing_at_end(entry: dict[str, Any]) -> bool:
    """Returns whether the last rebalance of a measured window had scheduled another one, so that
    the window was cut off.
    """
    rounds = entry.get("rebalances") or []
    return bool(rounds) and any(0 < each < 2**62 for each in rounds[-1].get("next_rebalance_ms", ()))


def _is_count(value: Any) -> bool:
    return value.__class__ is int and 0 <= value < 2**63


def _whole(where: str, line: dict[str, Any], field: str) -> int:
    value = line.get(field)
    if not _is_count(value):
        raise InputError(f"{where}: field {field!r} is {value!r:.40}, not a whole number >= 0")
    assert isinstance(value, int)
    return value


def _bytes(where: str, line: dict[str, Any], field: str) -> bytes | None:
    value = line.get(field)
    if value is None:
        return None
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise InputError(f"{where}: field {field!r} is not base64; dump the record again") from None
