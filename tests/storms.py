"""Storms: small groups in the simulated cluster under every kind of fault, drawn from a seed, and
judged by the simulated world, the validator and the clock.

A storm passes when no invariant broke (of the world: no two processes share a task; of the
validator: 1 to 6 after every fact), no group halted, and the group settled after the faults: every
task runs, the leader wants nothing more, and it stays that way. Its log must be a run of the model
(`tests.model.trace`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import attrs

from equipoise.assignors import AssignmentProblem, Assignor, DelegatingAssignor, Plan, registry
from equipoise.events.errors import EquipoiseError, InvariantBroken
from equipoise.events.facts import GroupConfigured, Subtopology, TopologyDeclared
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.settings import GroupSettings
from equipoise.replay.simulation import (
    ClusterConfig,
    NetworkSettings,
    ProcessSettings,
    ReplayedProcess,
    RestoreModel,
    SimulatedCluster,
    SimulatedWorkerSettings,
    steady,
)
from equipoise.statemachine.machine import GroupMachine
from tests.faults import MOST_PARTITIONS, OPTIONS, Builds, long_id
from tests.model.recording import Recording
from tests.model.trace import Refused
from tests.storm_faults import Fault, plan, random_faults
from tests.storm_faults import restarting as restarts_among
from tests.storm_operators import OPERATOR_FAULTS, Operators, random_operator_faults
from tests.support.reference_model.step_checker import StepChecker

START_MS = 1_000_000_000
SESSION_MS = 10_000
"""The longest session timeout of a storm's members. Each member has its own, and its own lease
margin.
"""
MOST_MEMBERS = 5
CALM_MS = 20_000
STORM_MS = 240_000
LOOK_EVERY_MS = 5_000
QUIET_MS = 60_000
LOST_MS = 60_000
"""How long `cooperative` leaves lost tasks without owner: killed processes return before or after
it.
"""
MOST_SETTLING_MS = 1_800_000
RESTORE_EVERY = 20
"""Every so many steps of a storm a machine is restored and must decide the next fact alike. At each
step it would double the cost, at every fifth it takes a fifth of it.
"""


@attrs.frozen(kw_only=True)
class Setting:
    """One group and its faults, drawn from a seed."""

    seed: int
    config: ClusterConfig
    members: tuple[ProcessSettings, ...]
    faults: tuple[Fault, ...]
    changes: tuple[tuple[int, GroupConfigured], ...] = ()
    """When the group is configured again, and how (docs/protocol.md#d8)."""
    operators: bool = False
    """Whether OPERATOR_FAULTS are among the faults; then `config` is in force again at the end."""
    restarting: bool = False
    """Whether most members that leave say that they will be back (docs/protocol.md#m12)."""
    witnessed: bool = False
    """Whether the ends of most processes are proven, at once or much later (docs/protocol.md#m11).
    """


@attrs.define(kw_only=True)
class StormOutcome:
    """How a storm went. `error` None: it passed."""

    setting: Setting
    cluster: SimulatedCluster
    facts: int
    steps: int
    settled_ms: int | None
    """From the end of the faults until nothing was left to do, in ms."""
    error: EquipoiseError | None

    def __str__(self) -> str:
        settled = "" if self.settled_ms is None else f", settled after {self.settled_ms / 1_000:.0f} s"
        return f"seed {self.setting.seed}: {self.facts} facts, {self.steps} steps{settled}" + (f": {self.error}" if self.error else "")


def draw(
    seed: int,
    assignor: str = "high_availability",
    *,
    switching: bool = False,
    operators: bool = False,
    witnessed: bool = False,
    restarting: bool = False,
) -> Setting:
    """A group of 1 to MOST_MEMBERS members with 1 to 12 stateful tasks, led by `assignor`, and its
    faults.

    `switching`: now and then another assignor leads, each time with other settings, whatever is
    under way. `operators`: operators, upgrades and hostile senders cause faults too, and some
    groups have ids of 200 characters. `witnessed`, `restarting`: see `Setting`.
    """
    random = Random(f"setting {seed}")
    stateful, stateless = random.randint(1, 12), random.choice((0, 0, 3))
    leader = registry.latest(assignor)
    rate = random.choice((0, 50, 500))
    settings = GroupSettings(
        acceptable_recovery_lag=random.choice((200 if rate else 0, 1_000, 10_000)),  # a copy of a growing changelog is never quite up to date
        acceptable_recovery_ms=Random(f"recovery {seed}").choice((0, 0, 300, 2_000)),
        balance_factor=random.choice((1, 1, 2)),
        num_standbys=random.choice((0, 0, 1, 2)),
        max_warmups=random.randint(1, 3),
        probing_interval_ms=random.choice((10_000, 60_000)),
        initial_delay_ms=random.choice((0, 3_000)),
        revocation_timeout_ms=random.choice((5_000, 15_000, 60_000)),
        warmup_stall_ms=random.choice((10_000, 60_000)),
        drain_timeout_ms=random.choice((0, 10_000, 60_000)),
        checkpoint_every_records=random.choice((0, 50, 200)),
        options={"scheduled_delay_ms": LOST_MS} if assignor == "cooperative" else {},
    )
    parts = [Subtopology(subtopology=0, partitions=stateful, stateful=True, source_topics=("in",), changelog_topics=("log",))]
    if stateless:
        parts.append(Subtopology(subtopology=1, partitions=stateless, stateful=False, source_topics=("other",)))
    network = NetworkSettings(
        most_delay_ms=random.choice((2, 20, 200)),
        loss_per_million=random.choice((0, 2_000, 20_000)),
        report_loss_per_million=random.choice((0, 5_000, 100_000)),
        resend_after_ms=random.choice((500, 3_000, 30_000)),
    )
    config = ClusterConfig(
        log_id=f"storm-{seed}",
        configured=GroupConfigured(assignor=leader.name, behaviour_version=leader.version, solver=leader.solver, knobs=settings),
        topology=TopologyDeclared(epoch=1, subtopologies=tuple(parts)),
        growth={
            ("log", partition): steady(start_ms=START_MS, records=random.choice((0, 5_000, 50_000)), records_per_s=rate)
            for partition in range(stateful)
        },
        start_ms=START_MS,
        network=network,
        worker=SimulatedWorkerSettings(observe_ms=random.choice((5_000, 30_000))),
    )
    sessions = Random(f"sessions {seed}")
    timeouts = [sessions.choice((6_000, 8_000, SESSION_MS)) for _ in range(MOST_MEMBERS)]
    margins = [sessions.choice((1_000, 1_000, 3_000)) for _ in range(MOST_MEMBERS)]  # the least is max_step_ms: one failover within a session
    members = tuple(
        ProcessSettings(
            member_id=f"m{index}",
            capacity=random.choice((1, 1, 2)),
            session_timeout_ms=timeouts[index],
            lease_margin_ms=margins[index],
            heartbeat_interval_ms=min(3_000, (timeouts[index] - margins[index]) // 2),
            topology_epoch=1,
            # Restoring is faster than writing, even with all copies on one member (invariant 7).
            restore=RestoreModel(records_per_s=max(4 * rate * stateful, random.choice((5_000, 20_000, 100_000))), sequential=random.random() < 0.5),
            close_ms=random.choice((10, 500, 3_000)),
            start_ms=random.choice((100, 1_000)),
            reports_load=True,
        )
        for index in range(random.randint(1, MOST_MEMBERS))
    )
    faults = random_faults(
        seed,
        members=tuple(each.member_id for each in members),
        from_ms=START_MS + CALM_MS,
        until_ms=START_MS + CALM_MS + STORM_MS,
        every_ms=random.choice((4_000, 10_000)),
        session_timeout_ms=SESSION_MS,
    )
    members = tuple(attrs.evolve(each, eager=random.random() < 0.15) for each in members)
    ready = Random(f"limits {seed}")
    members = tuple(
        attrs.evolve(each, ready_lag_records=ready.choice((None, None, None, 5_000)), prepare_ms=ready.choice((None, None, 0, 4_000)))
        for each in members
    )
    changes = tuple(_changes(seed, config.configured)) if switching else ()
    faults = restarts_among(seed, faults) if restarting else faults
    setting = Setting(seed=seed, config=config, members=members, faults=tuple(faults), changes=changes, witnessed=witnessed, restarting=restarting)
    return _with_operators(setting) if operators else setting


def _with_operators(setting: Setting) -> Setting:
    seed = setting.seed
    random = Random(f"with operators {seed}")
    names = {each.member_id: long_id(each.member_id) if seed % 3 == 0 else each.member_id for each in setting.members}
    faults = [attrs.evolve(fault, member_id=names.get(fault.member_id, "")) for fault in setting.faults]
    from_ms = START_MS + CALM_MS
    faults += random_operator_faults(
        seed, members=tuple(names.values()), from_ms=from_ms, until_ms=from_ms + STORM_MS, every_ms=random.choice((6_000, 15_000))
    )
    growth = setting.config.growth["log", 0]
    grown = {("log", partition): growth for partition in range(MOST_PARTITIONS)}
    least_rate = 4 * MOST_PARTITIONS * max(growth.at(START_MS + 1_000) - growth.at(START_MS) for growth in setting.config.growth.values())
    return attrs.evolve(
        setting,
        config=attrs.evolve(setting.config, growth={**grown, **setting.config.growth}),
        members=tuple(
            attrs.evolve(
                each,
                member_id=names[each.member_id],
                restore=attrs.evolve(each.restore, records_per_s=max(each.restore.records_per_s, least_rate)),
            )
            for each in setting.members
        ),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_ms)),
        operators=True,
    )


def _changes(seed: int, before: GroupConfigured) -> Iterator[tuple[int, GroupConfigured]]:
    random = Random(f"changes {seed}")
    names = sorted({name for name, _ in registry.available()})
    at_ms = START_MS
    while (at_ms := at_ms + random.randint(1, 30_000)) < START_MS + CALM_MS + STORM_MS:
        leader = registry.latest(random.choice(names))
        settings = attrs.evolve(
            before.knobs,
            num_standbys=random.choice((0, 0, 1, 2)),
            max_warmups=random.randint(1, 3),
            max_warmups_per_member=random.randint(1, 3),
            balance_factor=random.choice((1, 1, 2)),
            options=random.choice(OPTIONS.get(leader.name, ({},))),
        )
        yield at_ms, GroupConfigured(assignor=leader.name, behaviour_version=leader.version, solver=leader.solver, knobs=settings)


class Answers:
    """The plans of a storm's assignors, so that a worker that takes the group over need not have
    them computed again. A `StepChecker` has every RESTORE_EVERY-th computed again, and compares.
    """

    def __init__(self) -> None:
        self._assignors: dict[tuple[str, int], _Remembering] = {}

    def load(self, name: str, version: int) -> Assignor:
        found = self._assignors.get((name, version))
        return self._assignors.setdefault((name, version), _Remembering(registry.load(name, version))) if found is None else found

    def machine(self, checkpoint: bytes | None) -> GroupMachine:
        return GroupMachine(load=self.load) if checkpoint is None else GroupMachine.restore(checkpoint, load=self.load)


class _Remembering(DelegatingAssignor):
    def __init__(self, assignor: Assignor) -> None:
        super().__init__(assignor)
        self._plans: dict[int, list[tuple[AssignmentProblem, Plan]]] = {}
        """Group time -> problems of that time, with what the state may change later copied."""

    def assign(self, problem: AssignmentProblem) -> Plan:
        known = self._plans.setdefault(problem.now_ms, [])
        for asked, answer in known:
            if asked == problem:
                return answer
        members = tuple(attrs.evolve(member, lags=dict(member.lags)) for member in problem.members)
        copied = attrs.evolve(problem, members=members, memory=dict(problem.memory))
        found = self.wrapped.assign(problem)
        known.append((copied, found))
        return found


Judge = Callable[[FactRecord, list[DecisionRecord], GroupMachine], None]


def run_storm(setting: Setting, *, judges: Sequence[Judge] | None = None, **options: Any) -> StormOutcome:
    """Runs a storm to its end, or to the first error.

    `judges` get every fact with its decisions and the machine; None: a `StepChecker`, and one of
    the storm's tasks must be a run of the model. `options` go to the cluster: broken sessions or
    machines, which a storm must find.
    """
    if judges is not None:
        return _run(setting, judges, options)
    recording = Recording()
    with recording.on():
        outcome = _run(setting, [StepChecker(whole_every=100, restore_every=RESTORE_EVERY), recording], options)
    if outcome.error is None:
        try:
            recording.follow(which=setting.seed)
        except Refused as error:
            outcome.error = error
    return outcome


def _run(setting: Setting, judges: Sequence[Judge], options: dict[str, Any]) -> StormOutcome:
    def watch(record: FactRecord, decisions: list[DecisionRecord], machine: GroupMachine) -> None:
        for judge in judges:
            judge(record, decisions, machine)

    builds = Builds()
    if "machine_factory" not in options:
        options = {"machine_factory": Answers().machine, **options}
    if setting.operators:
        options = {"session_factory": builds, **options}
    witness = Random(f"witness {setting.seed}")

    def ended(process: ReplayedProcess) -> None:
        for after_ms in witness.choice(((), (50,), (50, 400), (witness.randint(1, 30_000),))) if setting.witnessed else ():
            cluster.engine.after(after_ms, cluster.prove_end, process)

    cluster = SimulatedCluster(setting.config, seed=setting.seed, watcher=watch, ended=ended, **options)
    operators = Operators(cluster, builds, most_session_ms=SESSION_MS, least_margin_ms=setting.config.configured.knobs.max_step_ms)
    outcome = StormOutcome(setting=setting, cluster=cluster, facts=0, steps=0, settled_ms=None, error=None)
    try:
        cluster.start_worker()
        for each in setting.members:
            cluster.start_process(each)
        for at_ms, changed in setting.changes:
            cluster.engine.at(at_ms, cluster.append, changed)
        heal_ms = START_MS + CALM_MS + STORM_MS
        strikes = dict.fromkeys(OPERATOR_FAULTS, operators.strike)
        plan(cluster, list(setting.faults), members=tuple(each.member_id for each in setting.members), heal_ms=heal_ms, strikes=strikes)
        if setting.operators:
            cluster.engine.at(heal_ms, operators.heal, setting.config.configured)
        cluster.run_until(heal_ms)
        outcome.settled_ms = _settle(cluster, heal_ms) - heal_ms
    except EquipoiseError as error:
        outcome.error = error
    outcome.facts, outcome.steps = cluster.folded, cluster.engine.steps
    return outcome


def unsettled(cluster: SimulatedCluster) -> str:
    """What is still to be done; "": nothing."""
    state = cluster.machine.state
    owners = cluster.world.owners(cluster.now_ms)
    idle = [str(task) for task in sorted(state.tasks()) if task not in owners]
    if idle:
        return f"nobody runs {', '.join(idle)}"
    if state.owner != owners:
        return "the leader believes in other owners than there are"
    looping = sorted(filter(state.is_crash_looping, state.members))
    if looping:
        return f"{', '.join(looping)} are in back-off after crashes"
    if state.verdict is None or state.verdict[0] != "balanced":
        return f"the verdict is {state.verdict}"
    moving = sorted(member.member_id for member in state.members.values() if member.revoking or member.warmup or member.leaving)
    if moving:
        return f"{', '.join(moving)} still revoke, warm up or leave"
    return f"{', '.join(sorted(state.restarts))} restart" if state.restarts else ""


def _never_settles(cluster: SimulatedCluster) -> bool:
    """Kafka's assignor gives each task the same place every time, and an eager member whose
    changelogs grow may be behind in a task that it has given up for a moment. That task then goes
    to a standby, and is sent for again at the next probing (docs/assignors.md).
    """
    state = cluster.machine.state
    assert state.config is not None, "a storm's group is configured"
    return state.config.assignor == "kafka_streams" and any(member.eager for member in state.members.values())


def _check_all_run(cluster: SimulatedCluster) -> None:
    """Each task runs at some moment of the next QUIET_MS. Raises InvariantBroken 7."""
    idle = set(cluster.machine.state.tasks())
    end_ms = cluster.now_ms + QUIET_MS
    while cluster.now_ms < end_ms:
        cluster.run_for(LOOK_EVERY_MS)
        idle -= cluster.world.owners(cluster.now_ms).keys()
    if idle:
        raise InvariantBroken(7, f"nobody runs {', '.join(map(str, sorted(idle)))} for {QUIET_MS / 1_000:.0f} s")


def _settle(cluster: SimulatedCluster, heal_ms: int) -> int:
    """Lets the group come to rest, and returns when it did. At rest: nothing is left to do, and
    there was no round for QUIET_MS (invariant 7: no thrash).
    """
    generation, since_ms = cluster.machine.state.generation, cluster.now_ms
    while (undone := unsettled(cluster)) or cluster.now_ms - since_ms < QUIET_MS:
        if cluster.now_ms > heal_ms + MOST_SETTLING_MS:
            if _never_settles(cluster):
                _check_all_run(cluster)
                return since_ms
            raise InvariantBroken(7, f"not at rest {MOST_SETTLING_MS / 1_000:.0f} s after the last fault: {undone or 'one round after the other'}")
        cluster.run_for(LOOK_EVERY_MS)
        if cluster.machine.state.generation != generation:
            generation, since_ms = cluster.machine.state.generation, cluster.now_ms
    return since_ms
