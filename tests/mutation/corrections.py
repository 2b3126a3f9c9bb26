"""Where equipoise's clients do something else than aiokafka's own (0.14), which they once were.
Each difference is switched off, one after the other, and a test must see that.

usage: python -m tests.mutation.corrections
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Sequence

import attrs
import pytest

from tests.mutation.mutants import Mutant, function_named
from tests.mutation.trials import TIMEOUT, killer_of, with_tests

EXAMPLES = 600
MOST_S = 30
READ = "tests/properties/test_consumer_core.py::test_every_committed_record_is_taken_once_and_in_order"
IN_TURN = "tests/properties/test_consumer_core.py::test_partitions_with_a_backlog_are_read_in_turn"
WRITTEN = "tests/properties/test_producer_core.py::test_every_record_is_appended_once_and_in_order"
WIRE = "tests/simulated/test_wire_faults.py"
BATCHES = "tests/unit/kafka/test_fetched_batches.py"
QUESTIONS = "tests/unit/kafka/test_consumer_questions.py"
CONSUMER = "tests/unit/kafka/test_consumer_core.py"
PRODUCER = "tests/unit/kafka/test_producer_core.py"


@attrs.frozen
class Correction:
    """`aiokafka`: what it does, as `after` in place of `before` does here. `function`: module below
    `equipoise/kafka` and qualified name. `seen_by`: the test, without parameters.
    """

    aiokafka: str
    function: tuple[str, str]
    before: str
    after: str
    seen_by: str

    def mutant(self) -> Mutant:
        """Returns the function without the correction."""
        module, name = f"equipoise/kafka/{self.function[0]}.py", self.function[1]
        source = textwrap.dedent(inspect.getsource(function_named(module, name)))
        assert source.count(self.before) == 1, f"{module} {name}: once: {self.before}"
        lines = frozenset[int]()
        return Mutant(
            module=module, function=name, before=self.before, after=self.after, nth=1, lines=lines, all_lines=lines,
            source=source.replace(self.before, self.after),
        )  # fmt: skip # a table: one row a line


CORRECTIONS = (
    Correction(
        "asks for partitions in any order: an answer holds few that have much, and the others starve",
        ("consumer/core", "ConsumerCore._fetch"), "key=lambda each: each.last", "key=lambda each: each.place", IN_TURN,
    ),
    Correction(
        "drops what was fetched of all partitions, and their positions, when one is assigned",
        ("consumer/core", "ConsumerCore.assign"), "if each not in wanted]", "]", READ,
    ),
    Correction(
        "has no fetch sessions: that of a request without an answer cannot go on",
        ("consumer/core", "ConsumerCore.failed"), "node.session.lost()", "pass", READ,
    ),
    Correction(
        "has no fetch sessions: one that a broker has forgotten begins again",
        ("consumer/core", "ConsumerCore.fetched"), "node.session.lost()", "pass", READ,
    ),
    Correction(
        "has no fetch sessions: a broker names the end of a partition once",
        ("consumer/core", "ConsumerCore._fetch"), "each.end is None", "False", READ,
    ),
    Correction(
        "has no fetch sessions: an answer may be for a former position",
        ("consumer/core", "ConsumerCore.fetched"), "if asked is not None and asked[0] == each.position:", "if True:", READ,
    ),
    Correction(
        "does not wait when a broker throttles it, and its next fetch waits there, with a connection",
        ("consumer/core", "ConsumerCore.fetched"), "now_ms + answer.throttle_time_ms", "now_ms", f"{CONSUMER}::test_throttled_consumer_waits",
    ),
    Correction(
        "takes a replica that is behind its leader for an offset out of range",
        ("consumer/core", "ConsumerCore._refused"), "each.replica != NO_LEADER and code == _OFFSET_OUT_OF_RANGE", "False",
        f"{CONSUMER}::test_near_replica_is_read_as_long_as_it_answers",
    ),
    Correction(
        "drops the records before a damaged batch",
        ("consumer/batches", "FetchedBatches.take"), "error = refused", "records, error = [], refused",
        f"{BATCHES}::test_records_before_a_damaged_batch_come_and_then_the_error",
    ),
    Correction(
        "lets through whatever a codec raises of damaged data",
        ("consumer/batches", "FetchedBatches.take"), "error = CorruptRecordException(f\"{self.place}: {unreadable!r}\")", "raise",
        f"{BATCHES}::test_what_is_no_compressed_data_is_said_to_be_damaged",
    ),
    Correction(
        "ends at a marker that compaction has removed from its batch",
        ("consumer/batches", "FetchedBatches._holds_records"), "next(batch, None)", "next(batch)",
        f"{BATCHES}::test_marker_that_compaction_has_removed_from_its_batch_ends_nothing",
    ),
    Correction(
        "does not look at the error of a whole group: one whose coordinator has moved is one without offsets",
        ("consumer/group_offsets", "read_notes"), "getattr(answer, \"error_code\", 0)", "0", f"{WIRE}::test_offsets_of_a_group_are_never_forgotten",
    ),
    Correction(
        "makes a text of a right that is missing, in an error of no kind",
        ("consumer/group_offsets", "_check"), "raise errors.for_code(code)(", "raise errors.KafkaError(",
        f"{QUESTIONS}::test_right_that_is_missing_keeps_its_kind",
    ),
    Correction(
        "asks for the leader of a topic that the user may not see until the time is over",
        ("consumer/leader_questions", "_asked"), "wire.is_hidden(place[0])", "False",
        f"{QUESTIONS}::test_topic_that_may_not_be_seen_is_an_error_at_once",
    ),
    Correction(
        "uses up the sequence numbers of a batch that is refused: its partition takes no later one",
        ("producer/batch_queues", "BatchQueues._fail"), "isinstance(error, REFUSED) and batch.sequence >= 0", "False",
        "tests/simulated/test_kafka.py::test_refused_batch_leaves_the_partition_to_later_ones",
    ),
    Correction(
        "sends what is behind a batch that was refused",
        ("producer/batch_queues", "BatchQueues._fail"), "behind = batch.behind", "behind = None",
        f"{PRODUCER}::test_refused_batch_gives_its_numbers_back_and_ends_those_behind_it",
    ),
    Correction(
        "does not wait when a broker throttles it, and what it sends next waits there",
        ("producer/batch_queues", "BatchQueues.answered"), "now_ms + answer.throttle_time_ms", "now_ms",
        f"{PRODUCER}::test_throttled_broker_gets_nothing_meanwhile",
    ),
    Correction(
        "holds up all partitions of a broker for the error of one",
        ("producer/batch_queues", "BatchQueues._again"), "self._resting[batch.place] = now_ms + self._retry_ms",
        "self._resting.update(dict.fromkeys((*self._queues, *self._flying), now_ms + self._retry_ms))",
        f"{PRODUCER}::test_partition_with_an_error_that_passes_rests_alone",
    ),
    Correction(
        "gives up a batch whose answer does not come in time, though it may be there",
        ("producer/batch_queues", "BatchQueues.unanswered"), "getattr(error, \"retriable\", False)", "False", WRITTEN,
    ),
    Correction(
        "removes a batch that is to be sent again from those on their way, where it is not, and the next one overtakes it",
        ("producer/batch_queues", "BatchQueues._again"), "appendleft(batch)", "append(batch)", WRITTEN,
    ),
    Correction(
        "commits a transaction of which a batch was not appended",
        ("producer/core", "ProducerCore._fail_transaction"), "self.transaction.abort_for(each.error)", "pass",
        f"{PRODUCER}::test_transaction_without_one_of_its_batches_is_not_committed",
    ),
    Correction(
        "asks again each 20 ms while the markers of the former transaction are written",
        ("producer/transaction_manager", "TransactionManager._refused"), "(MARKERS_MS if", "(20.0 if",
        f"{PRODUCER}::test_markers_of_the_former_transaction_are_waited_for_briefly",
    ),
    Correction(
        "does not know PRODUCER_FENCED",
        ("producer/errors", "error_of"), "(errors.InvalidProducerEpoch.errno, _FENCED)", "(errors.InvalidProducerEpoch.errno,)",
        f"{PRODUCER}::test_fenced_producer_sends_nothing_any_more",
    ),
    Correction(
        "keeps a connection that hangs for those who do not wait as long as it does",
        ("aiokafka_wire", "AiokafkaWire.send"), "await asyncio.shield(sending)", "await sending",
        "tests/unit/kafka/test_silent_brokers.py::test_connection_that_hangs_is_closed_when_its_requests_are_called_off",
    ),
    Correction(
        "forgets the connection over which it asks for brokers when its start is called off",
        ("aiokafka_lifecycle", "_Bootstrap._bootstrap"), 'steps.throw(TimeoutError("the start is called off"))', "pass",
        "tests/unit/kafka/test_silent_brokers.py::test_start_that_is_called_off_leaves_no_connection",
    ),
)  # fmt: skip # a table: one row a line


def unseen(items: Sequence[pytest.Item]) -> list[str]:
    """Returns what is not seen, and prints what is."""
    found = []
    for each in CORRECTIONS:
        tests = [item for item in items if item.nodeid.partition("[")[0] == each.seen_by]
        assert tests, f"no such test: {each.seen_by}"
        killer = killer_of(each.mutant(), tests, MOST_S)
        print(f"{'not seen' if killer is None else 'seen'}: aiokafka {each.aiokafka}: {killer or each.seen_by}", flush=True)
        if killer in (None, TIMEOUT):
            found.append(each.aiokafka)
    return found


def main() -> int:
    """Returns 1 when a correction can be switched off and its test does not see it."""
    return 1 if with_tests(sorted({each.seen_by for each in CORRECTIONS}), unseen, examples=EXAMPLES) else 0


if __name__ == "__main__":
    sys.exit(main())
