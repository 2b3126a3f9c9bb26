"""What a producer asks its brokers for, answer by answer, without a network and without a clock."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import errors
from aiokafka.protocol.coordination import FindCoordinatorResponse_v1
from aiokafka.protocol.produce import ProduceResponse_v7
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnResponse_v0,
    AddPartitionsToTxnResponse_v0,
    EndTxnResponse_v0,
    InitProducerIdResponse_v0,
    TxnOffsetCommitResponse_v0,
)

from equipoise.kafka.client import TopicPartition
from equipoise.kafka.producer.batch_queues import SEQUENCES
from equipoise.kafka.producer.sending_orders import (
    AddGroup,
    AddPartitions,
    CommitInTransaction,
    EndTransaction,
    FindCoordinator,
    InitProducerId,
    ProduceBatches,
)
from equipoise.kafka.producer.states import TRANSITIONS, ProducerState, check_transition
from equipoise.kafka.producer.transaction_manager import MARKERS_MS
from tests.producing_brokers import GROUP, PLACES, CoreWriter, ProducingBrokers

A, B, C = PLACES


def plain(**options: Any) -> CoreWriter:
    """A producer without transactions, which has its id."""
    made = CoreWriter(ProducingBrokers(), **options)
    made.begin()
    return made


def transactional(**options: Any) -> CoreWriter:
    """A producer in a transaction."""
    made = plain(transactional_id="t", **options)
    made.core.transaction.begin([])
    return made


def produced(writer: CoreWriter) -> dict[int, list[tuple[TopicPartition, int]]]:
    """Broker -> partitions and sequence numbers of the batches that are due."""
    return {each.node: [(batch.place, batch.sequence) for batch in each.batches] for each in writer.send() if isinstance(each, ProduceBatches)}


def answer_batches(writer: CoreWriter, *codes: int, throttle_ms: int = 0) -> None:
    """The only request is answered with an error code for each of its batches."""
    [order] = writer.under_way
    assert isinstance(order, ProduceBatches)
    rows = [(each.place[0], [(each.place[1], code, -1 if code else 10, -1, -1)]) for each, code in zip(order.batches, codes, strict=True)]
    writer.answer(ProduceResponse_v7(rows, throttle_ms))


def test_each_transition_is_in_the_table_or_refused() -> None:
    for state in ProducerState:
        for to in ProducerState:
            if to in TRANSITIONS[state]:
                check_transition(state, to)
            else:
                with pytest.raises(errors.IllegalStateError, match=f"a producer that is {state} cannot become {to}"):
                    check_transition(state, to)
    assert set(TRANSITIONS) == set(ProducerState)


def test_one_request_to_a_broker_holds_one_batch_of_each_partition() -> None:
    writer = plain(batch_bytes=100)
    for place in (A, B):
        writer.brokers.cluster.topics["in"].partitions[place[1]].leader = 0
    writer.write(A, b"1", b"2" * 90, b"3")
    writer.write(B, b"4")
    writer.write(C, b"5")
    assert produced(writer) == {0: [(A, 0), (B, 0)], 2: [(C, 0)]}
    writer.write(B, b"6")
    assert produced(writer) == {}, "their brokers have not answered"
    writer.deliver(writer.under_way[0])
    assert produced(writer) == {0: [(A, 1), (B, 1)]}


def test_batch_is_sent_again_with_its_sequence_numbers_after_a_pause() -> None:
    writer = plain(retry_ms=50)
    writer.write(A, b"1", b"2")
    [first] = writer.send()
    writer.deliver(first, loses_answer=True)
    assert produced(writer) == {}
    assert writer.asks_metadata
    writer.brokers.wait(0.06)
    assert produced(writer) == {0: [(A, 0)]}
    writer.deliver(writer.under_way[0])
    assert writer.brokers.values(A) == [b"1", b"2"]
    assert [(each.offset, each.error) for each in writer.ended] == [(0, None)]


@pytest.mark.parametrize("code", [errors.NotLeaderForPartitionError.errno, errors.NotEnoughReplicasError.errno])
def test_partition_with_an_error_that_passes_rests_alone(code: int) -> None:
    writer = plain()
    for place in (A, B):
        writer.brokers.cluster.topics["in"].partitions[place[1]].leader = 0
        writer.write(place, b"1")
    writer.send()
    answer_batches(writer, code, 0)
    writer.write(B, b"2")
    assert produced(writer) == {0: [(B, 1)]}
    assert writer.asks_metadata == errors.for_code(code).invalid_metadata
    writer.deliver(writer.under_way[0])
    writer.brokers.wait(0.11)
    assert produced(writer) == {0: [(A, 0)]}


def test_refused_batch_gives_its_numbers_back_and_ends_those_behind_it() -> None:
    writer = plain(batch_bytes=100)
    writer.write(A, b"1", b"2" * 90)
    writer.write(A, b"3")
    writer.send()
    answer_batches(writer, errors.MessageSizeTooLargeError.errno)
    assert [type(each.error) for each in writer.ended] == [errors.MessageSizeTooLargeError, errors.KafkaError]
    assert produced(writer) == {0: [(A, 0)]}


def test_batch_that_is_lost_keeps_its_numbers() -> None:
    writer = plain()
    writer.write(A, b"1")
    writer.write(A, b"2")
    writer.send()
    answer_batches(writer, errors.OutOfOrderSequenceNumber.errno)
    assert [type(each.error) for each in writer.ended] == [errors.OutOfOrderSequenceNumber]
    assert produced(writer) == {0: [(A, 1)]}


def test_duplicate_is_appended() -> None:
    writer = plain()
    writer.write(A, b"1")
    writer.send()
    answer_batches(writer, errors.DuplicateSequenceNumber.errno)
    assert [each.error for each in writer.ended] == [None]


def test_sequence_numbers_begin_again_at_their_end() -> None:
    writer = plain()
    writer.core._queues._sequences[A] = SEQUENCES - 1
    writer.write(A, b"1", b"2")
    writer.write(A, b"3")
    assert produced(writer) == {0: [(A, SEQUENCES - 1)]}
    answer_batches(writer, 0)
    assert produced(writer) == {0: [(A, 1)]}


def test_batch_without_a_leader_fails_in_the_end_and_takes_no_numbers() -> None:
    writer = plain(timeout_ms=1_000)
    each = writer.brokers.cluster.topics["in"].partitions[0]
    leader, each.leader = each.leader, -1
    writer.write(A, b"1")
    due = writer.core.due(writer.brokers.now_ms)
    assert (due.orders, due.asks_metadata) == ([], True)
    writer.brokers.wait(1.1)
    writer.send()
    assert [type(each.error) for each in writer.ended] == [errors.LeaderNotAvailableError]
    each.leader = leader
    writer.write(A, b"2")
    assert produced(writer) == {0: [(A, 0)]}


def test_throttled_broker_gets_nothing_meanwhile() -> None:
    writer = plain()
    writer.write(A, b"1")
    writer.send()
    answer_batches(writer, 0, throttle_ms=500)
    writer.write(A, b"2")
    assert produced(writer) == {}
    assert writer.core.due(writer.brokers.now_ms).again_ms == pytest.approx(writer.brokers.now_ms + 500)
    writer.brokers.wait(0.5)
    assert produced(writer) == {0: [(A, 1)]}


def test_single_records_share_a_batch_until_it_is_full() -> None:
    writer = plain(batch_bytes=150)
    sent = [writer.core.append(A, b"k", b"v" * 30, [("h", b"x")], 0.0, 5) for _ in range(3)]
    assert sent[0] is sent[1] is not None
    assert sent[2] is None
    writer.deliver_all()
    assert [(each.count, each.offset) for each in writer.ended] == [(2, 0)]
    with pytest.raises(errors.MessageSizeTooLargeError):
        writer.core.append(A, None, bytes(2**20), [], 0.0, 5)


def test_closed_core_fails_what_it_has_and_sends_nothing() -> None:
    writer = plain()
    writer.write(A, b"1")
    [order] = writer.send()
    writer.write(B, b"2")
    writer.core.close(errors.ProducerClosed())
    writer.deliver(order)
    assert [type(each.error) for each in writer.ended] == [errors.ProducerClosed] * 2
    assert writer.send() == []
    with pytest.raises(errors.ProducerClosed):
        writer.write(A, b"3")


def test_unknown_compression_names_those_that_there_are() -> None:
    with pytest.raises(errors.UnsupportedCodecError, match="compression_type: 'rar'; choose gzip"):
        plain(compression="rar")


# Transactions


@pytest.mark.parametrize("writes", [True, False])
def test_partition_whose_topic_is_gone_holds_up_no_transaction_for_longer_than_the_timeout(writes: bool) -> None:
    """`writes`: to it; otherwise it was only expected to be written."""
    writer = plain(transactional_id="t", timeout_ms=1_000)
    each = writer.brokers.cluster.topics["in"].partitions[A[1]]
    each.leader = -1
    writer.core.transaction.begin([A])
    if not writes:
        assert writer.send() == [] == list(writer.core.transaction.waiting)
        return
    writer.write(A, b"1")
    assert {type(order) for order in writer.send()} == {AddPartitions}
    writer.brokers.wait(1.1)
    writer.send()
    assert [type(batch.error) for batch in writer.ended] == [errors.LeaderNotAvailableError]
    assert (list(writer.core.transaction.waiting), writer.core.transaction.state) == ([], ProducerState.ABORTABLE_ERROR)


def test_transaction_in_order() -> None:
    writer = CoreWriter(ProducingBrokers(), transactional_id="t")
    seen: list[Any] = []

    def step() -> None:
        [order] = writer.send()
        seen.append(type(order))
        writer.deliver(order)

    writer.core.transaction.connect()
    step()
    assert writer.send() == [], "nobody is fenced yet"
    writer.core.transaction.initialize()
    step()
    writer.core.transaction.begin([A])
    writer.write(B, b"1")
    step()
    commit = writer.core.add_offsets(GROUP, {A: 7})
    writer.core.transaction.end(commits=True)
    orders = writer.send()
    assert {type(each) for each in orders} == {AddGroup, ProduceBatches}
    for order in orders:
        writer.deliver(order)
    for _ in range(3):
        step()
    assert seen == [FindCoordinator, InitProducerId, AddPartitions, FindCoordinator, CommitInTransaction, EndTransaction]
    assert (commit.is_ended, commit.error, writer.core.transaction.state) == (True, None, ProducerState.READY)
    writer.brokers.wait(1.0)
    assert writer.brokers.values(B, committed=True) == [b"1"]
    assert writer.brokers.cluster.coordinators.offsets == {GROUP: {A: 7}}


def test_nothing_is_produced_before_its_partition_is_added() -> None:
    writer = transactional()
    writer.write(A, b"1")
    [order] = writer.send()
    assert isinstance(order, AddPartitions)
    writer.write(B, b"2")
    writer.deliver(order)
    orders = writer.send()
    assert [type(each) for each in orders] == [AddPartitions, ProduceBatches]
    assert orders[0].places == (B,)  # type: ignore[union-attr]


def test_transaction_in_which_nothing_was_written_ends_at_once() -> None:
    writer = transactional()
    writer.core.transaction.end(commits=True)
    assert writer.send() == []
    assert writer.core.transaction.state is ProducerState.READY


def test_markers_of_the_former_transaction_are_waited_for_briefly() -> None:
    writer = transactional()
    writer.write(A, b"1")
    writer.send()
    writer.answer(AddPartitionsToTxnResponse_v0(0, [("in", [(0, errors.ConcurrentTransactions.errno)])]))
    due = writer.core.due(writer.brokers.now_ms)
    assert (due.orders, due.again_ms) == ([], writer.brokers.now_ms + MARKERS_MS)


PENDING = {
    "init": lambda writer: None,
    "partitions": lambda writer: writer.write(A, b"1"),
    "group": lambda writer: writer.core.add_offsets(GROUP, {A: 1}),
    "offsets": lambda writer: writer.core.add_offsets(GROUP, {A: 1}),
    "end": lambda writer: writer.core.transaction.end(commits=True),
}


def asked(what: str) -> CoreWriter:
    """A producer whose request to a coordinator is under way."""
    if what == "init":
        writer = CoreWriter(ProducingBrokers(), transactional_id="t")
        writer.core.transaction.connect()
        writer.deliver(writer.send()[0])
        writer.core.transaction.initialize()
        writer.send()
        return writer
    writer = transactional()
    if what == "end":
        writer.write(A, b"0")
        writer.deliver_all()
    PENDING[what](writer)
    writer.send()
    while what == "offsets" and not isinstance(writer.under_way[0], CommitInTransaction):
        writer.deliver(writer.under_way[0])
        writer.send()
    return writer


def with_code(what: str, code: int) -> Any:
    return {
        "init": lambda: InitProducerIdResponse_v0(0, code, -1, -1),
        "partitions": lambda: AddPartitionsToTxnResponse_v0(0, [("in", [(0, code)])]),
        "group": lambda: AddOffsetsToTxnResponse_v0(0, code),
        "offsets": lambda: TxnOffsetCommitResponse_v0(0, [("in", [(0, code)])]),
        "end": lambda: EndTxnResponse_v0(0, code),
    }[what]()


@pytest.mark.parametrize("what", PENDING)
@pytest.mark.parametrize("code", [errors.CoordinatorLoadInProgressError.errno, errors.ConcurrentTransactions.errno])
def test_coordinator_that_is_not_ready_is_asked_again(what: str, code: int) -> None:
    writer = asked(what)
    [order] = writer.under_way
    state = writer.core.transaction.state
    writer.answer(with_code(what, code))
    assert writer.send() == []
    writer.brokers.wait(0.11)
    assert writer.send() == [order]
    assert writer.core.transaction.state is state


@pytest.mark.parametrize("what", PENDING)
@pytest.mark.parametrize("how", ["another one coordinates", "no answer"])
def test_coordinator_that_has_moved_is_found_again(what: str, how: str) -> None:
    writer = asked(what)
    [order] = writer.under_way
    if how == "no answer":
        writer.lose(order)
    else:
        writer.answer(with_code(what, errors.NotCoordinatorError.errno))
    assert writer.send() == []
    assert writer.asks_metadata
    writer.brokers.wait(0.11)
    [find] = writer.send()
    assert isinstance(find, FindCoordinator)
    writer.deliver(find)
    assert writer.send() == [order]


@pytest.mark.parametrize("what", PENDING)
@pytest.mark.parametrize("code", [47, 90])
def test_fenced_producer_sends_nothing_any_more(what: str, code: int) -> None:
    writer = asked(what)
    if what != "init":
        batches = writer.core.unended()
    writer.answer(with_code(what, code))
    transaction = writer.core.transaction
    assert transaction.state is ProducerState.FATAL_ERROR
    assert isinstance(transaction.error, errors.ProducerFenced)
    assert writer.send() == []
    assert what == "init" or list(batches) == []
    with pytest.raises(errors.ProducerFenced):
        transaction.begin([])
    with pytest.raises(errors.ProducerFenced):
        writer.write(A, b"2")


@pytest.mark.parametrize("what", PENDING)
@pytest.mark.parametrize("error", [errors.InvalidProducerIdMapping, errors.TransactionalIdAuthorizationFailed, errors.InvalidTxnState])
def test_error_that_does_not_pass_is_fatal(what: str, error: type[Exception]) -> None:
    writer = asked(what)
    writer.answer(with_code(what, error.errno))  # type: ignore[attr-defined]
    assert isinstance(writer.core.transaction.error, error)
    assert writer.core.transaction.state is ProducerState.FATAL_ERROR
    writer.send()
    assert all(type(each.error) is error for each in writer.ended if each.error is not None)


def test_topic_that_may_not_be_written_leaves_the_others_in_the_transaction() -> None:
    writer = transactional()
    writer.write(A, b"1")
    [batch] = writer.write(TopicPartition("hidden", 0), b"2")
    writer.send()
    denied, skipped = errors.TopicAuthorizationFailedError.errno, errors.OperationNotAttempted.errno
    writer.answer(AddPartitionsToTxnResponse_v0(0, [("in", [(0, skipped)]), ("hidden", [(0, denied)])]))
    assert writer.core.transaction.state is ProducerState.ABORTABLE_ERROR
    writer.brokers.wait(0.11)
    assert writer.core.transaction.waiting == {A: None}
    assert not batch.is_ended, "its leader says the same"
    writer.deliver(writer.send()[0])
    writer.send()
    with pytest.raises(errors.TopicAuthorizationFailedError):
        writer.core.transaction.end(commits=True)


def test_topic_that_is_gone_is_asked_for_whichever_partition_the_coordinator_names_first() -> None:
    """Only metadata shows that no broker leads it any more, so that its batch fails in time."""
    writer = transactional()
    for place in (A, TopicPartition("gone", 0)):
        writer.write(place, b"1")
    writer.send()
    gone, skipped = errors.UnknownTopicOrPartitionError.errno, errors.OperationNotAttempted.errno
    writer.answer(AddPartitionsToTxnResponse_v0(0, [("in", [(0, skipped)]), ("gone", [(0, gone)])]))
    writer.send()
    assert writer.asks_metadata


def test_group_that_may_not_commit_is_named() -> None:
    for what in ("group", "offsets"):
        writer = asked(what)
        commit = writer.core.transaction._offsets[0]
        writer.answer(with_code(what, errors.GroupAuthorizationFailedError.errno))
        assert commit.is_ended
        assert isinstance(commit.error, errors.GroupAuthorizationFailedError)
        assert commit.error.args[0] == GROUP
        assert writer.core.transaction.state is ProducerState.ABORTABLE_ERROR


def test_transaction_without_one_of_its_batches_is_not_committed() -> None:
    writer = transactional()
    for each in (A, C):
        writer.write(each, b"1")
    writer.deliver(writer.send()[0])
    writer.send()
    order = next(each for each in writer.under_way if isinstance(each, ProduceBatches) and each.node == 0)
    writer.core.transaction.end(commits=True)
    writer.under_way.remove(order)
    writer.core.answered(order, ProduceResponse_v7([("in", [(0, errors.InvalidTimestampError.errno, -1, -1, -1)])], 0), writer.brokers.now_ms)
    writer.deliver_all()
    transaction: Any = writer.core.transaction
    assert transaction.state is ProducerState.ABORTABLE_ERROR
    assert isinstance(transaction.error, errors.InvalidTimestampError)
    writer.write(C, b"2")
    transaction.end(commits=False)
    writer.deliver_all()
    assert writer.core.transaction.state == ProducerState.READY
    writer.brokers.wait(1.0)
    assert writer.brokers.values(C, committed=True) == []
    assert writer.brokers.values(C) == [b"1", b"2"]


def test_leader_that_knows_a_newer_producer_fences_this_one() -> None:
    writer = transactional()
    writer.write(A, b"1")
    writer.deliver_all()
    second = CoreWriter(writer.brokers, transactional_id="t")
    second.begin()
    writer.write(A, b"2")
    writer.deliver_all()
    assert isinstance(writer.ended[-1].error, errors.ProducerFenced)
    with pytest.raises(errors.ProducerFenced):
        writer.core.transaction.end(commits=True)


def test_calls_out_of_turn_are_refused() -> None:
    writer = plain()
    with pytest.raises(errors.IllegalOperation, match="transaction_id"):
        writer.core.transaction.begin([])
    writer = plain(transactional_id="t")
    for call in (lambda: writer.write(A, b"1"), lambda: writer.core.add_offsets(GROUP, {A: 1})):
        with pytest.raises(errors.IllegalOperation):
            call()
    with pytest.raises(errors.IllegalStateError, match="ready cannot become committing"):
        writer.core.transaction.end(commits=True)
    writer.core.transaction.begin([])
    with pytest.raises(errors.IllegalStateError):
        writer.core.transaction.begin([])


def test_broker_that_knows_no_producer_ids_is_fatal() -> None:
    writer = CoreWriter(ProducingBrokers())
    writer.core.transaction.initialize()
    [order] = writer.send()
    writer.under_way.clear()
    writer.core.unanswered(order, errors.IncompatibleBrokerVersion("no version"), 0.0)
    assert isinstance(writer.core.transaction.error, errors.IncompatibleBrokerVersion)


def test_group_without_a_coordinator_is_looked_for_until_it_has_one() -> None:
    writer = asked("group")
    writer.deliver(writer.under_way[0])
    for code in (errors.CoordinatorNotAvailableError.errno, errors.CoordinatorNotAvailableError.errno):
        [find] = writer.send()
        assert isinstance(find, FindCoordinator)
        writer.answer(FindCoordinatorResponse_v1(0, code, None, -1, "", 0))
        assert writer.send() == []
        writer.brokers.wait(0.11)
    writer.deliver_all()
    assert not writer.core.transaction._offsets
