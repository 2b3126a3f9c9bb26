"""Directives for a whole cluster: the simulated one, with real workers that publish and take over,
and processes that host real members.

It has the group and the tasks of the lines above it. Everything that a worker folds is folded once
more on the scenario's own stage, with its doubles; messages take exactly 2 ms and none is lost but
by a fault. Directives that append facts by hand append them to the cluster's log.
"""

from __future__ import annotations

from collections.abc import Iterable

from equipoise.events.codec import make_record
from equipoise.events.errors import FieldError, GroupHalted, InputError, InvariantBroken
from equipoise.events.facts import Fact, LogOpened
from equipoise.events.records import DecisionRecord, Record
from equipoise.events.tasks import TaskId
from equipoise.replay.simulation import ClusterConfig, NetworkSettings, ProcessSettings, RestoreModel, SimulatedCluster, WorkerSettings, steady
from equipoise.replay.simulation.worker import Worker
from equipoise.scenarios.play import Play
from equipoise.scenarios.registry import directive
from equipoise.scenarios.said import Argument, Said
from equipoise.scenarios.stage import GROUP, LOG_ID, Stage
from equipoise.scenarios.words import TASKS, WHOLE, YES_NO, member_range, tasks_text
from equipoise.statemachine.machine import GroupMachine

DELAY_MS = 2


class _Checksums:
    """A sink that keeps nothing: with one, the cluster's records have checksums."""

    def __init__(self) -> None:
        self.facts = 0

    def append_fact(self, group: str, append_ms: int, event: Fact) -> Record:
        self.facts += 1
        return make_record(group, self.facts - 1, append_ms, event)

    def append_decisions(self, decisions: Iterable[DecisionRecord]) -> None:
        pass


class Arena:
    """The cluster of one scenario. `halted`: why its group stands still."""

    def __init__(self, play: Play, config: ClusterConfig, seed: int) -> None:
        self.play = play
        self.halted: GroupHalted | None = None
        self.quiet = 0
        self.seen = 0
        self.cluster = SimulatedCluster(config, seed=seed, sink=_Checksums(), watcher=self._folded, machine_factory=self._machine)
        play.stage = Stage()
        play.actors.clear()

    def _machine(self, checkpoint: bytes | None) -> GroupMachine:
        load = self.play.stage.build.load
        return GroupMachine(load=load) if checkpoint is None else GroupMachine.restore(checkpoint, load=load)

    def _folded(self, record: Record, decisions: list[DecisionRecord], machine: GroupMachine) -> None:
        if isinstance(record.event, LogOpened):
            return
        play = self.play
        told = len(play.stage.disagreements)
        before = len(play.out)
        play.stage.follow(record, decisions)
        play.tell(record.event, decisions, told, quiet=True)
        self.seen += 1
        self.quiet += len(play.out) == before

    def run(self, for_ms: int, until: int | None) -> None:
        """Goes on for so long, or until the fact of that number has been folded, whichever comes
        first.
        """
        self.seen = self.quiet = 0
        exits = len(self.cluster.exits)
        try:
            end_ms = self.cluster.now_ms + for_ms
            if until is None:
                self.cluster.run_until(end_ms)
            while until is not None and self.play.state.seq < until and self.cluster.now_ms < end_ms and self.cluster.step():
                pass
        except GroupHalted as error:
            self.halted = error
            self.play.say(f"!! halted {error.code}: {error.problem}")
        except InvariantBroken as broken:
            self.play.say(f"!! {broken}")
            self.play.stage.disagreements.append(str(broken))
        for at_ms, process, how in self.cluster.exits[exits:]:
            self.play.say(f"{process} ended at {at_ms} ms: {how.value}")
        self.play.say(f"({self.seen} facts until {self.cluster.now_ms} ms, {self.quiet} decided nothing)")


def _arena(play: Play, said: Said) -> Arena:
    if play.arena is None:
        raise said.error("no cluster yet; begin with `cluster`, below `group` and `tasks`")
    return play.arena


@directive(
    "cluster",
    "",
    "The simulated cluster begins, with the group and tasks declared above. Nobody runs in it yet.",
    seed=Argument(WHOLE, "of its chances; 1"),
    records=Argument(WHOLE, "records in each changelog at the start; 20000"),
    writes_per_s=Argument(WHOLE, "records written to each changelog in a second; 0"),
    takeover_ms=Argument(WHOLE, "from a worker's start to its having read the logs; 500"),
)
def cluster(play: Play, said: Said) -> None:
    config, topology = play.config(said), play.state.topology
    if topology is None:
        raise said.error("no tasks yet; declare them above with `tasks`")
    growth = {
        (topic, partition): steady(records=said.get("records", 20_000), records_per_s=said.get("writes_per_s", 0))
        for part in topology.subtopologies
        for topic in part.changelog_topics
        for partition in range(part.partitions)
    }
    play.arena = Arena(
        play,
        ClusterConfig(
            group=GROUP,
            log_id=LOG_ID,
            configured=config,
            topology=topology,
            growth=growth,
            network=NetworkSettings(least_delay_ms=DELAY_MS, most_delay_ms=DELAY_MS),
            worker=WorkerSettings(takeover_ms=said.get("takeover_ms", 500)),
        ),
        said.get("seed", 1),
    )


def _workers(arena: Arena, said: Said) -> list[Worker]:
    names = said.directive.words[1:]
    found = [worker for worker in arena.cluster.workers if worker.name in names] if names else arena.cluster.live_workers()
    if len(found) < max(1, len(names)):
        raise said.error(f"no such worker; there are {', '.join(worker.name for worker in arena.cluster.workers) or 'none'}")
    return found


@directive(
    "worker",
    "VERB [WORKER...]",
    "`start` a worker: it takes the group over, whoever else may think that it has it. `crash`, `pause`, `resume` some (default: all live).",
)
def worker(play: Play, said: Said) -> None:
    arena = _arena(play, said)
    verb = said.directive.words[0]
    if verb == "start":
        play.say(f"{arena.cluster.start_worker().name} starts")
        return
    verbs = {"crash": Worker.kill, "pause": Worker.pause, "resume": Worker.resume}
    if verb not in verbs:
        raise said.error(f"worker {verb!r}; write start, {', '.join(verbs)}")
    for each in _workers(arena, said):
        verbs[verb](each)


@directive(
    "process",
    "VERB MEMBER...",
    "`start`: a process of that member begins. `kill`, `pause`, `resume`, `leave` (announced), `stay`, `close`, `restart`, `wipe` (its disk), "
    "`duplicate` (a second one with its id), `skip` (its reader loses decisions).",
    capacity=Argument(WHOLE, "start: threads; 1"),
    restores_per_s=Argument(WHOLE, "start: records it restores in a second; 50000"),
    session_timeout_ms=Argument(WHOLE, "start; 10000"),
    lease_margin_ms=Argument(WHOLE, "start; 2000"),
    eager=Argument(YES_NO, "start: see `join`"),
    proven=Argument(YES_NO, "restart: it proves its predecessor dead (PROTOCOL M5); yes"),
    records=Argument(WHOLE, "skip: how many; 1"),
)
def process(play: Play, said: Said) -> None:
    arena = _arena(play, said)
    verb, *words = said.directive.words
    for member_id in [name for word in words for name in member_range(word)]:
        try:
            _do(arena.cluster, verb, member_id, said)
        except (FieldError, InputError) as error:
            raise said.error(str(error)) from None


def _do(cluster: SimulatedCluster, verb: str, member_id: str, said: Said) -> None:
    if verb == "start":
        restore = RestoreModel(records_per_s=said.get("restores_per_s", 50_000))
        settings = said.given("capacity", "session_timeout_ms", "lease_margin_ms", "eager")
        cluster.start_process(ProcessSettings(member_id=member_id, restore=restore, **settings))
    elif verb == "restart":
        cluster.restart(member_id, proven=said.get("proven", True))
    elif verb == "duplicate":
        cluster.duplicate(member_id)
    elif verb == "wipe":
        cluster.wipe(member_id)
    elif verb == "skip":
        cluster.last_process(member_id).skip_records(said.get("records", 1))
    else:
        last = cluster.last_process(member_id)
        verbs = {"kill": last.kill, "pause": last.pause, "resume": last.resume, "leave": last.leave, "stay": last.cancel_leave, "close": last.close}
        if verb not in verbs:
            raise InputError(f"process {verb!r}; write start, restart, duplicate, wipe, skip, {', '.join(verbs)}")
        verbs[verb]()


@directive(
    "run",
    "",
    "The cluster goes on. Facts that decide something are told, the others counted.",
    for_ms=Argument(WHOLE, "how long; 1000"),
    until=Argument(WHOLE, "until the fact of this number was folded"),
)
def run(play: Play, said: Said) -> None:
    arena = _arena(play, said)
    if arena.halted is not None:
        raise said.error(f"the cluster's group is halted ({arena.halted.code})")
    arena.run(said.get("for_ms", 3_600_000 if said.has("until") else 1_000), said.find("until"))


@directive(
    "cut", "NAME...", "Nothing comes through to or from these workers (worker-1) or members' processes.", for_ms=Argument(WHOLE, "how long; 1000")
)
def cut(play: Play, said: Said) -> None:
    arena = _arena(play, said)
    for name in said.directive.words:
        known = {each.name for each in arena.cluster.workers}
        arena.cluster.network.cut(name if name in known else arena.cluster.last_process(name).name, said.get("for_ms", 1_000))


@directive(
    "broker-failover",
    "",
    "Another broker takes over; its clock may be wrong.",
    down_ms=Argument(WHOLE, "nothing is answered for so long; 0"),
    jump_ms=Argument(WHOLE, "its clock is so far ahead of the last one's (below 0: behind); 0"),
)
def broker_failover(play: Play, said: Said) -> None:
    _arena(play, said).cluster.broker.fail_over(down_ms=said.get("down_ms", 0), clock_jump_ms=said.get("jump_ms", 0))


@directive(
    "published",
    "",
    "What the cluster's topics hold: facts, decisions, those appended twice, the last checkpoint; and what each worker has found published.",
)
def published(play: Play, said: Said) -> None:
    cluster = _arena(play, said).cluster
    broker = cluster.broker
    checkpoint = broker.checkpoints[-1] if broker.checkpoints else None
    last = "no checkpoint" if checkpoint is None else f"checkpoint at decision {checkpoint.number}"
    play.say(f"{len(broker.published)} decisions, {broker.duplicates} appended twice, {last}")
    for each in cluster.workers:
        number = "not taken over" if each.machine is None else f"at decision {each.machine.state.number}"
        play.say(f"{each.name} {'live' if each.alive else 'dead'}, {number}, found {each.taken_over} published and the same")


@directive("ran", "[TASKS]", "Who really processed each task (default: all) and when, in milliseconds of the cluster's time.")
def ran(play: Play, said: Said) -> None:
    cluster = _arena(play, said).cluster
    try:
        wanted: set[TaskId] = {task for word in said.directive.words for task in TASKS.read(word)}
    except InputError as error:
        raise said.error(str(error)) from None
    by_owner: dict[tuple[str, int, int, int], list[TaskId]] = {}
    for owned in cluster.world.history(cluster.now_ms):
        if not wanted or owned.task in wanted:
            by_owner.setdefault((owned.process, owned.start_ms, owned.end_ms, owned.token), []).append(owned.task)
    for (name, start_ms, end_ms, token), tasks in sorted(by_owner.items(), key=lambda item: (item[0][1], item[0][0], item[1])):
        until = "now" if end_ms == cluster.now_ms else f"{end_ms}"
        play.say(f"{name} {tasks_text(tasks)} from {start_ms} to {until} token={token}")
