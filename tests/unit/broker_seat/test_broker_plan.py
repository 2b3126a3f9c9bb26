"""The plan as text, and the vectors that Java reads, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.lead.broker_seat.broker_plan import (
    MOST_CHARS,
    MOST_NAMED,
    BrokerPlan,
    Kind,
    PlanEntry,
    entries_of,
    in_order,
    made_for,
    newest,
    read_plan,
    write_plan,
)
from tests.live.broker_assignor import case_of, problems_of, random_groups
from tests.support.assignor_model import BrokerMember, BrokerTopic

VECTORS = Path(__file__).parents[2] / "data" / "broker_plans.jsonl"
HASH = "0123456789abcdef"
KINDS: tuple[Kind, ...] = ("move", "hold", "copy", "drop")


def _entry(kind: Kind, member: int, topic: int, first: int, more: int) -> PlanEntry:
    return PlanEntry(kind, 0 if kind == "hold" else member, topic, first, first + more)


@pytest.mark.parametrize("line", VECTORS.read_text(encoding="utf-8").splitlines(), ids=lambda line: json.loads(line)["note"])
def test_model_answers_every_vector(line: str) -> None:
    case: dict[str, Any] = json.loads(line)
    ids = [bytes.fromhex(each["id"]) for each in case["topics"]]
    topics = {
        topic: BrokerTopic(partitions=each["partitions"], racks={number: frozenset(racks) for number, racks in enumerate(each["racks"])})
        for topic, each in zip(ids, case["topics"], strict=True)
    }
    members = [
        BrokerMember(
            member_id=each["id"], rack=each["rack"], topics={ids[at] for at in each["topics"]}, held={ids[at]: set(of) for at, of in each["held"]}
        )
        for each in case["members"]
    ]
    assert case_of(members, topics)["answer"] == case["answer"]


def test_answers_of_the_model_are_valid() -> None:
    carried = 0
    for members, topics in random_groups(7, 500):
        case = case_of(members, topics)
        assert problems_of(members, topics, case["answer"]) == []
        carried += any(read_plan(each.rack) is not None for each in members)
    assert carried > 100


@given(
    st.builds(
        BrokerPlan,
        number=st.integers(0, 10**18 - 1),
        made_for=st.just(HASH),
        holds=st.booleans(),
        together=st.booleans(),
        entries=st.lists(
            st.builds(_entry, st.sampled_from(KINDS), st.integers(0, 999), st.integers(0, 99), st.integers(0, 999), st.integers(0, 9)),
            max_size=20,
        ).map(tuple),
    )
)
def test_plan_that_is_written_is_read(plan: BrokerPlan) -> None:
    assert read_plan(write_plan(plan)) == plan


def test_plan_that_is_too_long_is_cut_between_entries() -> None:
    plan = BrokerPlan(number=1, made_for=HASH, entries=tuple(PlanEntry("move", at % 100, 0, 2 * at, 2 * at) for at in range(10_000)))
    text = write_plan(plan)
    read = read_plan(text)
    assert read is not None
    assert MOST_CHARS - 30 < len(text) <= MOST_CHARS
    assert read.entries == plan.entries[: len(read.entries)]


def test_plan_names_at_most_so_many_partitions() -> None:
    entries = tuple(PlanEntry("move", 0, topic, 0, MOST_NAMED // 2) for topic in range(3))
    read = read_plan(write_plan(BrokerPlan(number=1, made_for=HASH, entries=entries)))
    assert read is not None
    assert read.entries == entries[:1]


def test_newest_plan_is_the_first_of_the_highest_number() -> None:
    texts = [f"equipoise/1;{number};{flags};{HASH}" for number, flags in ((2, "-"), (7, "h"), (7, "r"), (1, "-"))]
    found = newest(["rack-1", *texts, "equipoise/1;8;x;" + HASH])
    assert found == BrokerPlan(number=7, made_for=HASH, holds=True)
    assert newest(["rack-1"]) is None


def test_hash_tells_members_and_topics_apart() -> None:
    topic = bytes(16)
    known = [made_for(*each) for each in ((["ab"], [topic]), (["a", "b"], [topic]), (["ab"], []), (["ab"], [topic, topic]), (["a1:b"], [topic]))]
    assert len(set(known)) == len(known)


def test_members_are_in_the_order_of_java() -> None:
    assert in_order(["～", "\U0001f600", "a", "B"]) == ["B", "a", "\U0001f600", "～"]


def test_entries_are_the_fewest_ranges() -> None:
    assert [(each.first, each.last) for each in entries_of("move", 1, 2, [7, 1, 2, 3])] == [(1, 3), (7, 7)]
