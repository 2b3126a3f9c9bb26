"""Directives for a whole cluster (`ClusterHarness`).

The cluster runs the group and tasks declared above it. A message takes exactly 2 ms, and only a
fault loses one. Directives that append facts append them to the cluster's log.
"""

from __future__ import annotations

from equipoise.events.errors import FieldError, InputError
from equipoise.events.tasks import TaskId
from equipoise.replay.simulation import (
    ClusterConfig,
    NetworkSettings,
    ProcessSettings,
    RestoreModel,
    SimulatedCluster,
    SimulatedWorkerSettings,
    steady,
)
from equipoise.replay.simulation.worker import ReplayedWorker
from tests.support.scenarios.argument_values import TASKS, WHOLE, YES_NO, member_range, tasks_text
from tests.support.scenarios.cluster_harness import ClusterHarness
from tests.support.scenarios.directives import directive
from tests.support.scenarios.group_harness import GROUP, LOG_ID, GroupHarness
from tests.support.scenarios.parsed_directive import Argument, ParsedDirective
from tests.support.scenarios.scenario_context import Context

DELAY_MS = 2


def _harness(context: Context, parsed: ParsedDirective) -> ClusterHarness:
    if context.cluster_harness is None:
        raise parsed.error("no cluster yet; begin with `cluster`, below `group` and `tasks`")
    return context.cluster_harness


@directive(
    "cluster",
    "",
    "Starts the simulated cluster with the group and tasks declared above, without workers and processes.",
    seed=Argument(WHOLE, "seed of its random choices; 1"),
    records=Argument(WHOLE, "records in each changelog at the start; 20000"),
    writes_per_s=Argument(WHOLE, "records written to each changelog per second; 0"),
    takeover_ms=Argument(WHOLE, "time that a worker needs to read the logs when it starts; 500"),
)
def cluster(context: Context, parsed: ParsedDirective) -> None:
    config, topology = context.config(parsed), context.state.topology
    if topology is None:
        raise parsed.error("no tasks yet; declare them above with `tasks`")
    growth = {
        (topic, partition): steady(records=parsed.get("records", 20_000), records_per_s=parsed.get("writes_per_s", 0))
        for part in topology.subtopologies
        for topic in part.changelog_topics
        for partition in range(part.partitions)
    }
    context.group_harness = GroupHarness()
    context.actors.clear()
    context.cluster_harness = ClusterHarness(
        context,
        ClusterConfig(
            group=GROUP,
            log_id=LOG_ID,
            configured=config,
            topology=topology,
            growth=growth,
            network=NetworkSettings(least_delay_ms=DELAY_MS, most_delay_ms=DELAY_MS),
            worker=SimulatedWorkerSettings(takeover_ms=parsed.get("takeover_ms", 500)),
        ),
        parsed.get("seed", 1),
    )


def _workers(harness: ClusterHarness, parsed: ParsedDirective) -> list[ReplayedWorker]:
    names = parsed.directive.words[1:]
    found = [worker for worker in harness.cluster.workers if worker.name in names] if names else harness.cluster.live_workers()
    if len(found) < max(1, len(names)):
        raise parsed.error(f"no such worker; there are {', '.join(worker.name for worker in harness.cluster.workers) or 'none'}")
    return found


@directive(
    "worker",
    "VERB [WORKER...]",
    "`start`: starts a worker, which takes the group over even if another worker still leads it. "
    "`crash`, `pause`, `resume`: these workers (default: all live ones).",
)
def worker(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context, parsed)
    verb = parsed.directive.words[0]
    if verb == "start":
        context.say(f"{harness.cluster.start_worker().name} starts")
        return
    verbs = {"crash": ReplayedWorker.kill, "pause": ReplayedWorker.pause, "resume": ReplayedWorker.resume}
    if verb not in verbs:
        raise parsed.error(f"worker {verb!r}; write start, {', '.join(verbs)}")
    for each in _workers(harness, parsed):
        verbs[verb](each)


@directive(
    "process",
    "VERB MEMBER...",
    "`start`: starts a process of the member. `kill`, `pause`, `resume`, `leave` (announced), `stay`, `close`, `restart`, "
    "`prove` (a witness proves that it is gone), `wipe` (its disk), "
    "`duplicate` (a second process with the same id), `skip` (its reader loses decisions).",
    capacity=Argument(WHOLE, "start: number of threads; 1"),
    restores_per_s=Argument(WHOLE, "start: restore rate in records per second; 50000"),
    session_timeout_ms=Argument(WHOLE, "start; 10000"),
    lease_margin_ms=Argument(WHOLE, "start; 2000"),
    eager=Argument(YES_NO, "start: see `join`"),
    proven=Argument(YES_NO, "restart: the new process proves its predecessor dead ([M5](protocol.md#m5)); yes"),
    records=Argument(WHOLE, "skip: number of decisions; 1"),
    back_within_ms=Argument(WHOLE, "leave: it will be back, within this time ([M12](protocol.md#m12)); default: it leaves for good"),
    wait_turn=Argument(YES_NO, "leave, with back_within_ms: not while other members restart; yes"),
)
def process(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context, parsed)
    verb, *words = parsed.directive.words
    for member_id in [name for word in words for name in member_range(word)]:
        try:
            _do(harness.cluster, verb, member_id, parsed)
        except (FieldError, InputError) as error:
            raise parsed.error(str(error)) from None


def _do(cluster: SimulatedCluster, verb: str, member_id: str, parsed: ParsedDirective) -> None:
    if verb == "start":
        restore = RestoreModel(records_per_s=parsed.get("restores_per_s", 50_000))
        settings = parsed.given("capacity", "session_timeout_ms", "lease_margin_ms", "eager")
        cluster.start_process(ProcessSettings(member_id=member_id, restore=restore, **settings))
    elif verb == "restart":
        cluster.restart(member_id, proven=parsed.get("proven", True))
    elif verb == "duplicate":
        cluster.duplicate(member_id)
    elif verb == "prove":
        cluster.prove_end(cluster.last_process(member_id))
    elif verb == "wipe":
        cluster.wipe(member_id)
    elif verb == "leave" and parsed.has("back_within_ms"):
        cluster.last_process(member_id).leave_to_restart(parsed.get("back_within_ms", 0), wait_turn=parsed.get("wait_turn", True))
    elif verb == "skip":
        cluster.last_process(member_id).skip_records(parsed.get("records", 1))
    else:
        last = cluster.last_process(member_id)
        verbs = {"kill": last.kill, "pause": last.pause, "resume": last.resume, "leave": last.leave, "stay": last.cancel_leave, "close": last.close}
        if verb not in verbs:
            raise InputError(f"process {verb!r}; write start, restart, prove, duplicate, wipe, skip, {', '.join(verbs)}")
        verbs[verb]()


@directive(
    "run",
    "",
    "Runs the cluster. Facts that cause a decision are shown, the others counted.",
    for_ms=Argument(WHOLE, "simulated time; 1000"),
    until=Argument(WHOLE, "stops once the fact of this number is folded"),
)
def run(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context, parsed)
    if harness.halted is not None:
        raise parsed.error(f"the cluster's group is halted ({harness.halted.code})")
    harness.run(parsed.get("for_ms", 3_600_000 if parsed.has("until") else 1_000), parsed.find("until"))


@directive("cut", "NAME...", "Cuts these workers (as worker-1) or members' processes off from the network.", for_ms=Argument(WHOLE, "duration; 1000"))
def cut(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context, parsed)
    for name in parsed.directive.words:
        known = {each.name for each in harness.cluster.workers}
        harness.cluster.network.cut(name if name in known else harness.cluster.last_process(name).name, parsed.get("for_ms", 1_000))


@directive(
    "broker-failover",
    "",
    "Another broker takes over; its clock may be wrong.",
    down_ms=Argument(WHOLE, "time without any answer; 0"),
    jump_ms=Argument(WHOLE, "offset of its clock from the former broker's; negative: behind; 0"),
)
def broker_failover(context: Context, parsed: ParsedDirective) -> None:
    _harness(context, parsed).cluster.broker.fail_over(down_ms=parsed.get("down_ms", 0), clock_jump_ms=parsed.get("jump_ms", 0))


@directive(
    "published",
    "",
    "Shows the content of the cluster's topics (decisions, duplicates, last checkpoint) "
    "and how many published decisions each worker verified at takeover.",
)
def published(context: Context, parsed: ParsedDirective) -> None:
    cluster = _harness(context, parsed).cluster
    broker = cluster.broker
    checkpoint = broker.checkpoints[-1] if broker.checkpoints else None
    last = "no checkpoint" if checkpoint is None else f"checkpoint at decision {checkpoint.number}"
    context.say(f"{len(broker.published)} decisions, {broker.duplicates} appended twice, {last}")
    for each in cluster.workers:
        number = "not taken over" if each.machine is None else f"at decision {each.machine.state.number}"
        context.say(f"{each.name} {'live' if each.alive else 'dead'}, {number}, found {each.taken_over} published and the same")


@directive("ran", "[TASKS]", "Shows which process ran each task (default: all) and when, in milliseconds of cluster time.")
def ran(context: Context, parsed: ParsedDirective) -> None:
    cluster = _harness(context, parsed).cluster
    try:
        wanted: set[TaskId] = {task for word in parsed.directive.words for task in TASKS.read(word)}
    except InputError as error:
        raise parsed.error(str(error)) from None
    by_owner: dict[tuple[str, int, int, int], list[TaskId]] = {}
    for owned in cluster.world.history(cluster.now_ms):
        if not wanted or owned.task in wanted:
            by_owner.setdefault((owned.process, owned.start_ms, owned.end_ms, owned.token), []).append(owned.task)
    for (name, start_ms, end_ms, token), tasks in sorted(by_owner.items(), key=lambda item: (item[0][1], item[0][0], item[1])):
        until = "now" if end_ms == cluster.now_ms else f"{end_ms}"
        context.say(f"{name} {tasks_text(tasks)} from {start_ms} to {until} token={token}")
