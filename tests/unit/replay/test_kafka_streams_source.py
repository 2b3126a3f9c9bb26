"""SOURCE folders: errors name the file, the line and the fix for what is missing, damaged or out of
order.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.events.errors import InputError
from equipoise.replay.importers.kafka_streams import StreamsSource, shipped_runs

SHIPPED = Path(__file__).parents[3] / "replay" / "data"
RECORD = {"partition": 0, "offset": 5, "timestamp": 1_000, "key": "AAIAA2FwcA==", "value": None}
SAMPLE = {"ms": 1_000, "end": {"t": [1, 2]}}


def lines(*documents: object) -> str:
    return "".join(json.dumps(each) + "\n" for each in documents)


def source(folder: Path, records: str = lines(RECORD), samples: str = lines(SAMPLE), **others: str) -> StreamsSource:
    (folder / "offsets_topic.jsonl").write_text(records)
    (folder / "end_offsets.jsonl").write_text(samples)
    for name, content in others.items():
        (folder / name.replace("__", ".")).write_text(content)
    return StreamsSource(folder)


def test_missing_folder_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: no such folder; give the folder that holds offsets_topic\.jsonl"):
        StreamsSource(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"offsets_topic\.jsonl \(or offsets_topic\.jsonl\.gz\) is missing"):
        StreamsSource(tmp_path)
    (tmp_path / "offsets_topic.jsonl.gz").write_bytes(b"")
    with pytest.raises(InputError, match=r"end_offsets\.jsonl \(or end_offsets\.jsonl\.gz\) is missing"):
        StreamsSource(tmp_path)


def test_plain_and_gzipped_files_read_the_same(tmp_path: Path) -> None:
    shipped = StreamsSource(SHIPPED / "rolling")
    (tmp_path / "offsets_topic.jsonl").write_bytes(gzip.decompress((SHIPPED / "rolling" / "offsets_topic.jsonl.gz").read_bytes()))
    (tmp_path / "end_offsets.jsonl").write_bytes(gzip.decompress((SHIPPED / "rolling" / "end_offsets.jsonl.gz").read_bytes()))
    plain = StreamsSource(tmp_path)
    assert list(plain.records()) == list(shipped.records())
    assert list(plain.end_offsets()) == list(shipped.end_offsets())
    assert (plain.actions(), plain.measured(), plain.settings()) == ([], [], {})
    assert len(shipped.actions()) == 33
    assert [each.action for each in shipped.measured()][-1] == "B5_scale_in_leave_group"
    assert [each.cut_off for each in shipped.measured()] == [False, False, True, True, False]


BAD_RECORDS: dict[str, tuple[str, str]] = {
    "no json": ("{", r"offsets_topic\.jsonl line 1: not JSON"),
    "no object": ("[1]\n", r"offsets_topic\.jsonl line 1: not a JSON object"),
    "deep": ("[" * 100_000, r"offsets_topic\.jsonl line 1: not JSON"),
    "offset missing": (lines(RECORD, {**RECORD, "offset": None}), r"line 2: field 'offset' is None, not a whole number >= 0"),
    "timestamp a text": (lines({**RECORD, "timestamp": "now"}), r"line 1: field 'timestamp' is 'now'"),
    "offset not a count": (lines({**RECORD, "offset": True}), r"line 1: field 'offset' is True"),
    "twice": (lines(RECORD, RECORD), r"line 2: offset 5 of partition 0 comes after 5; sort the dump and drop repeats"),
    "no base64": (lines({**RECORD, "value": "???"}), r"line 1 \(offset 5\): field 'value' is not base64"),
    "value a number": (lines({**RECORD, "value": 5}), r"line 1 \(offset 5\): field 'value' is not base64"),
    "no key": (lines({**RECORD, "key": None}), r"line 1 \(offset 5\): the record has no key"),
}


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_bad_records_are_named(name: str, tmp_path: Path) -> None:
    content, problem = BAD_RECORDS[name]
    with pytest.raises(InputError, match=problem):
        list(source(tmp_path, records=content).records())


BAD_SAMPLES = {
    "back in time": (lines(SAMPLE, {"ms": 999, "end": {}}), r"line 2: the sample of 999 ms comes after one of 1000 ms"),
    "no ends": (lines({"ms": 1}), r"line 1: field 'end' must be"),
    "negative": (lines({"ms": 1, "end": {"t": [-1]}}), r"line 1: field 'end' must be"),
}


@pytest.mark.parametrize("name", BAD_SAMPLES)
def test_bad_samples_are_named(name: str, tmp_path: Path) -> None:
    content, problem = BAD_SAMPLES[name]
    with pytest.raises(InputError, match=problem):
        list(source(tmp_path, samples=content).end_offsets())


BAD_OTHERS: dict[str, tuple[dict[str, str], Callable[[StreamsSource], object], str]] = {
    "action without name": ({"actions__jsonl": lines({"ms": 1})}, StreamsSource.actions, r"line 1: fields 'action' and 'instance' must be texts"),
    "settings no object": ({"settings__json": "[]"}, StreamsSource.settings, r"settings\.json: not a JSON object"),
    "measured no json": ({"unavailability__json": "{"}, StreamsSource.measured, r"unavailability\.json: not JSON"),
    "measured without times": ({"unavailability__json": '{"actions": [{"action": "A1"}]}'}, StreamsSource.measured, "each of 'actions' needs"),
}


@pytest.mark.parametrize("name", BAD_OTHERS)
def test_bad_optional_files_are_named(name: str, tmp_path: Path) -> None:
    files, read, problem = BAD_OTHERS[name]
    found = source(tmp_path, **files)
    with pytest.raises(InputError, match=problem):
        read(found)


def test_source_cut_gzip_error_has_line(tmp_path: Path) -> None:
    whole = (SHIPPED / "rolling" / "offsets_topic.jsonl.gz").read_bytes()
    source(tmp_path)
    (tmp_path / "offsets_topic.jsonl").unlink()
    for cut in (whole[: len(whole) // 2], whole[:100] + b"\xff" * 50 + whole[150:], b"no gzip"):
        (tmp_path / "offsets_topic.jsonl.gz").write_bytes(cut)
        with pytest.raises(InputError, match=r"offsets_topic\.jsonl\.gz after line \d+: the gzip stream is damaged or cut off"):
            list(StreamsSource(tmp_path).records())


def test_shipped_runs_exist_and_are_small() -> None:
    runs = shipped_runs()
    assert list(runs) == ["rolling", "scale-out"]
    assert sum(path.stat().st_size for folder in runs.values() for path in folder.iterdir()) < 300_000
