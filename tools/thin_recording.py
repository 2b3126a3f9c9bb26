"""``python -m tools.thin_recording DIR OUT``: writes the small form of a recorded run, which gives
the same facts when imported.

It keeps every group-metadata record; of the commits, each partition's last one before and first one
after every generation (from which ends and restores are inferred); of the end-offset samples, those
that become facts and the two around each generation; actions and settings; of the measurements, the
totals and the milliseconds for each task. Equal inputs give equal files.
"""

from __future__ import annotations

import base64
import gzip
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from equipoise.events.errors import EquipoiseError
from equipoise.kafka.offsets_topic.record_keys import RawRecord
from equipoise.replay.importers.kafka_streams.import_options import options_of
from equipoise.replay.importers.kafka_streams.manifest import measured_json
from equipoise.replay.importers.kafka_streams.offsets_records import GroupMetadata, OffsetCommit
from equipoise.replay.importers.kafka_streams.scan import group_records
from equipoise.replay.importers.kafka_streams.source import ACTIONS, END_OFFSETS, MEASURED, OFFSETS, SETTINGS, EndOffsetSample, StreamsSource


def thin(source: StreamsSource, out: Path, settings: dict[str, Any]) -> None:
    """Writes the small form of `source` to `out`, with `settings` in its settings.json. Raises
    InputError when a file of `source` is malformed.
    """
    out.mkdir(parents=True, exist_ok=True)
    records = _kept_records(source)
    _write_lines(out / f"{OFFSETS}.gz", (_record(each) for each in records))
    generations = [raw.timestamp_ms for raw, event in group_records(source, None) if isinstance(event, GroupMetadata)]
    every_ms = options_of(source, settings).end_offsets_every_ms
    _write_lines(out / f"{END_OFFSETS}.gz", ({"ms": each.ms, "end": each.end} for each in _kept_samples(source, generations, every_ms)))
    _write_json(out / SETTINGS, {**source.settings(), **settings})
    actions = source.path(ACTIONS)
    if actions is not None:
        (out / ACTIONS).write_bytes(actions.read_bytes())
    measured = source.measured()
    if measured:
        _write_json(out / MEASURED, {"actions": [measured_json(each, with_tasks=True) for each in measured]})


def _kept_records(source: StreamsSource) -> list[RawRecord]:
    kept: dict[tuple[int, int], RawRecord] = {}
    last: dict[tuple[str, str, int], RawRecord] = {}
    fresh: set[tuple[str, str, int]] = set()
    begun = False
    for raw, event in group_records(source, None):
        if isinstance(event, GroupMetadata):
            for each in (*last.values(), raw):
                kept[each.partition, each.offset] = each
            fresh, begun = set(), True
        elif isinstance(event, OffsetCommit):
            key = (event.group, event.topic, event.partition)
            last[key] = raw
            if begun and key not in fresh:
                fresh.add(key)
                kept[raw.partition, raw.offset] = raw
    return [kept[key] for key in sorted(kept)]


def _kept_samples(source: StreamsSource, generations: list[int], every_ms: int) -> list[EndOffsetSample]:
    samples = list(source.end_offsets())
    kept: dict[int, EndOffsetSample] = {}
    slot = -1
    for index, sample in enumerate(samples):
        if sample.ms // every_ms != slot:
            slot = sample.ms // every_ms
            kept[index] = sample
    for at_ms in generations:
        after = next((index for index, sample in enumerate(samples) if sample.ms > at_ms), len(samples))
        for index in (after - 1, after):
            if 0 <= index < len(samples):
                kept[index] = samples[index]
    return [kept[index] for index in sorted(kept)]


def _record(raw: RawRecord) -> dict[str, Any]:
    key = base64.b64encode(raw.key).decode()
    value = None if raw.value is None else base64.b64encode(raw.value).decode()
    return {"partition": raw.partition, "offset": raw.offset, "timestamp": raw.timestamp_ms, "key": key, "value": value}


def _write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Takes ``DIR OUT [setting=value ...]``. Returns 0: written; 2: bad input."""
    if len(arguments) < 2:
        print("usage: python -m tools.thin_recording DIR OUT [setting=value ...]", file=sys.stderr)
        return 2
    try:
        settings = {name: int(value) for name, _, value in (each.partition("=") for each in arguments[2:])}
        thin(StreamsSource(Path(arguments[0])), Path(arguments[1]), settings)
    except ValueError as error:
        print(f"settings must be name=number: {error}", file=sys.stderr)
        return 2
    except EquipoiseError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
