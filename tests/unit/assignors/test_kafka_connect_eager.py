"""Connect's first protocol: all stop, and all is dealt in turn. And the mode in which one member
makes all of them so.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from equipoise.assignors import MemberSpec, Memory, Plan, registry
from equipoise.assignors.common.validation import plan_faults
from equipoise.assignors.kafka_connect.assignor import deal
from equipoise.events.errors import FieldError
from equipoise.events.tasks import TaskId
from tests.unit.assignors.build import ids, member, problem, tasks, text

EAGER: dict[str, Any] = {"connectors": 0, "connect_protocol": "eager"}


def asked(*members: MemberSpec, memory: Memory | None = None, options: dict[str, Any] = EAGER, version: int = 2) -> Plan:
    question = attrs.evolve(problem(tasks(stateless="0_0 0_1 1_0 1_1 1_2"), *members, options=options), memory=memory or {})
    assignor = registry.load("kafka_connect", version)
    answer = assignor.assign(question)
    assert plan_faults(question, answer, assignor.guarantees) == []
    return answer


def test_connectors_are_dealt_in_turn_and_then_tasks() -> None:
    every = (*ids("1_0 1_1 1_2"), *ids("0_0 0_1 0_2"))
    assert {str(task): name for task, name in deal(every, ["w2", "w1"], 0).items()} == {
        "0_0": "w1",
        "0_1": "w2",
        "0_2": "w1",
        "1_0": "w2",
        "1_1": "w1",
        "1_2": "w2",
    }
    assert [str(task) for task in deal(every, ["w1"], 1)] == ["1_0", "1_1", "1_2", "0_0", "0_1", "0_2"]
    assert deal([TaskId(0, 0)], [], None) == {}


def test_eager_rounds_stop_deal_and_stay() -> None:
    first = asked(member("w1"))
    assert text(first.members["w1"].active) == "0_0 0_1 1_0 1_1 1_2"
    stay = asked(member("w1", "0_0 0_1 1_0 1_1 1_2"), memory=first.memory)
    assert (stay.members["w1"].revoke, stay.reasons, stay.memory) == ((), {}, first.memory)

    joined = asked(member("w1", "0_0 0_1 1_0 1_1 1_2"), member("w2"), memory=first.memory)
    assert text(joined.members["w1"].revoke) == "0_0 0_1 1_0 1_1 1_2"
    assert joined.members["w1"].active == joined.members["w2"].active == ()
    assert {reason.code for reason in joined.reasons.values()} == {"all_stop"}

    waiting = asked(member("w1", "1_2"), member("w2"), memory=joined.memory)
    assert text(waiting.members["w1"].revoke) == "1_2"
    assert waiting.members["w2"].active == (), "no worker gets anything while another still runs"

    dealt = asked(member("w1"), member("w2"), memory=waiting.memory)
    assert (text(dealt.members["w1"].active), text(dealt.members["w2"].active)) == ("0_0 1_0 1_2", "0_1 1_1")


def test_member_back_with_nothing_stops_all() -> None:
    first = asked(member("w1"), member("w2"))
    again = asked(member("w1", "0_0 1_0 1_2"), member("w2"), memory=first.memory)
    assert text(again.members["w1"].revoke) == "0_0 1_0 1_2"


def test_compatible_is_eager_with_one_such() -> None:
    only = attrs.evolve(member("w2"), eager=True)
    alone = asked(member("w1"), options={"connectors": 0})
    mixed = asked(member("w1", "0_0 0_1 1_0 1_1 1_2"), only, memory=alone.memory, options={"connectors": 0})
    assert len(mixed.members["w1"].revoke) == 5
    newer = asked(member("w1", "0_0 0_1 1_0 1_1 1_2"), member("w2"), memory=alone.memory, options={"connectors": 0})
    assert len(newer.members["w1"].revoke) == 2
    former = asked(member("w1", "0_0 0_1 1_0 1_1 1_2"), only, memory=alone.memory, options={"connectors": 0}, version=1)
    assert former.members == newer.members


def test_protocol_unknown_error() -> None:
    with pytest.raises(FieldError, match="'sometimes' is not one of compatible, eager"):
        asked(member("w1"), options={"connect_protocol": "sometimes"})
    with pytest.raises(FieldError, match="no such option"):
        asked(member("w1"), version=1)
