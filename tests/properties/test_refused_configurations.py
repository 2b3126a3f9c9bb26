"""A log means the same to every build, for any order of configurations, members, and workers with
and without an assignor. See docs/protocol.md#l6.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from equipoise.events.codec import make_record
from equipoise.events.facts import Fact, GroupConfigured, LogOpened, MemberLeft, ProbingTick
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.replay.verification import Verdict, verify
from equipoise.statemachine.partition import PartitionLead, real_machine
from tests.groups import GROUP, configured, joined, topology
from tests.unit.statemachine.test_refused_configuration import LACKS, LEARNER, TYPO, code_of, lacking, lead, refusals, stored, tell

FACTS = st.one_of(
    st.sampled_from([LEARNER, TYPO, configured(initial_delay_ms=0), configured(initial_delay_ms=0, num_standbys=1)]),
    st.builds(joined, st.sampled_from(["m1", "m2", "m3"]), st.integers(1, 5)),
    st.builds(MemberLeft, member_id=st.sampled_from(["m1", "m2"]), incarnation=st.integers(1, 5)),
    st.just(ProbingTick()),
)


@given(facts=st.lists(FACTS, min_size=1, max_size=12), turns=st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.integers(0, 9)), max_size=6))
def test_builds_with_and_without_the_assignor_read_a_log_alike(facts: list[Fact], turns: list[tuple[bool, int, int]]) -> None:
    """Workers lead in turn; each takes over from the start. A turn: whether it has the learner, the
    facts it reads, its lost decisions.
    """
    events: list[Fact] = [LogOpened(log_id="log-1"), configured(initial_delay_ms=0), topology(stateful=4), *facts]
    records = [make_record("" if not offset else GROUP, offset, 2_000 * offset, event) for offset, event in enumerate(events)]
    published: list[DecisionRecord] = []
    read = 0
    for has_it, more, lost in [*turns, (True, len(records), 0)]:
        read = min(len(records), read + more)
        worker, missing = lead(records[:read], real_machine if has_it else LACKS, published)
        assert GROUP not in worker.groups or code_of(worker) is None or (code_of(worker) == "assignor_missing" and not has_it)
        published += missing[: max(0, len(missing) - lost)]
    assert [each.number for each in published] == list(range(1, len(published) + 1))

    reader, missing = lead(records, real_machine, published)
    assert missing == []
    last = reader.groups[GROUP].machine.snapshot()
    entries = stored(records, published)
    assert verify(entries).verdict is Verdict.IDENTICAL
    assert verify([*records, *published]).verdict is Verdict.IDENTICAL

    refused = refusals(published)
    accepted = [each for each in records if each.event.__class__ is GroupConfigured and each.offset not in refused and each.event == LEARNER]
    without, missing = lead(records, LACKS, published, answers=False)
    assert missing == []
    if accepted:
        assert code_of(without) == "assignor_missing"
        assert verify(entries, load=lacking("learner")).verdict is Verdict.CANNOT_VERIFY
    else:
        assert without.groups[GROUP].machine.snapshot() == last
        assert verify(entries, load=lacking("learner")).verdict is Verdict.IDENTICAL


@given(facts=st.lists(FACTS, min_size=1, max_size=8), at=st.integers(0, 8))
def test_checkpoint_after_a_rejection_continues_alike(facts: list[Fact], at: int) -> None:
    events: list[Fact] = [LogOpened(log_id="log-1"), configured(initial_delay_ms=0), topology(stateful=4), *facts]
    records: list[FactRecord] = [make_record("" if not offset else GROUP, offset, 2_000 * offset, event) for offset, event in enumerate(events)]
    whole, published = lead(records, LACKS)
    split = min(len(records), 3 + at)
    first, _ = lead(records[:split], LACKS)
    restored = PartitionLead(split, machine_factory=real_machine, opened=records[0])
    first.take_checkpoint(GROUP)
    restored.restore(first.groups[GROUP].waiting[-1])
    tell(restored, published)
    for record in records[split:]:
        assert restored.fold(record, 0) == []
    assert restored.groups[GROUP].machine.snapshot() == whole.groups[GROUP].machine.snapshot()
