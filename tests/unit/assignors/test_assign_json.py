"""One line of JSON: an example of a problem and plan, all their fields, and
errors that name the JSON path.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from equipoise.assignors import TaskLoad, registry
from equipoise.events.errors import FieldError, InputError
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import LagSentinel, parse_task
from tests.support.assign_json import assign_line, problem_of

INSTALLED = ", ".join(dict.fromkeys(name for name, _ in registry.available()))

DOCUMENTED = """{"assignor": "high_availability",
 "config": {"acceptable_recovery_lag": 10000, "balance_factor": 1, "num_standbys": 1, "max_warmups": 2,
   "rack_aware_strategy": "none", "rack_traffic_cost": 10, "rack_non_overlap_cost": 1, "rack_aware_tags": []},
 "tasks": [{"id": "0_0", "stateful": true, "end_offset": 5000,
            "source": [{"topic": "t", "partition": 0, "racks": ["a", "b"]}], "changelog": [{"topic": "c", "partition": 0, "racks": ["a"]}]}],
 "members": [{"id": "m1", "capacity": 2, "rack": "a", "tags": {"zone": "z1"}, "leaving": false,
              "active": ["0_0"], "standby": [], "lags": {"0_0": "active"}}]}"""


def two_members(**more: Any) -> dict[str, Any]:
    """m1 owns 0_0 and 0_1, m2 is new."""
    return {
        "tasks": [{"id": "0_0", "stateful": True, "end_offset": 50_000}, {"id": "0_1", "stateful": True, "end_offset": 20_000}],
        "members": [{"id": "m1", "active": ["0_0", "0_1"], "lags": {"0_0": "active", "0_1": "active"}}, {"id": "m2"}],
        **more,
    }


def answer(question: dict[str, Any]) -> dict[str, Any]:
    answered: dict[str, Any] = json.loads(assign_line(json.dumps(question)))
    return answered


def test_documented_example():
    name, version, problem = problem_of(DOCUMENTED)
    assert (name, version) == ("high_availability", None)
    assert problem.settings == GroupSettings(num_standbys=1)
    (task,), (member,) = problem.tasks, problem.members
    assert (str(task.id), task.stateful, task.end_offset) == ("0_0", True, 5000)
    assert (task.source[0].topic, task.source[0].partition, task.source[0].racks) == ("t", 0, ("a", "b"))
    assert task.changelog[0].racks == ("a",)
    assert (member.id, member.capacity, member.rack, member.tags, member.leaving) == ("m1", 2, "a", {"zone": "z1"}, False)
    assert member.lags == {parse_task("0_0"): LagSentinel.ACTIVE}
    plan = json.loads(assign_line(DOCUMENTED))
    assert plan["members"] == {"m1": {"active": ["0_0"], "standby": [], "warmup": [], "revoke": []}}
    assert plan["target"] == {"m1": ["0_0"]}


def test_plan_json_has_fixed_key_order():
    line = assign_line(json.dumps(two_members()))
    assert "\n" not in line
    assert line == (
        '{"members":{"m1":{"active":["0_0","0_1"],"standby":[],"warmup":[],"revoke":[]},"m2":{"active":[],"standby":[],"warmup":["0_1"],"revoke":[]}},'
        '"target":{"m1":["0_0"],"m2":["0_1"]},'
        '"movements":[{"task":"0_1","source":"m1","destination":"m2","state":"warming"}],'
        '"probing":true,'
        '"cost":{"moves":1,"moves_lower_bound":1,"restore_records":20000,"cross_rack":0,"imbalance":0,"optimal":true},'
        '"reasons":{"0_1":"m1 has more than its share; m2 has less"},'
        '"unique":true,"imbalance_now":2,"lost_until_ms":{},"revocations":{"times":0,"since_ms":null,"until_ms":0},"memory":{}}'
    )
    assert assign_line(json.dumps(two_members()).encode()) == line


def test_load_balanced_plan_reports_its_balance():
    question = two_members(assignor="load_balanced", memory={"rebalancing": 1}, config={"options": {"load_high_percent": 50}})
    question["tasks"][0]["load"] = {"cpu": 300_000, "records_per_s": 30}
    question["tasks"][1]["load"] = {"cpu": 100_000, "memory": 0, "disk": 7, "records_per_s": 10}
    _, _, problem = problem_of(json.dumps(question))
    assert problem.memory == {"rebalancing": 1}
    assert [task.load for task in problem.tasks] == [TaskLoad(cpu=300_000, records_per_s=30), TaskLoad(cpu=100_000, disk=7, records_per_s=10)]
    assert answer(question)["load"] == {
        "highest_now": 2_000_000,
        "lowest_now": 0,
        "highest": 1_500_000,
        "lowest": 500_000,
        "bound": 1_550_000,
    }
    question["tasks"][0]["load"] = {"cpu": 0.3}
    with pytest.raises(InputError, match=r"\$\.tasks\[0\]\.load\.cpu: 0\.3 is not a whole number"):
        problem_of(json.dumps(question))


def test_order_in_the_problem_does_not_change_the_plan():
    question = two_members()
    turned = {key: list(reversed(value)) for key, value in reversed(question.items())}
    assert assign_line(json.dumps(turned)) == assign_line(json.dumps(question))


def test_waiting_movement_names_its_wait_and_its_reason():
    question = two_members(config={"max_warmups": 1})
    question["members"].append({"id": "m3"})
    question["tasks"].append({"id": "0_2", "stateful": True, "end_offset": 90_000})
    question["members"][0]["active"].append("0_2")
    waiting = [each for each in answer(question)["movements"] if each["state"] == "waiting"]
    assert len(waiting) == 1
    assert (
        answer(question)["reasons"][waiting[0]["task"]]
        == f"waits for a warm-up slot; m1 has more than its share; {waiting[0]['destination']} has less"
    )


def test_problem_json_reads_every_field():
    question = two_members(
        version=1,
        in_flight=[{"task": "0_0", "source": "m1", "destination": "m2", "state": "warming"}],
        blocked=[["0_1", "m2"]],
    )
    question["members"][1].update(
        warmup=["0_0"],
        ready=["0_0"],
        home=["0_0"],
        lags={"0_0": 40_000, "0_1": "unknown"},
        restore_records_per_s=12.5,
        subtopologies={"0": 6},
        rack=None,
        drained=False,
        readiness="word_and_lag",
        ready_lag_records=50_000,
    )
    _, version, problem = problem_of(json.dumps(question))
    member = problem.members[1]
    assert version == 1
    assert member.warmup == (parse_task("0_0"),)
    assert member.ready == member.previously_owned == frozenset(member.warmup)
    assert member.lags[parse_task("0_1")] is LagSentinel.UNKNOWN
    assert (member.restore_records_per_s, member.subtopologies) == (12, {0: 6})
    assert (member.readiness, member.ready_lag_records) == ("word_and_lag", 50_000)
    assert problem.blocked == {(parse_task("0_1"), "m2")}
    assert answer(question)["movements"] == [{"task": "0_0", "source": "m1", "destination": "m2", "state": "revoking"}]


def test_crash_looping_is_read():
    question = two_members()
    question["members"][0]["crash_looping"] = True
    _, _, problem = problem_of(json.dumps(question))
    assert [member.crash_looping for member in problem.members] == [True, False]
    assert {movement["source"] for movement in answer(question)["movements"]} == {"m1"}


def test_active_lag_of_a_member_that_does_not_own_the_task_is_accepted():
    question = two_members()
    question["members"][1]["lags"] = {"0_0": "active"}
    assert answer(question)["members"]["m1"]["active"] == ["0_0", "0_1"]


def test_cross_rack_counts_source_partitions_out_of_the_owners_rack():
    question = two_members()
    question["tasks"][0]["source"] = [
        {"topic": "t", "partition": 0, "racks": ["b"]},
        {"topic": "u", "partition": 0, "racks": ["a"]},
        {"topic": "v", "partition": 0},
    ]
    question["members"][0]["rack"] = "a"
    assert answer(question)["cost"]["cross_rack"] == 1


def broken(path: str, value: Any) -> dict[str, Any]:
    """The small problem with one thing set: ``members.1.lags``."""
    question = two_members()
    *way, last = path.split(".")
    place: Any = question
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place[step]
    if isinstance(place, list):
        place[int(last)] = value
    else:
        place[last] = value
    return question


@pytest.mark.parametrize(
    ("question", "complaint"),
    [
        (
            broken("moves", 1),
            "$.moves: unknown field; known are anew, assignor, blocked, carrier, config, follow_up, in_flight, members, memory, ",
        ),
        (broken("tasks", {}), "$.tasks: {} is not an array"),
        (broken("assignor", "nobody"), f"$.assignor: 'nobody' is not installed; here are {INSTALLED}"),
        (broken("version", 99), "$.version: high_availability has no version 99 here; leave it out for the highest"),
        (broken("config", {"max_warmup": 1}), "$.config.max_warmup: unknown field; known are "),
        (broken("config", {"max_warmups": 0}), "$.config.max_warmups: 0 is not a whole number from 1 to "),
        (broken("config", {"rack_aware_tags": [1]}), "$.config.rack_aware_tags[0]: 1 is not a text"),
        (broken("config", {"rack_aware_strategy": "best"}), "$.config.rack_aware_strategy: 'best' is not one of none, min_cost, balanced_min_cost"),
        (broken("tasks.0.source", [{"topic": "t", "partition": 0, "weight": 1_000_001}]), "$.tasks[0].source[0].weight: 1000001 is over 1,000,000"),
        (broken("config", []), "$.config: [] is not an object"),
        (broken("tasks.0.id", "0-0"), "$.tasks[0].id: '0-0' is not a task id; write <sub-topology>_<partition>, as in 0_3"),
        (broken("tasks.0.id", 3), "$.tasks[0].id: 3 is not a task id"),
        (broken("tasks.1.id", "0_0"), "$.tasks[1]: '0_0' repeats item [0]; name each once"),
        (broken("tasks.0.stateful", "yes"), '$.tasks[0].stateful: "yes" is neither true nor false'),
        (broken("tasks.0.end_offset", -1), "$.tasks[0].end_offset: -1 is not a whole number >= 0"),
        (broken("tasks.0.end_offset", 1.5), "$.tasks[0].end_offset: 1.5 is not a whole number >= 0"),
        (broken("tasks.0.end_offset", 2**63), "$.tasks[0].end_offset: 9223372036854775808 is not a whole number >= 0"),
        (broken("tasks.0.source", [{"topic": "t"}]), "$.tasks[0].source[0].partition: missing; it is required"),
        (broken("tasks.0.size", 7), "$.tasks[0].size: unknown field; known are changelog, end_offset, guest, id, load, lost_since_ms"),
        (broken("members.0", 7), "$.members[0]: 7 is not an object"),
        (broken("members.1.id", ""), '$.members[1].id: "" is not a text of one or more characters'),
        (broken("members.1.id", "m1"), "$.members[1]: 'm1' repeats item [0]; name each once"),
        (broken("members.1.id", "\ud800"), '$.members[1].id: "\\ud800" holds a lone surrogate, which UTF-8 cannot carry'),
        (broken("members.1.capacity", 0), "$.members[1].capacity: 0 is not a whole number >= 1"),
        (broken("members.1.capacity", True), "$.members[1].capacity: true is not a whole number >= 0"),
        (broken("members.1.active", ["0_0"]), "$.members[1].active[0]: 0_0 is active on 'm1' too ($.members[0]); one owner at most"),
        (broken("members.1.active", ["5_5"]), "$.members[1].active[0]: there is no task 5_5 in $.tasks; add it there or leave it out here"),
        (broken("members.1.standby", ["0_0", "0_0"]), "$.members[1].standby[1]: '0_0' repeats item [0]; name each once"),
        (broken("members.0.standby", ["0_0"]), "$.members[0].standby: 0_0 is active here; a member has no copy beside the task itself"),
        (broken("members.1.lags", {"0_0": -5}), '$.members[1].lags["0_0"]: -5 is not a lag; use a number of records >= 0, "active" or "unknown"'),
        (broken("members.1.lags", {"0_0": "hot"}), '$.members[1].lags["0_0"]: "hot" is not a lag'),
        (broken("members.1.lags", {"0_0": False}), '$.members[1].lags["0_0"]: false is not a lag'),
        (broken("members.1.lags", {"zero": 1}), "$.members[1].lags.zero: 'zero' is not a task id"),
        (broken("members.1.lags", []), "$.members[1].lags: [] is not an object of task and lag"),
        (broken("members.1.tags", {"zone": 1}), "$.members[1].tags.zone: 1 is not a text"),
        (broken("members.1.readiness", "lags"), '$.members[1].readiness: "lags" is not one of word_or_lag, lag, word_and_lag'),
        (broken("members.1.ready_lag_records", -1), "$.members[1].ready_lag_records: -1 is not a whole number >= 0"),
        (broken("members.1.restore_records_per_s", -1), "$.members[1].restore_records_per_s: -1 is not a number >= 0"),
        (
            broken("in_flight", [{"task": "0_0", "destination": "m2", "state": "done"}]),
            '$.in_flight[0].state: "done" is not one of waiting, warming, revoking',
        ),
        (
            broken("in_flight", [{"task": "0_0", "destination": "m9", "state": "warming"}]),
            "$.in_flight[0].destination: there is no member 'm9' in $.members",
        ),
        (broken("blocked", [["0_0"]]), '$.blocked[0]: ["0_0"] is not a pair [task, member]'),
    ],
)
def test_unsound_problem_is_refused_with_its_json_path(question: dict[str, Any], complaint: str):
    with pytest.raises(InputError) as caught:
        assign_line(json.dumps(question))
    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("", "$: not JSON"),
        ("{", "$: not JSON"),
        ("[]", "$: [] is not an object"),
        ('{"tasks": []}', "$.members: missing; it is required"),
        ('{"tasks": [], "tasks": [], "members": []}', "$: one object has the key 'tasks' twice; keep one"),
        ('{"tasks": [], "members": [{"id": "m1", "restore_records_per_s": NaN}]}', "$: not JSON (NaN is no JSON number)"),
        (b"\xff\xfe\xfd", "$: not JSON"),
        ("[" * 100_000, "$: nested too deep to be a problem"),
    ],
)
def test_line_that_is_no_problem_is_refused(line: str | bytes, complaint: str):
    with pytest.raises(InputError) as caught:
        assign_line(line)
    assert str(caught.value).startswith(complaint)


@pytest.mark.parametrize(
    ("subtopologies", "problem"),
    [
        ([0], "[0] is not an object of sub-topology and number of partitions"),
        ({"x": 1}, '"x" is not the number of a sub-topology'),
        ({"01": 1}, '"01" is not the number of a sub-topology'),
        ({"0": 0}, "0 is not a whole number >= 1"),
    ],
)
def test_subtopologies_of_a_member_are_numbers_with_numbers_of_partitions(subtopologies: Any, problem: str):
    question = two_members()
    question["members"][0]["subtopologies"] = subtopologies
    with pytest.raises(FieldError, match=re.escape(problem)) as caught:
        problem_of(json.dumps(question))
    assert caught.value.field.startswith("$.members[0].subtopologies")


def lag_question(**config: Any) -> dict[str, Any]:
    """KIP-169's example, by offsets: 100,000 committed up to the beginning, 60,000 after what is
    committed, 50,000 with nothing committed.
    """
    offsets: list[dict[str, int | None]] = [
        {"committed": 0, "end": 100_000},
        {"committed": 40_000, "end": 100_000},
        {"committed": None, "end": 51_000, "beginning": 1_000},
    ]
    tasks = [{"id": f"t0-{number}", "topic": "t0", "partition": number, **each} for number, each in enumerate(offsets)]
    return {"assignor": "lag_aware", "config": {"options": config}, "tasks": tasks, "members": [{"id": "C0"}, {"id": "C1"}]}


def test_lag_is_computed_from_offsets():
    assert [task.lag for task in problem_of(json.dumps(lag_question()))[2].tasks] == [100_000, 60_000, 50_000]
    latest = problem_of(json.dumps(lag_question(auto_offset_reset="latest")))[2]
    assert [task.lag for task in latest.tasks] == [100_000, 60_000, 0], "a reader of the latest has nothing to read where nothing is committed"
    plan = json.loads(assign_line(json.dumps(lag_question())))
    assert {name: member["active"] for name, member in plan["members"].items()} == {"C0": ["t0-0"], "C1": ["t0-1", "t0-2"]}


@pytest.mark.parametrize(
    ("offsets", "complaint"),
    [
        ({"committed": 5}, "$.tasks[0].end: is missing; the lag is the records up to it"),
        ({"committed": 5, "end": 9, "lag": 4}, "$.tasks[0].lag: beginning, end, committed give the lag too; leave one of the two out"),
        ({"end": 9}, "$.tasks[0].beginning: is missing; nothing is committed, and config.options.auto_offset_reset"),
        ({"end": -9, "committed": 0}, "$.tasks[0].end: -9 is not a whole number"),
    ],
)
def test_offsets_without_a_lag_are_refused(offsets: dict[str, Any], complaint: str):
    question = lag_question()
    question["tasks"][0] = {"id": "t0-0", "topic": "t0", "partition": 0, **offsets}
    with pytest.raises(InputError) as caught:
        assign_line(json.dumps(question))
    assert str(caught.value).startswith(complaint)


def test_anew_reassigns_even_topic():
    even: dict[str, Any] = {"members": [{"id": "C0", "active": ["t0-0", "t0-1"]}, {"id": "C1", "active": ["t0-2"]}]}
    assert json.loads(assign_line(json.dumps({**lag_question(), **even})))["movements"] == []
    (moved,) = json.loads(assign_line(json.dumps({**lag_question(), **even, "anew": True})))["movements"]
    assert (moved["task"], moved["source"], moved["destination"]) == ("t0-1", "C0", "C1")
