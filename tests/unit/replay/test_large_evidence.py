"""Files that are small when packed and huge when unpacked are read with bounded memory."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from equipoise.replay.importers.evidence import files as evidence_files
from equipoise.replay.importers.evidence.files import Evidence, read_evidence
from equipoise.replay.importers.evidence.lines import CHUNK_BYTES

UNPACKED_BYTES = 96 << 20
MOST_PEAK_BYTES = 80 << 20
"""A JSON document is read up to 32 MiB, in pieces and then as one."""
FORMS = {
    "lines": b"2026-03-01 10:00:00,000 INFO nothing of interest (kafka)\n",
    "one line": b"\0",
    "UTF-16": "2026-03-01 10:00:00,000 INFO nothing of interest\n".encode("utf-16-le"),
    "one line of a table": b" CURRENT-OFFSET 7",
    "JSON document": b"{},",
}
BEGINNINGS = {"UTF-16": b"\xff\xfe", "JSON document": b"["}


def packed(tmp_path: Path, form: str) -> Path:
    path = tmp_path / "server.log.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(BEGINNINGS.get(form, b""))
        piece = FORMS[form] * ((1 << 20) // len(FORMS[form]))
        for _ in range(UNPACKED_BYTES // len(piece)):
            file.write(piece)
    return path


def peak_bytes(path: Path) -> tuple[int, Evidence]:
    tracemalloc.start()
    try:
        found = read_evidence([str(path)])
        return tracemalloc.get_traced_memory()[1], found
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("form", FORMS)
def test_read_evidence_of_a_huge_file_takes_bounded_memory(tmp_path: Path, form: str) -> None:
    path = packed(tmp_path, form)
    assert path.stat().st_size < 2 << 20
    peak, found = peak_bytes(path)
    assert peak < MOST_PEAK_BYTES
    assert found.groups == {}


def test_read_evidence_says_that_a_json_document_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_files, "DOCUMENT_BYTES", 1 << 20)
    path = tmp_path / "export.json"
    path.write_text(json.dumps([{"message": "x" * 100}] * 20_000))
    assert "more than 1 MiB" in read_evidence([str(path)]).files[0].problem


def test_read_evidence_in_utf_16_says_the_same_wherever_its_pieces_end(tmp_path: Path) -> None:
    line = (
        "[2026-03-01 10:00:00,000] INFO [GroupCoordinator 1]: Stabilized group ordérs😀 generation {} (__consumer_offsets-7) with 2 members"
        " (kafka.coordinator.group.GroupCoordinator)\n"
    )
    text = "".join(line.format(number) for number in range(20_000))
    assert len(text) * 2 > CHUNK_BYTES
    names = {}
    for encoding in ("utf-8", "utf-16", "utf-16-be"):
        path = tmp_path / f"{encoding}.log"
        path.write_bytes((b"\xfe\xff" if encoding == "utf-16-be" else b"") + text.encode(encoding))
        found = read_evidence([str(path)])
        names[encoding] = (found.files[0].lines, found.files[0].understood)
    assert names["utf-8"] == names["utf-16"] == names["utf-16-be"]
    assert names["utf-8"][1] == 20_000
