"""Watching a partition: its answer equals that of `verify` for any order and repetition of records,
and across any restart.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import attrs
import pytest

from equipoise.events.decisions import MemberAssigned
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.log.kafka.envelope import group_key, pack_decision, pack_fact
from equipoise.replay.verification import GroupVerifier, Verdict, verify
from equipoise.replay.watch import Alert, Arrived, Watch
from tests.unit.replay.lived import lived


def arrivals(entries: Sequence[Entry]) -> list[Arrived]:
    """Returns the entries as the two topics store them."""
    found: list[Arrived] = []
    number = 0
    for entry in entries:
        if isinstance(entry, FactRecord):
            key = group_key(entry.group) if entry.group else b""
            found.append(Arrived(True, entry.offset, key, pack_fact(entry.event), entry.append_ms))
        else:
            assert isinstance(entry, DecisionRecord)
            found.append(Arrived(False, number, group_key(entry.group), pack_decision(entry), 0))
            number += 1
    return found


def wrong_at(entries: Sequence[Entry], which: int) -> list[Entry]:
    """Returns the entries with other tokens in the `which`-th MemberAssigned."""
    at = [at for at, entry in enumerate(entries) if isinstance(entry, DecisionRecord) and isinstance(entry.decision, MemberAssigned)][which]
    wrong = entries[at]
    assert isinstance(wrong, DecisionRecord)
    assert isinstance(wrong.decision, MemberAssigned)
    decision = attrs.evolve(wrong.decision, tokens=tuple(token + 1 for token in wrong.decision.tokens))
    return [*entries[:at], attrs.evolve(wrong, decision=decision), *entries[at + 1 :]]


def watched(batches: Sequence[Sequence[Arrived]]) -> tuple[list[Alert], dict[str, bytes]]:
    """Returns the alerts and groups of a watch that is saved and restored after each batch."""
    groups: dict[str, bytes] = {}
    saved = Watch(groups).save()
    alerts: list[Alert] = []
    for batch in batches:
        watch = Watch.restore(saved, groups)
        alerts += watch.feed(batch)
        saved = watch.save()
    return alerts, groups


def in_batches(arrived: list[Arrived], size: int, seed: int) -> list[list[Arrived]]:
    """Batches of about `size`, each in another order than the log's, with some of the batch before
    once more.
    """
    draw = random.Random(seed)
    batches = [arrived[at : at + size] for at in range(0, len(arrived), size)]
    for at, batch in enumerate(batches):
        batch += draw.sample(batches[at - 1], min(3, len(batches[at - 1]))) if at else []
        draw.shuffle(batch)
    return batches


@pytest.mark.parametrize(("size", "seed"), [(1_000, 1), (97, 2), (13, 3)])
def test_watch_sound_log_has_counts_and_no_alert(size: int, seed: int) -> None:
    alerts, groups = watched(in_batches(arrivals(lived()), size, seed))
    assert alerts == []
    assert GroupVerifier.restore(groups["orders"]).answer() == verify(lived()).groups[0]


@pytest.mark.parametrize(("size", "seed"), [(1_000, 1), (50, 2)])
def test_watch_divergence_alerts_once_in_its_batch(size: int, seed: int) -> None:
    entries = wrong_at(lived(), 5)
    expected = verify(entries).groups[0]
    assert expected.divergence is not None
    batches = in_batches(arrivals(entries), size, seed)
    at = next(at for at, batch in enumerate(batches) if any(not each.is_fact and each.offset == expected.divergence.number - 1 for each in batch))
    before, _ = watched(batches[:at])
    alerts, groups = watched(batches)
    assert before == []
    assert watched(batches[: at + 1])[0] == alerts
    (alert,) = alerts
    assert (alert.group, alert.verdict, alert.offset, alert.problem) == ("orders", Verdict.DIVERGENCE, expected.offset, expected.divergence.problem)
    assert alert.document is not None
    assert alert.document["divergence"]["stored"] == expected.document()["divergence"]["stored"]
    assert alert.document["decisions_identical"] == expected.compared
    assert GroupVerifier.restore(groups["orders"]).is_over


def test_watch_missing_record_is_reported_until_it_arrives() -> None:
    arrived = arrivals(lived())
    late = next(each for each in arrived if each.is_fact and each.offset == 60)
    without = [each for each in arrived if each is not late]
    alerts, groups = watched([without[:200], without[200:300], [late], without[300:]])
    assert [(alert.group, alert.offset, "facts@60 has not come" in alert.problem) for alert in alerts] == [("", 60, True)]
    assert GroupVerifier.restore(groups["orders"]).answer() == verify(lived()).groups[0]


def test_watch_unreadable_group_stops_no_other() -> None:
    arrived = arrivals(lived())
    last = max(each.offset for each in arrived if each.is_fact)
    strange = [Arrived(True, last + 1, b"strange", b"\x93\x63\x01\x90", 5), Arrived(True, last + 2, b"orders", arrived[-1].value, 5)]
    alerts, groups = watched([arrived, [each for each in strange if each.value is not None]])
    assert [(alert.group, alert.verdict, alert.offset) for alert in alerts] == [("strange", Verdict.CANNOT_VERIFY, last + 1)]
    assert "event kind 99, version 1, is not known" in alerts[0].problem
    assert GroupVerifier.restore(groups["orders"]).answer().facts == verify(lived()).groups[0].facts + 1


def test_bytes_that_are_no_decision_stop_the_partition() -> None:
    arrived = arrivals(lived())
    at = next(at for at, each in enumerate(arrived) if not each.is_fact)
    alerts, _ = watched([[*arrived[:at], attrs.evolve(arrived[at], value=b"rubbish"), *arrived[at + 1 :]], arrived[-1:]])
    assert [(alert.group, alert.verdict) for alert in alerts] == [("", Verdict.CANNOT_VERIFY)]
    assert "is not a decision" in alerts[0].problem


def test_watch_log_without_opening_is_alert() -> None:
    configured = lived()[1]
    assert isinstance(configured, FactRecord)
    alerts, groups = watched([arrivals([attrs.evolve(configured, offset=0)])])
    assert [alert.group for alert in alerts] == [""]
    assert groups == {}
