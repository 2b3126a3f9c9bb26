"""The one comparison of a published decision with the recomputed one."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import attrs
import pytest

from equipoise.events.codec import checksum_of
from equipoise.events.decisions import BalanceEvaluated, Checkpointed
from equipoise.events.records import DecisionRecord
from equipoise.log import open_log
from equipoise.replay.group_view import show
from equipoise.statemachine.published import (
    OTHER_FORM,
    PLACE_FIELDS,
    Match,
    PublishedDecisions,
    PublishedProblem,
    UnreadIdentity,
    compare,
    identity_of,
)
from equipoise.statemachine.snapshots import FORM

LOGS = Path(__file__).parents[2] / "data" / "logs"
VERDICT = BalanceEvaluated(verdict="balanced", available_movements=0, planned_movements=0, imbalance_before=0, imbalance_after=0)
EVALUATED = DecisionRecord("log-1", "g", 7, 3, 0, 99, VERDICT)
HASHED = attrs.evolve(EVALUATED, decision=Checkpointed(state_sha256="a" * 64, seq=3, form=FORM))
HASHED_BEFORE = attrs.evolve(EVALUATED, decision=Checkpointed(state_sha256="b" * 64, seq=3, form=FORM - 1))
HASHED_ELSEWHERE = attrs.evolve(EVALUATED, decision=Checkpointed(state_sha256="b" * 64, seq=2, form=FORM - 1))


@pytest.mark.parametrize(
    ("published", "recomputed", "match"),
    [
        (EVALUATED, attrs.evolve(EVALUATED), Match.EQUAL),
        (checksum_of(EVALUATED), EVALUATED, Match.EQUAL),
        (attrs.evolve(EVALUATED, decision=attrs.evolve(VERDICT, imbalance_after=1)), EVALUATED, Match.DIFFERENT),
        (attrs.evolve(EVALUATED, fact_checksum=98), EVALUATED, Match.DIFFERENT),
        (checksum_of(HASHED), EVALUATED, Match.DIFFERENT),
        (HASHED_BEFORE, HASHED, Match.NOT_COMPARED),
        (HASHED_ELSEWHERE, HASHED, Match.DIFFERENT),
        (identity_of(HASHED_BEFORE), HASHED, Match.NOT_COMPARED),
        (OTHER_FORM, EVALUATED, Match.DIFFERENT),
        (UnreadIdentity("version 9 is not known", 17), EVALUATED, Match.UNREAD),
    ],
)
def test_compare_published_with_recomputed_returns_the_match(published: Hashable, recomputed: DecisionRecord, match: Match) -> None:
    assert compare(published, recomputed) is match


def test_published_decisions_count_what_they_compare_and_return_the_rest() -> None:
    decisions = [attrs.evolve(each, number=number) for number, each in enumerate((EVALUATED, HASHED, EVALUATED), 1)]
    published = PublishedDecisions()
    published.take(1, decisions[0])
    published.take(2, OTHER_FORM)
    assert published.last_waiting == 2
    assert published.missing(decisions) == decisions[2:]
    assert (published.confirmed, published.not_compared, published.last_waiting) == (1, 1, 0)


def test_published_decisions_with_a_gap_raise_published_gap() -> None:
    published = PublishedDecisions()
    published.take(8, checksum_of(EVALUATED))
    with pytest.raises(PublishedProblem) as caught:
        published.missing([EVALUATED])
    assert caught.value.code == "published_gap"


def test_show_of_a_log_with_hashes_of_another_form_finds_no_difference() -> None:
    with open_log(LOGS / "form_1.jsonl") as log:
        assert show(list(log.read())).first_divergence is None


@pytest.mark.parametrize("field", PLACE_FIELDS)
def test_record_of_another_place_is_different(field: str) -> None:
    other: dict[str, Any] = {"log_id": "log-2", "group": "h"}
    assert compare(attrs.evolve(EVALUATED, **{field: other.get(field, 77)}), EVALUATED) is Match.DIFFERENT


@pytest.mark.parametrize(
    ("published", "recomputed", "match"),
    [
        (attrs.evolve(HASHED, decision=Checkpointed(state_sha256="b" * 64, seq=3, form=FORM)), HASHED, Match.DIFFERENT),
        (HASHED_BEFORE, EVALUATED, Match.DIFFERENT),
        (EVALUATED, HASHED, Match.DIFFERENT),
        (identity_of(HASHED), HASHED, Match.EQUAL),
        (identity_of(EVALUATED), EVALUATED, Match.EQUAL),
    ],
)
def test_hash_of_the_same_form_must_be_equal(published: Hashable, recomputed: DecisionRecord, match: Match) -> None:
    assert compare(published, recomputed) is match


def test_identity_of_a_hash_in_another_form_is_not_its_checksum() -> None:
    assert [identity_of(each) for each in (HASHED_BEFORE, HASHED, EVALUATED)] == [OTHER_FORM, checksum_of(HASHED), checksum_of(EVALUATED)]


def test_published_numbers_only_rise() -> None:
    published = PublishedDecisions()
    assert (published.last_number, published.last_waiting) == (0, 0)
    for number in (4, 3):
        published.acknowledge(number)
        published.take(number, number)
    assert (published.last_number, published.last_waiting) == (4, 4)


@pytest.mark.parametrize("copies", [(1, 1), (OTHER_FORM, 1), (1, OTHER_FORM), (OTHER_FORM, OTHER_FORM, 1)])
def test_copies_of_a_decision_may_be_in_other_forms(copies: tuple[Hashable, ...]) -> None:
    published = PublishedDecisions()
    for copy in copies:
        published.take(7, copy)
    with pytest.raises(PublishedProblem, match="decision 7 is published twice, and the copies differ") as caught:
        published.take(7, 2)
    assert caught.value.code == "published_differs"


@pytest.mark.parametrize(
    ("published", "code", "problem"),
    [
        (5, "published_differs", "decision 7 is published and differs from the one computed"),
        (OTHER_FORM, "published_differs", "decision 7 is published and differs from the one computed"),
        (UnreadIdentity("version 9", 17), "event_unknown", "decision 7 is published and cannot be compared: version 9"),
    ],
)
def test_published_decision_that_is_not_the_computed_one_raises(published: Hashable, code: str, problem: str) -> None:
    decisions = PublishedDecisions()
    decisions.take(7, published)
    with pytest.raises(PublishedProblem) as caught:
        decisions.missing([EVALUATED])
    assert (caught.value.code, caught.value.problem, str(caught.value)) == (code, problem, problem)


def test_decisions_that_are_all_published_are_not_published_again() -> None:
    decisions = PublishedDecisions()
    decisions.take(7, checksum_of(EVALUATED))
    decisions.take(8, 1)
    assert decisions.missing([EVALUATED]) == []
    with pytest.raises(PublishedProblem, match="decision 7 is not published, and later ones are"):
        decisions.missing([EVALUATED])
