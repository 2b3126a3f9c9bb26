"""Rebalances that are not over, as coordinators describe them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from equipoise.cli.cluster import _note_under_way, _uneven, _waiting
from equipoise.kafka.connection import Connection
from equipoise.replay.importers.groups.cluster_reading import ClusterReader
from equipoise.replay.importers.groups.cluster_recording import open_recording
from equipoise.replay.importers.groups.observed import ClusterMember, GroupKind, ObservedGroup, ObservedGroups
from equipoise.replay.importers.groups.polled import PolledCluster
from equipoise.replay.importers.groups.under_way import under_way_of, with_under_way


def member(name: str, *work: str) -> ClusterMember:
    return ClusterMember(member_id=f"{name}-1", client_id=name, active=frozenset(work))


def stored(*members: ClusterMember) -> ObservedGroup:
    return ObservedGroup(name="mail", kind=GroupKind.CLASSIC_CONSUMER, epoch=7, members={each.member_id: each for each in members})


def described(state: str, *names: str) -> tuple[object, ...]:
    return 0, "mail", state, "consumer", "", [(f"{name}-1", None, name, "/10.0.0.1", b"", b"") for name in names], 0


NAMES = {"a-1": "a", "b-1": "b", "c-1": "c"}


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ((), ("a",), "waits for its first members"),
        (("a",), ("a", "b"), "most likely waits for a, the only member of the last generation that is still there"),
        (("a", "b"), ("a", "b", "c"), "waits for some of a, b, or members that are new"),
        (("a", "b"), ("b", "c"), "most likely waits for b, the only member"),
    ],
)
def test_rebalance_under_way_names_whom_it_may_wait_for(before: tuple[str, ...], now: tuple[str, ...], said: str) -> None:
    found = under_way_of(described("PreparingRebalance", *now))
    assert found is not None
    groups = {"mail": stored(*(member(name, f"t-{number}") for number, name in enumerate(before)))} if before else {}
    group = with_under_way(groups, [found])["mail"]
    assert (group.state, group.kind, sorted(group.members)) == ("rebalancing", GroupKind.CLASSIC_CONSUMER, [f"{name}-1" for name in now])
    assert said in _waiting(group, NAMES)[0]


def test_rebalance_that_waits_for_its_leader_names_no_member() -> None:
    found = under_way_of(described("CompletingRebalance", "a", "b"))
    assert found is not None
    group = with_under_way({"mail": stored(member("a", "t-0"))}, [found])["mail"]
    assert (group.state, group.awaited) == ("rebalancing", ())
    assert "wait for the assignment of their leader" in _waiting(group, NAMES)[0]


@pytest.mark.parametrize("state", ["Stable", "Empty", "Dead"])
def test_group_that_does_not_rebalance_is_as_it_was_stored(state: str) -> None:
    assert under_way_of(described(state, "a")) is None
    group = stored(member("a", "t-0"))
    assert with_under_way({"mail": group}, []) == {"mail": group}
    assert _waiting(group, NAMES) == []


def test_members_without_work_are_named_with_the_reason() -> None:
    group = stored(member("a", "t-0"), member("b"), member("c"))
    assert _uneven(group, NAMES) == ["2 members of 3 have no work (b, c): the group has 1 piece of it"]
    assert _uneven(stored(member("a", "t-0", "t-1", "t-2"), member("b")), NAMES) == ["1 member of 2 has no work (b)"]
    assert _uneven(stored(member("a", "t-0"), member("b", "t-1")), NAMES) == []


def test_polled_group_that_rebalances_long_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    now_s = [100.0]
    monkeypatch.setattr("equipoise.replay.importers.groups.polled.time.monotonic", lambda: now_s[0])

    async def polled() -> PolledCluster:
        connection = Connection(bootstrap="127.0.0.1:1")
        with open_recording(str(tmp_path / "polled.db"), write=True) as recording:
            return PolledCluster(connection, ClusterReader(connection), poll_s=5.0, recording=recording, say=said.append)

    cluster = asyncio.run(polled())
    waiting = under_way_of(described("PreparingRebalance", "a", "b"))
    for now_s[0] in (100.0, 105.0, 111.0, 130.0):
        cluster._note_under_way("mail", waiting)
    assert said == ["group mail rebalances for 10 s and longer, with 2 members: it is recorded when that is over"]
    assert list(cluster.under_way) == ["mail"]
    cluster._note_under_way("mail", None)
    assert cluster.under_way == {}


async def test_stored_groups_are_shown_while_coordinators_do_not_answer() -> None:
    observed = ObservedGroups()
    observed.groups = {"mail": stored(member("a", "t-0"))}
    await _note_under_way(observed, Connection(bootstrap="127.0.0.1:1"))
    assert observed.groups == {"mail": stored(member("a", "t-0"))}
    assert [each.partition(":")[0] for each in observed.unread] == ["which groups rebalance now"]
    assert "no broker answers at 127.0.0.1:1" in observed.unread[0]
