"""The one comparison of a published decision with the recomputed one."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path

import attrs
import pytest

from equipoise.events.codec import checksum_of
from equipoise.events.decisions import BalanceEvaluated, Checkpointed
from equipoise.events.log import open_log
from equipoise.events.records import DecisionRecord
from equipoise.replay.group_view import show
from equipoise.statemachine.published import OTHER_FORM, Match, PublishedDecisions, PublishedProblem, UnreadIdentity, compare, identity_of
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
