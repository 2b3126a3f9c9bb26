"""Standbys by racks and tags: KIP-925's two strategies, KIP-708's tags, and what happens to copies
that are in the wrong place.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import pytest

from equipoise.assignors import AssignmentProblem, MemberSpec, Plan
from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.assignors.common.shares import Share
from equipoise.assignors.common.standby_goal import standby_goal
from equipoise.assignors.common.standby_search import Wish
from equipoise.events.tasks import LagSentinel, TaskId, parse_task
from tests.unit.assignors.build import member, problem, tasks, text
from tests.unit.assignors.test_racks import aware, plan, reading

ZONES_AND_CLUSTERS = {
    f"c{3 * cluster + zone + 1}": {"zone": f"z{zone + 1}", "cluster": f"k{cluster + 1}"} for cluster in range(3) for zone in range(3)
}
"""c1..c3 are cluster k1, zones z1..z3; c4..c6 cluster k2; c7..c9 cluster k3."""


def standbys(answer: Plan) -> dict[str, str]:
    return {name: text(part.standby) for name, part in answer.members.items()}


def holders(answer: Plan, task: str) -> list[str]:
    return [name for name, part in answer.members.items() if parse_task(task) in part.standby]


Tags = Mapping[str, Mapping[str, str]]


def preset(actives: Mapping[str, str], tags: Tags, *, num_standbys: int, capacity: int = 1, **settings: Any) -> dict[str, list[str]]:
    """Task -> who gets its standbys, the first one first, beside actives that are where the case
    has them. Judged: no member has two copies.
    """
    question = problem(
        tasks(" ".join(actives.values())),
        *(attrs.evolve(member(name, actives.get(name, ""), capacity=capacity), tags=dict(each)) for name, each in tags.items()),
        **{"num_standbys": num_standbys, "rack_aware_tags": ("cluster", "zone"), **settings},
    )
    return placed(question)


def placed(question: AssignmentProblem) -> dict[str, list[str]]:
    indexed = IndexedProblem(question)
    copies, wanted = len(question.tasks) * (1 + question.settings.num_standbys), question.settings.num_standbys
    capacity = sum(each.capacity for each in question.members)
    shares = {each.id: Share(copies * each.capacity // capacity, -(-copies * each.capacity // capacity)) for each in question.members}
    wishes = {
        task: Wish(copies=min(wanted, len(question.members) - 1), owner=owner, never=frozenset((owner,)), here=(), begun=())
        for task, owner in indexed.owner.items()
    }
    goal = standby_goal(indexed, wishes, {each.id: len(each.active) for each in question.members}, shares)
    for task, members in goal.holders.items():
        assert len({indexed.owner[task], *members}) == 1 + len(members)
    return {str(task): list(members) for task, members in sorted(goal.holders.items())}


def counts(found: Mapping[str, list[str]], names: Iterable[str]) -> dict[str, int]:
    held = Counter(name for members in found.values() for name in members)
    return {name: held[name] for name in names}


def values(names: list[str], key: str, tags: Tags = ZONES_AND_CLUSTERS) -> set[str]:
    return {tags[name][key] for name in names}


# KIP-708, from Kafka's ClientTagAwareStandbyTaskAssignorTest


@pytest.mark.parametrize("apart", [("c1", "c4", "c7"), ("c1", "c2", "c3")], ids=["actives in one zone", "actives in one cluster"])
def test_standbys_of_a_task_are_in_other_zones_and_other_clusters(apart: tuple[str, ...]):
    """shouldDistributeStandbyTasksWhenActiveTasksAreLocatedOnSameZone, ...OnSameCluster: all apart,
    and nothing beside the actives.

    Kafka's cases also ask for two standbys on each of the others. That does not fit where who gets
    the first one decides who must get the second: copies are placed round by round, so one more or
    less is possible.
    """
    actives = {name: f"0_{index} 1_{index}" for index, name in enumerate(apart)}
    found = preset(actives, ZONES_AND_CLUSTERS, capacity=2, num_standbys=2)
    for name, count in counts(found, ZONES_AND_CLUSTERS).items():
        assert count == 0 if name in apart else 1 <= count <= 3
    for owner, owned in actives.items():
        for task in owned.split():
            assert values([owner, *found[task]], "zone") == {"z1", "z2", "z3"}
            assert values([owner, *found[task]], "cluster") == {"k1", "k2", "k3"}


def test_stateless_task_has_no_standby():
    """shouldNotAssignStatelessTasksToAnyClients."""
    members = (attrs.evolve(member(name), tags=dict(tags)) for name, tags in ZONES_AND_CLUSTERS.items())
    answer = plan(problem(tasks("1_0", stateless="0_0 0_1"), *members, num_standbys=2, rack_aware_tags=("zone",)))
    assert sum(len(part.standby) for part in answer.members.values()) == len(holders(answer, "1_0")) == 2


def test_equivalent_racks_and_tags_give_equal_standbys():
    """shouldDistributeStandbyTasksUsingFunctionAndSupplierTags: by `rack`, or by a tag."""
    actives = {f"c{number}": f"0_{number}" for number in (1, 2, 3)}
    by_tag = problem(
        tasks(" ".join(actives.values())),
        *(attrs.evolve(member(name, actives.get(name, "")), tags={"zone": each["zone"]}) for name, each in ZONES_AND_CLUSTERS.items()),
        rack_aware_tags=("zone",),
        num_standbys=2,
    )
    by_rack = attrs.evolve(
        by_tag,
        members=tuple(attrs.evolve(each, rack=each.tags["zone"], tags={}) for each in by_tag.members),
        settings=attrs.evolve(by_tag.settings, rack_aware_tags=(), rack_aware_strategy="min_cost", rack_standby_strategy="greedy"),
    )
    for question in (by_tag, by_rack):
        found = placed(question)
        assert counts(found, ZONES_AND_CLUSTERS) == {name: 0 if name in actives else 1 for name in ZONES_AND_CLUSTERS}
        for owner, task in actives.items():
            assert values([owner, *found[task]], "zone") == {"z1", "z2", "z3"}


def test_standby_differs_in_one_key_if_not_all():
    """shouldDoThePartialRackAwareness: two clusters of three zones; the first standby differs in
    both, the second in its zone alone.
    """
    two = {name: tags for name, tags in ZONES_AND_CLUSTERS.items() if tags["cluster"] != "k3"}
    found = preset({"c1": "0_0", "c6": "1_0"}, two, num_standbys=2)
    for owner, task in (("c1", "0_0"), ("c6", "1_0")):
        assert values([owner, *found[task]], "zone") == {"z1", "z2", "z3"}
        assert values([owner, found[task][0]], "cluster") == {"k1", "k2"}


def test_full_members_get_one_standby_each():
    """shouldDistributeClientsOnDifferentZoneTagsEvenWhenClientsReachedCapacity."""
    six = {f"c{number}": {"zone": f"z{number % 3}", "cluster": "k1"} for number in range(6)}
    actives = {name: f"0_{index}" for index, name in enumerate(six)}
    found = preset(actives, six, num_standbys=1)
    assert set(counts(found, six).values()) == {1}
    for owner, task in actives.items():
        assert values(found[task], "zone", six) != values([owner], "zone", six)


def test_unconfigured_tags_are_ignored():
    """shouldIgnoreTagsThatAreNotPresentInRackAwareness: c3 is in the other cluster, though its zone
    is the same and c2 has more room.
    """
    tags = {"c1": {"cluster": "k1", "zone": "z1"}, "c2": {"cluster": "k1", "zone": "z2"}, "c3": {"cluster": "k2", "zone": "z1"}}
    assert preset({"c1": "0_0"}, tags, num_standbys=1, rack_aware_tags=("cluster",)) == {"0_0": ["c3"]}


def test_equal_values_of_two_tag_keys_differ():
    """shouldHandleOverlappingTagValuesBetweenDifferentTagKeys."""
    tags = {"c1": {"zone": "x", "cluster": "y"}, "c2": {"zone": "y", "cluster": "x"}, "c3": {"zone": "x", "cluster": "y"}}
    assert preset({"c1": "0_0"}, tags, num_standbys=1) == {"0_0": ["c2"]}


def test_equal_tags_balance_loads():
    """shouldDistributeStandbyTasksOnLeastLoadedClientsWhenClientsAreNotOnDifferentTagDimensions."""
    same = {f"c{number}": {"zone": "z", "cluster": "k"} for number in range(4)}
    found = preset({name: f"0_{index}" for index, name in enumerate(same)}, same, num_standbys=1)
    assert set(counts(found, same).values()) == {1}


def test_lone_member_no_standby():
    """shouldNotAssignStandbyTasksIfThereAreNoEnoughClients."""
    assert preset({"c1": "0_0"}, {"c1": {"zone": "z", "cluster": "k"}}, num_standbys=1) == {"0_0": []}


def test_member_without_tag_is_last():
    tags = {"c1": {"cluster": "k1", "zone": "z1"}, "c2": {"cluster": "k1"}, "c3": {"cluster": "k2", "zone": "z1"}, "c4": {}}
    assert preset({"c1": "0_0"}, tags, num_standbys=1) == {"0_0": ["c3"]}


def test_standbys_are_even_though_all_tags_differ():
    """More places than a task is offered: one standby for each host all the same."""
    hosts = {f"c{number:02}": {"zone": f"h{number}", "cluster": "k"} for number in range(40)}
    found = preset({name: f"0_{index}" for index, name in enumerate(hosts)}, hosts, num_standbys=1)
    assert set(counts(found, hosts).values()) == {1}


# KIP-925, 4.C


def in_racks(racks: str, **given: MemberSpec) -> list[MemberSpec]:
    """``in_racks("aab")``: m1 and m2 in rack a, m3 in b; as `given`, or without anything."""
    return [attrs.evolve(given.get(f"m{index}", member(f"m{index}")), rack=rack) for index, rack in enumerate(racks, start=1)]


def one_task(racks: str, changelog: str, **settings: Any) -> AssignmentProblem:
    """m1 runs 0_0; its changelog has replicas in `changelog`."""
    return aware([reading("0_0", changelog=changelog)], *in_racks(racks, m1=member("m1", "0_0")), **settings)


def test_first_standby_is_in_another_rack_at_any_cost():
    answer = plan(one_task("aab", "a", num_standbys=1))
    assert holders(answer, "0_0") == ["m3"]
    assert [(stage.name, stage.cost, stage.lower_bound) for stage in answer.cost.stages] == [("standby", 10, 10)]
    assert not answer.cost.optimal, "were the task itself in b, its standby could be in a: the whole's bound is 0"


def test_standbys_apart_is_an_option():
    assert holders(plan(one_task("aabc", "a", num_standbys=1, rack_standbys_apart=0)), "0_0") == ["m2"]
    assert "m2" in holders(plan(one_task("aabc", "a", num_standbys=2)), "0_0")
    assert holders(plan(one_task("aabc", "a", num_standbys=2, rack_standbys_apart=2)), "0_0") == ["m3", "m4"]
    assert holders(plan(one_task("aabc", "a", num_standbys=2, rack_standby_strategy="greedy")), "0_0") == ["m3", "m4"]


def test_standby_takes_the_rack_nearest_the_changelog():
    for changelog, holder in (("b", "m2"), ("c", "m3")):
        assert holders(plan(one_task("abc", changelog, num_standbys=1)), "0_0") == [holder]


def test_evenness_comes_before_traffic_and_apart_before_evenness():
    """All changelogs are in b: m2 gets its share of standbys and not more. With m2 the only one in
    another rack it gets all of them.
    """
    actives = {"m1": member("m1", "0_0 0_1 0_2"), "m2": member("m2", "0_3 0_4 0_5"), "m3": member("m3", "0_6 0_7 0_8")}
    spread = plan(aware([reading(f"0_{number}", changelog="b") for number in range(9)], *in_racks("abc", **actives), num_standbys=1))
    assert [len(part.standby) for part in spread.members.values()] == [3, 3, 3]
    forced = plan(aware([reading(f"0_{number}", changelog="ab") for number in range(9)], *in_racks("aba", **actives), num_standbys=1))
    assert len(forced.members["m2"].standby) == 6


def test_standby_in_wrong_rack_ends_once_replaced():
    wrong = in_racks("aab", m1=member("m1", "0_0"), m2=member("m2", standby="0_0", lags={"0_0": 0}))
    question = aware([reading("0_0", changelog="ab")], *wrong, num_standbys=1)
    answer = plan(question)
    assert (standbys(answer)["m2"], text(answer.members["m3"].warmup)) == ("0_0", "0_0")
    assert answer.probing
    warm = attrs.evolve(wrong[2], warmup=(TaskId(0, 0),), lags={TaskId(0, 0): 50_000})
    answer = plan(attrs.evolve(question, members=(*wrong[:2], warm)))
    assert text(answer.members["m3"].warmup) == "0_0", "a warm-up in progress continues"
    warm = attrs.evolve(warm, lags={TaskId(0, 0): 0})
    answer = plan(attrs.evolve(question, members=(*wrong[:2], warm)))
    assert standbys(answer) == {"m1": "", "m2": "", "m3": "0_0"}
    assert not answer.probing


@pytest.mark.parametrize(("non_overlap", "holder"), [(1, "m3"), (9, "m3"), (10, "m2"), (15, "m2")])
def test_standby_moves_when_traffic_saved_exceeds_cost(non_overlap: int, holder: str):
    near = in_racks("abc", m1=member("m1", "0_0"), m2=member("m2", standby="0_0", lags={"0_0": 0}), m3=member("m3", lags={"0_0": 0}))
    question = aware([reading("0_0", changelog="c")], *near, num_standbys=1, rack_non_overlap_cost=non_overlap)
    assert holders(plan(question), "0_0") == [holder]


def test_leaving_members_standby_is_replaced():
    leaving = member("m2", standby="0_0", lags={"0_0": 0}, leaving=True)
    question = aware([reading("0_0", changelog="abc")], *in_racks("abac", m1=member("m1", "0_0"), m2=leaving), num_standbys=1)
    answer = plan(question)
    assert (standbys(answer)["m2"], text(answer.members["m4"].warmup)) == ("0_0", "0_0")


def test_moving_task_keeps_its_standby_and_no_more_than_asked():
    """m1 bundles 0_0 over to m2, which has its standby; the other one is for m2's rack."""
    question = aware(
        [reading("0_0", "b", changelog="abc"), reading("0_1", "a", changelog="abc")],
        *in_racks("abac", m1=member("m1", "0_0"), m2=member("m2", "0_1", standby="0_0", lags={"0_0": 200})),
        num_standbys=2,
    )
    answer = plan(question)
    assert "m2" in holders(answer, "0_0")
    assert len(holders(answer, "0_0")) == 2


@pytest.mark.parametrize("copies", [1, 3])
def test_random_groups(copies: int):
    """shouldOptimizeRandomStandby: 60 x 3 tasks, 50 members. Standbys that are anywhere become no
    less apart, and cost no more.
    """
    dice = random.Random(11)
    racks = "abcdefgh"
    parts = [
        attrs.evolve(reading(f"{sub}_{part}", changelog="".join(sorted(dice.sample(racks, 2)))), source=()) for sub in range(60) for part in range(3)
    ]
    names = [f"m{number:02}" for number in range(50)]
    owner = {task.id: names[number % 50] for number, task in enumerate(parts)}
    held = {task.id: dice.sample([name for name in names if name != owner[task.id]], copies) for task in parts}
    where = {name: dice.choice(racks) for name in names}
    members = [
        attrs.evolve(
            member(name),
            rack=where[name],
            active=tuple(sorted(task for task, one in owner.items() if one == name)),
            standby=tuple(sorted(task for task, some in held.items() if name in some)),
            lags=dict.fromkeys((task for task, one in owner.items() if one == name), LagSentinel.ACTIVE),
        )
        for name in names
    ]
    question = aware(parts, *members, num_standbys=copies, rack_standby_strategy="greedy")
    indexed = IndexedProblem(question)
    found = {parse_task(task): some for task, some in placed(question).items()}

    def apart(standbys: Mapping[TaskId, list[str]]) -> int:
        return sum(len({where[owner[task]], *(where[name] for name in some)}) for task, some in standbys.items())

    def traffic(standbys: Mapping[TaskId, list[str]]) -> int:
        return sum(indexed.racks.standby(task).at(where[name]) for task, some in standbys.items() for name in some)

    assert apart(found) == len(parts) * (1 + copies), "every copy in a rack of its own"
    assert apart(held) < apart(found)
    assert traffic(found) < traffic(held)
    loads = Counter([*owner.values(), *(name for some in found.values() for name in some)])
    share = len(parts) * (1 + copies) / len(names)
    assert all(math.floor(share) <= loads[name] <= math.ceil(share) for name in names)
