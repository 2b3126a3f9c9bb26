"""Modules that are mutated: the tests that judge each, and the least share of mutants killed."""

from __future__ import annotations

import attrs


def _statemachine(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/unit/statemachine/test_{name}.py" for name in names)


_MACHINE = _statemachine(
    "actions", "step_context", "crash_loops", "deadlines", "due", "fencing", "joins_together", "leader", "leftovers", "loads", "machine",
    "machine_members", "machine_movements", "problem", "readiness", "refused_configuration", "restarts", "slots", "snapshots", "source_lags", "state",
    "rounds", "transitions", "rejoining",
)  # fmt: skip # a table: one row a line
_PARTITION = _statemachine("partition", "published", "refused_configuration", "rest")
_SESSION = _statemachine("keepalive", "member", "member_boundaries", "session_state")
_UNEVEN = ("tests/unit/assignors/test_lag_aware_uneven.py", "tests/unit/assignors/test_exchanges.py")
_RANKING = ("tests/unit/assignors/test_ranking.py",)
_STANDBYS = ("tests/unit/assignors/test_standbys.py", "tests/unit/assignors/test_rack_standbys.py")
_ASSIGNORS = tuple(
    f"tests/unit/assignors/test_{name}.py"
    for name in (
        "bounds", "high_availability", "kafka_cases", "kafka_cases_parts", "movements", "rack_standbys", "racks", "recorded_plans", "standbys",
        "target", "warmup_slots",
    )
)  # fmt: skip # a table: one row a line


_CONSUMER = ("tests/unit/kafka/test_consumer_core.py", "tests/properties/test_consumer_core.py")
_PRODUCER = ("tests/unit/kafka/test_producer_core.py", "tests/properties/test_producer_core.py")


@attrs.frozen
class Judged:
    tests: tuple[str, ...]
    floor: float | None = None
    """Least share killed, in percent, below which `make mutation` fails; None: reported only."""


MODULES = {
    "assignors/lag_aware/exchanges.py": Judged(_UNEVEN),
    "assignors/lag_aware/uneven.py": Judged(_UNEVEN),
    "statemachine/due.py": Judged(_statemachine("due", "restarts"), 90),
    "statemachine/step_context.py": Judged(_statemachine("step_context", "joins_together", "restarts", "transitions"), 90),
    "statemachine/transitions.py": Judged(_statemachine("transitions", "joins_together", "restarts", "rounds", "absences", "watched_change"), 90),
    "statemachine/member.py": Judged(_SESSION, 99),
    "statemachine/session_state.py": Judged(_SESSION, 99),
    "statemachine/watched_change.py": Judged(_statemachine("watched_change", "watched_change_in_fold", "change_observer"), 90),
    "statemachine/restarts.py": Judged(_MACHINE),
    "statemachine/restart_view.py": Judged(_MACHINE),
    "statemachine/rejoining.py": Judged(_statemachine("rejoining")),
    "statemachine/requested_rounds.py": Judged(_statemachine("rounds", "absences")),
    "statemachine/leader.py": Judged(_MACHINE),
    "statemachine/deadlines.py": Judged(_MACHINE),
    "statemachine/actions.py": Judged(_MACHINE),
    "statemachine/slots.py": Judged(_MACHINE),
    "statemachine/loads.py": Judged(_MACHINE),
    "statemachine/state.py": Judged(_MACHINE),
    "statemachine/round_problem.py": Judged(_statemachine("problem")),
    "statemachine/problem_cache.py": Judged(_MACHINE),
    "statemachine/machine.py": Judged(_statemachine("machine", "fencing", "machine_members", "refused_configuration", "source_lags")),
    "statemachine/snapshots.py": Judged(_statemachine("snapshots", "snapshot_forms")),
    "statemachine/snapshot_forms.py": Judged(_statemachine("snapshot_forms")),
    "statemachine/rejections.py": Judged(_statemachine("rejections")),
    "statemachine/rack_warnings.py": Judged(_statemachine("rack_warnings")),
    "statemachine/published.py": Judged(_PARTITION),
    "statemachine/partition.py": Judged(_PARTITION),
    "statemachine/group_lead.py": Judged(_PARTITION),
    "statemachine/member_silence.py": Judged(_statemachine("silence")),
    "statemachine/ticks.py": Judged(_statemachine("rest", "partition")),
    "assignors/common/target.py": Judged(_ASSIGNORS),
    "assignors/common/movements.py": Judged(_ASSIGNORS),
    "assignors/common/ranking.py": Judged(_RANKING),
    "assignors/common/standbys.py": Judged(_STANDBYS),
    "assignors/common/bounds.py": Judged(_ASSIGNORS),
    "equipoise/member/tasks/commit_schedule.py": Judged(("tests/unit/equipoise/member/test_commit_schedule.py",), 90),
    "equipoise/kafka/consumer/batches.py": Judged(("tests/unit/kafka/test_fetched_batches.py", *_CONSUMER)),
    "equipoise/kafka/consumer/core.py": Judged(_CONSUMER),
    "equipoise/kafka/consumer/fetch_session.py": Judged(_CONSUMER),
    "equipoise/kafka/consumer/read_brokers.py": Judged(_CONSUMER),
    "equipoise/kafka/producer/batch_queues.py": Judged(_PRODUCER),
    "equipoise/kafka/producer/core.py": Judged(_PRODUCER),
    "equipoise/kafka/producer/errors.py": Judged(_PRODUCER),
    "equipoise/kafka/producer/states.py": Judged(_PRODUCER),
    "equipoise/kafka/producer/record_batches.py": Judged(_PRODUCER),
    "equipoise/kafka/producer/transaction_manager.py": Judged(_PRODUCER),
}
