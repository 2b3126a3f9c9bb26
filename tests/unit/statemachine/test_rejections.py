"""The texts of rejections: what people read, and what of it depends on this installation."""

from __future__ import annotations

import attrs
import pytest

from equipoise.events.decisions import BalanceEvaluated, Decision, EventRejected
from equipoise.events.facts import Fact, GroupConfigured, ProbingTick
from equipoise.statemachine.rejections import ASSIGNOR_UNAVAILABLE, Rejected, refusal_text, refused_fact, rejection_text
from tests.groups import configured

CONFIG = configured()
NO_ASSIGNOR = attrs.evolve(CONFIG, assignor="high_availabilty")
NO_VERSION = attrs.evolve(CONFIG, behaviour_version=99)
NO_SOLVER = attrs.evolve(CONFIG, solver="ortools-1.0")
NO_OPTION = configured(options={"strict": "maybe"})
UNAVAILABLE = EventRejected(kind=2, code=ASSIGNOR_UNAVAILABLE)
KNOBS_REFUSED = EventRejected(kind=2, code="knobs_refused")
INSTALL = "the worker that leads the group has no such assignor, behaviour version or solver; install it on every worker first"
NAMED_BY_ASSIGN = "its assignor cannot take these settings; `equipoise configure` with the same ones names the one"
PINNED = f"its decisions are pinned to solver 'ortools-1.0', this build has {CONFIG.solver!r}; run the build that has that one"
OPTION = "config.options.strict: high_availability has no such option; it has max_standby_steps"


@pytest.mark.parametrize(
    ("rejected", "fact", "text"),
    [
        (EventRejected(kind=6, code="epoch_went_back", numbers=(3, 4)), None, "assignment_epoch 3 after 4"),
        (EventRejected(kind=6, code="epoch_went_back", numbers=(3, 4)), CONFIG, "assignment_epoch 3 after 4"),
        (EventRejected(kind=6, code="of_a_newer_build", numbers=(3, 4)), None, "of_a_newer_build (3, 4)"),
        (UNAVAILABLE, None, INSTALL),
        (UNAVAILABLE, CONFIG, INSTALL),
        (UNAVAILABLE, NO_SOLVER, PINNED),
        (KNOBS_REFUSED, None, NAMED_BY_ASSIGN),
        (KNOBS_REFUSED, ProbingTick(), NAMED_BY_ASSIGN),
        (KNOBS_REFUSED, CONFIG, NAMED_BY_ASSIGN),
        (KNOBS_REFUSED, NO_OPTION, OPTION),
        (KNOBS_REFUSED, NO_ASSIGNOR, NAMED_BY_ASSIGN),
    ],
)
def test_rejection_text_names_the_reason_as_far_as_it_is_known(rejected: EventRejected, fact: Fact | None, text: str) -> None:
    assert rejection_text(rejected, fact) == text


@pytest.mark.parametrize(
    ("config", "begins"),
    [
        (NO_ASSIGNOR, f"assignor: 'high_availabilty' version {CONFIG.behaviour_version} is not installed; here are "),
        (NO_VERSION, "assignor: 'high_availability' version 99 is not installed; here are high_availability version 1"),
    ],
)
def test_text_of_an_unavailable_assignor_names_those_that_are_installed(config: GroupConfigured, begins: str) -> None:
    for text in (rejection_text(UNAVAILABLE, config), refusal_text(config)):
        assert text.startswith(begins)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (NO_SOLVER, PINNED),
        (NO_OPTION, OPTION),
        (attrs.evolve(NO_OPTION, solver="ortools-1.0"), PINNED),
        (CONFIG, f"assignor 'high_availability' version {CONFIG.behaviour_version}, solver {CONFIG.solver!r}: {INSTALL}"),
    ],
)
def test_refusal_text_names_what_is_lacking_then_what_is_refused_then_what_is_asked_for(config: GroupConfigured, text: str) -> None:
    assert refusal_text(config) == text


@pytest.mark.parametrize(
    ("decision", "offset"),
    [
        (UNAVAILABLE, 7),
        (KNOBS_REFUSED, None),
        (BalanceEvaluated(verdict="balanced", available_movements=0, planned_movements=0, imbalance_before=0, imbalance_after=0), None),
    ],
)
def test_refused_fact_is_a_configuration_that_the_build_lacks(decision: Decision, offset: int | None) -> None:
    assert refused_fact(decision, 7) == offset


def test_rejected_carries_its_code_and_numbers() -> None:
    rejected = Rejected("epoch_went_back", 3, 4)
    assert (rejected.code, rejected.numbers, str(rejected)) == ("epoch_went_back", (3, 4), "epoch_went_back")
