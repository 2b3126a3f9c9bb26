"""Processes end when their caller stops, wherever they are."""

from __future__ import annotations

import time
import weakref
from pathlib import Path

import pytest

from equipoise.replay.parallel import in_processes


class _Referred:
    pass


def _works_in_a_callback(marker: Path) -> str:
    """Answers at once without a marker; else is ended in a callback, and goes on after it."""
    if marker.name == "none":
        return "answered"

    def waits(_: weakref.ref[_Referred]) -> None:
        marker.touch()
        time.sleep(30)

    referred = _Referred()
    reference = weakref.ref(referred, waits)
    try:
        del referred
        time.sleep(30)
    finally:
        marker.with_suffix(".cleaned").touch()
    assert reference() is None
    return "never"


def test_a_process_in_a_callback_ends_with_its_caller(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    marker = tmp_path / "marker"
    results = in_processes(_works_in_a_callback, [Path("none"), marker], 2)
    assert next(results) == "answered"
    while not marker.exists():
        time.sleep(0.01)
    results.close()  # type: ignore[attr-defined]
    assert marker.with_suffix(".cleaned").exists(), "the process was killed before it could remove its files"
    assert capfd.readouterr().err == ""
