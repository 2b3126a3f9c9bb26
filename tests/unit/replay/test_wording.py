"""Wording: every reason is a clause with its numbers, in the singular and the plural; what is
unknown says so.
"""

from __future__ import annotations

import re

import pytest

from equipoise.assignors import REASONS
from equipoise.replay import wording
from equipoise.replay.wording import MACHINE_REASONS, counted, reason_text
from equipoise.statemachine import context

CODES = sorted({*REASONS, *MACHINE_REASONS})


@pytest.mark.parametrize("code", CODES)
def test_a_reason_is_a_clause_whatever_is_known(code: str) -> None:
    for records in (None, 0, 1, 2, 20_001):
        for source in (None, "m1"):
            text = reason_text(code, source=source, destination="m2", lag_records=records)
            assert "{" not in text
            assert not text.endswith(".")
            assert "None" not in text
            assert not re.search(r"\b1 records\b|\b(?:0|2|20,001) record\b", text)


def test_reasons_that_rest_on_a_lag_say_it() -> None:
    telling = [code for code in CODES if "1 record" in reason_text(code, destination="m2", lag_records=1)]
    assert telling == ["next_probing", "ready", "ready_in_time", "stand_in", "unowned_cold", "warming"]
    assert reason_text("warming", destination="m2", lag_records=20_001) == "m2 restores 20,001 records"
    assert reason_text("ready", destination="m2") == "m2 is caught up (an unknown number of records behind)"


def test_a_code_of_an_assignor_we_do_not_know_stands_as_it_is() -> None:
    assert reason_text("their {own}") == "their {own}"


def test_reason_code_has_one_text() -> None:
    assert not REASONS.keys() & MACHINE_REASONS.keys()


def test_counts() -> None:
    assert [counted(number, "task") for number in (0, 1, 1_204)] == ["0 tasks", "1 task", "1,204 tasks"]
    assert counted(2, "stretch", "stretches") == "2 stretches"


def test_every_cause_of_a_round_has_its_words() -> None:
    assert set(context.CAUSES) <= set(wording.CAUSES)
