"""The question of a round, read strictly, and the facts that it becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from equipoise.bridge.mapping import ALL_AT_ONCE, answer_of, configuration, facts_of, member_name, names_of
from equipoise.bridge.question import Question, read_question
from equipoise.events.codec import make_record
from equipoise.events.decisions import RoundPlanned
from equipoise.events.errors import FieldError, InputError
from equipoise.events.facts import GroupConfigured, LagReported, LogOpened, MemberJoined, PartitionsObserved, RoundAsked, TopologyDeclared
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.state import GroupState
from tests.support.reference_model.step_checker import StepChecker

P1, P2 = "3f2a9c01-0000-0000-0000-000000000001", "77aa0012-0000-0000-0000-000000000002"


def process(id_: str = P1, name: str = "i1", **other: Any) -> dict[str, Any]:
    return {"id": id_, "consumers": [f"{name}-StreamThread-{n}-consumer-{id_}" for n in (1, 2)], "threads": 2, **other}


def document(*processes: dict[str, Any], tasks: int = 2, round_: str = "r1", records: int = 5_000, **other: Any) -> dict[str, Any]:
    named = [
        {
            "id": f"0_{number}",
            "stateful": True,
            "source": [{"topic": "in", "partition": number, "racks": ["a"]}],
            "changelog": [{"topic": "log", "partition": number}],
            "records": records,
        }
        for number in range(tasks)
    ]
    return {"version": 1, "round": round_, "tasks": named, "processes": list(processes or (process(),)), **other}


def read(content: Any) -> Question:
    return read_question(json.dumps(content).encode())


class Bridge:
    """A group whose rounds are asked; each step is judged."""

    def __init__(self) -> None:
        self.machine = GroupMachine()
        self.checker = StepChecker()
        self.offset = -1
        self.at_ms = 0
        self._append("", LogOpened(log_id="log", partitions=1))

    def _append(self, group: str, fact: Any) -> list[Any]:
        self.offset += 1
        record = make_record(group, self.offset, self.at_ms, fact)
        decisions = self.machine.step(record)
        self.checker(record, decisions, self.machine)
        return [each.decision for each in decisions]

    def ask(self, content: dict[str, Any], passed_ms: int = 0) -> RoundPlanned:
        self.at_ms += passed_ms
        question = read(content)
        for fact in facts_of(question, self.machine.state, passed_ms):
            decided = self._append("orders", fact)
        return next(each for each in decided if isinstance(each, RoundPlanned))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"version": 2}, "$.version: 2 is not 1"),
        ({"round": ""}, "$.round: "),
        ({"round": "x" * 300}, "$.round: a text of 300 characters"),
        ({"more": 1}, "$.more: unknown field"),
        ({"tasks": {}}, "$.tasks: {} is not an array"),
        ({"tasks": [{"id": "0-1", "stateful": True}]}, '$.tasks[0].id: "0-1" is not a task id'),
        ({"tasks": [{"id": "0_0"}]}, "$.tasks[0].stateful: missing"),
        ({"tasks": [{"id": "0_0", "stateful": True}] * 2}, "$.tasks[1]: '0_0' repeats item [0]"),
        ({"processes": []}, "$.processes: 0 processes"),
        ({"processes": [process(), process()]}, "$.processes[1]: "),
        ({"processes": [process(threads=0)]}, "$.processes[0].threads: 0 is not"),
        ({"processes": [process(active=["9_9"])]}, "$.processes[0].active: 9_9 is not one of the tasks"),
        ({"processes": [process(standby=["0_0", "0_0"])]}, "$.processes[0].standby[1]: "),
        ({"processes": [process(lags={"0_0": -1})]}, '$.processes[0].lags["0_0"]: -1 is not'),
        ({"processes": [process(lags={"0_0": 10**30})]}, '$.processes[0].lags["0_0"]: '),
        ({"processes": [process(tags={"zone": 1})]}, "$.processes[0].tags.zone: 1 is not a text"),
    ],
)
def test_question_that_is_wrong_is_refused_with_its_place(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        read({**document(), **change})
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff\xfe", b"null", b'{"version": 1, "version": 1}', b"[" * 100_000])
def test_body_that_is_no_question_is_refused(body: bytes) -> None:
    with pytest.raises(InputError):
        read_question(body)


def test_member_is_named_by_its_client_id_and_its_process() -> None:
    first, static, default = (read(document(process(P1, name))).processes[0] for name in ("orders-i1", "orders", f"orders-{P1}"))
    assert member_name(first) == "orders-i1-3f2a9c01"
    assert member_name(static) == "orders-3f2a9c01"
    assert member_name(default) == P1
    of_static = read(document({**process(), "consumers": [f"shop-1-{P2}", f"shop-2-{P2}"]})).processes[0]
    assert member_name(of_static) == "shop-3f2a9c01"
    assert member_name(read(document({**process(), "consumers": []})).processes[0]) == P1


def test_configuration_takes_the_settings_of_the_application() -> None:
    given = {"acceptable.recovery.lag": 7, "num.standby.replicas": 1, "max.warmup.replicas": 5, "rack.aware.assignment.tags": ["zone"]}
    settings = configuration(read(document(settings=given))).knobs
    assert (settings.acceptable_recovery_lag, settings.num_standbys, settings.max_warmups, settings.rack_aware_tags) == (7, 1, 5, ("zone",))
    assert configuration(read(document(settings={"max.warmup.replicas": 2}))).knobs.max_warmups_per_member == ALL_AT_ONCE
    for wrong in ({"num.standby.replicas": -1}, {"unknown": 1}, {"acceptable.recovery.lag": "many"}):
        with pytest.raises(FieldError, match=r"\$\.settings"):
            configuration(read(document(settings=wrong)))


def test_first_question_declares_everything_and_the_next_one_what_is_new() -> None:
    first = list(facts_of(read(document(process(active=["0_0"], lags={"0_0": -2}))), GroupState(), 0))
    assert [type(fact) for fact in first] == [GroupConfigured, TopologyDeclared, PartitionsObserved, MemberJoined, LagReported, RoundAsked]
    report = first[4]
    assert isinstance(report, LagReported)
    assert (report.held, report.lags) == ((TaskId(0, 0),), {TaskId(0, 0): LagSentinel.ACTIVE})
    bridge = Bridge()
    bridge.ask(document())
    again = list(facts_of(read(document(round_="r2")), bridge.machine.state, 0))
    assert [type(fact) for fact in again] == [LagReported, RoundAsked]
    more = list(facts_of(read(document(tasks=3, round_="r2")), bridge.machine.state, 0))
    assert [type(fact) for fact in more] == [TopologyDeclared, PartitionsObserved, LagReported, RoundAsked]


def test_tasks_with_a_gap_and_names_that_are_taken_are_refused() -> None:
    gap = document()
    gap["tasks"][1]["id"] = "0_2"
    with pytest.raises(FieldError, match="its partitions must be 0 to 1"):
        list(facts_of(read(gap), GroupState(), 0))
    twice = document(process(), process(P1[:-1] + "9"))
    with pytest.raises(FieldError, match=r"give each its own client\.id"):
        names_of(read(twice))


def test_copies_first_then_one_round_hands_all_over() -> None:
    bridge = Bridge()
    assert bridge.ask(document(tasks=4)).members[0].active == tuple(TaskId(0, n) for n in range(4))
    runs = process(active=[f"0_{n}" for n in range(4)], lags={f"0_{n}": -2 for n in range(4)})
    planned = bridge.ask(document(runs, process(P2, "i2"), tasks=4, round_="r2"))
    two = planned.members[1]
    assert (two.member_id, two.active, len(two.warmup), planned.follow_up_ms) == ("i2-77aa0012", (), 2, 5_000)
    copies = [str(task) for task in two.warmup]
    half = process(P2, "i2", standby=copies, lags={copies[0]: 0, copies[1]: 12_000})
    planned = bridge.ask(document(runs, half, tasks=4, round_="r3", records=15_000), passed_ms=5_000)
    assert planned.members[1].active == (), "the other copy is ready soon"
    assert planned.follow_up_ms is not None
    done = process(P2, "i2", standby=copies, lags={copies[0]: 0, copies[1]: 0})
    planned = bridge.ask(document(runs, done, tasks=4, round_="r4"), passed_ms=5_000)
    assert planned.members[1].active == two.warmup
    assert planned.follow_up_ms is None
    answer = answer_of(planned, names_of(read(document(runs, done, tasks=4, round_="r4"))))
    assert answer["processes"][P2] == {"active": copies, "standby": []}


@pytest.mark.parametrize("standbys", [0, 1])
@pytest.mark.parametrize("records", [0, 1, 100])
def test_next_round_for_little_state_is_due_soon_with_and_without_standbys(standbys: int, records: int) -> None:
    bridge, settings = Bridge(), {"num.standby.replicas": standbys, "acceptable.recovery.lag": 10_000}
    bridge.ask(document(records=records, settings=settings))
    runs = process(active=["0_0", "0_1"], lags={"0_0": -2, "0_1": -2})
    planned = bridge.ask(document(runs, process(P2, "i2"), round_="r2", records=records, settings=settings), passed_ms=5_000)
    (moving,) = [move.task for move in planned.moves if move.state == "warming"]
    assert planned.follow_up_ms == 5_000
    copies = {str(task): records for task in (*planned.members[1].standby, *planned.members[1].warmup)}
    has = process(P2, "i2", standby=list(copies), lags=copies)
    planned = bridge.ask(document(runs, has, round_="r3", records=records, settings=settings), passed_ms=5_000)
    assert planned.members[1].active == (moving,)


def test_restore_rate_is_what_the_copies_got_nearer() -> None:
    bridge = Bridge()
    bridge.ask(document())
    bridge.ask(document(process(active=["0_0", "0_1"], lags={"0_0": -2, "0_1": -2}), process(P2, "i2"), round_="r2"))
    warm = next(iter(bridge.machine.state.members["i2-77aa0012"].warmup))
    question = document(process(), process(P2, "i2", standby=[str(warm)], lags={str(warm): 1_000}), round_="r3")
    facts = list(facts_of(read(question), bridge.machine.state, 2_000))
    loads = [fact.load for fact in facts if isinstance(fact, LagReported) and fact.member_id == "i2-77aa0012"]
    assert [load.restored_records_per_s for load in loads if load is not None] == [2_000.0]
