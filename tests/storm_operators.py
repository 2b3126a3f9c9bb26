"""How the simulated cluster carries out the faults of `tests.faults`: operators change the group's
configuration, its topology and its processes; hostile senders write to its log.
"""

from __future__ import annotations

from random import Random

import attrs

from equipoise.events.facts import AssignmentObserved, DealRequested, Fact, GroupConfigured, TopologyDeclared
from equipoise.replay.simulation.member_process import ProcessSettings, ReplayedProcess
from equipoise.replay.simulation.simulated_cluster import SimulatedCluster
from tests import faults
from tests.storm_faults import Fault

OPERATOR_FAULTS = (
    "setting",
    "setting",
    "assignor",
    "led_by",
    "led_by_beside_members",
    "grown",
    "renumbered",
    "redeployed",
    "redeployed",
    "hostile",
    "giant",
    "stranger",
    "deal",
)
"""setting: one is raised or lowered, and set back in every other case. led_by: all members stop,
something else leads for a while, then equipoise again; led_by_beside_members: nobody stops, so it
changes nothing. grown, renumbered: the next topology epoch, to which the members are restarted one
by one. redeployed: a member is restarted with another session, margin, capacity or build. deal: an
operator asks for a new deal.
"""

OF_MEMBERS = frozenset({"redeployed"})
LEAST_STEP_MS = 200
"""Least `max_step_ms` in a storm: ticks are so far apart, and fill the log."""
LOOK_MS = 5_000


def random_operator_faults(seed: int, *, members: tuple[str, ...], from_ms: int, until_ms: int, every_ms: int) -> list[Fault]:
    """Returns a plan of OPERATOR_FAULTS, `every_ms` apart on average, all over by `until_ms`."""
    random = Random(f"operators {seed}")
    planned: list[Fault] = []
    at_ms = from_ms
    while True:
        at_ms += random.randint(1, 2 * every_ms)
        kind = random.choice(OPERATOR_FAULTS)
        lasts_ms = random.randint(1_000, 20_000)
        if at_ms + lasts_ms > until_ms:
            return planned
        planned.append(Fault(at_ms, kind, random.choice(members) if kind in OF_MEMBERS else "", lasts_ms, random.randrange(10_000)))


class Operators:
    """Strikes a cluster with OPERATOR_FAULTS. In the end the group is configured as in the
    beginning, and all members run its newest topology.
    """

    def __init__(self, cluster: SimulatedCluster, builds: faults.Builds, *, most_session_ms: int, least_margin_ms: int) -> None:
        self._cluster = cluster
        self._builds = builds
        self._most_session_ms = most_session_ms
        self._least_margin_ms = least_margin_ms
        self._strangers = 1_000_000
        self._topology = cluster.config.topology

    @property
    def _config(self) -> GroupConfigured:
        config = self._cluster.machine.state.config
        return self._cluster.config.configured if config is None else config

    def _append(self, *events: Fact) -> None:
        for event in events:
            self._cluster.append(event)

    def strike(self, fault: Fault) -> None:
        cluster, after = self._cluster, self._cluster.engine.after
        if not any(worker.machine is not None for worker in cluster.workers):
            return
        if fault.kind == "setting":
            changed = faults.with_setting(self._config, fault.size, least_step_ms=LEAST_STEP_MS)
            self._append(changed)
            if fault.size // len(faults.SETTINGS) % 2:
                after(fault.lasts_ms, self._set_back, faults.SETTINGS[fault.size % len(faults.SETTINGS)][0])
        elif fault.kind == "assignor":
            self._append(faults.with_assignor(self._config, fault.size))
        elif fault.kind == "led_by":
            for process in cluster.live_processes():
                process.close()
            after(fault.lasts_ms // 2, self._hand_to_another)
            after(fault.lasts_ms, self._take_back)
        elif fault.kind == "led_by_beside_members":
            if any(process.running for process in cluster.live_processes()):
                self._append(faults.with_other_leader(self._config))
        elif fault.kind in ("grown", "renumbered"):
            self._declare((faults.grown if fault.kind == "grown" else faults.renumbered)(self._topology, fault.size))
            for index, member_id in enumerate(sorted({process.member_id for process in cluster.processes})):
                after(1 + index * fault.lasts_ms // 5, self._to_newest, member_id, fault.size % 2 == 0)
        elif fault.kind == "redeployed":
            self._redeploy(fault)
        elif fault.kind == "hostile":
            self._append(faults.hostile(fault.size, cluster.config.group))
        elif fault.kind == "giant":
            self._append(faults.giant(fault.size))
        elif fault.kind == "stranger":
            self._strangers += 1
            self._append(faults.stranger(self._strangers + fault.size, f"stranger {self._strangers}"))
        elif fault.kind == "deal":
            self._append(DealRequested())

    def heal(self, config: GroupConfigured) -> None:
        """Sets the group back to `config` and all members to the newest topology, from now on
        whenever something differs.
        """
        state = self._cluster.machine.state
        if state.config != config:
            self._take_back()
            self._append(config)
        behind = [process for process in self._cluster.live_processes() if process.settings.topology_epoch != self._topology.epoch]
        if behind:
            self._to_newest(behind[0].member_id, True)
        self._cluster.engine.after(LOOK_MS, self.heal, config)

    def _set_back(self, name: str) -> None:
        value = getattr(self._cluster.config.configured.knobs, name)
        config = self._config
        self._append(attrs.evolve(config, knobs=attrs.evolve(config.knobs, **{name: value})))

    def _hand_to_another(self) -> None:
        if self._config.led_by == "equipoise":
            self._append(faults.with_other_leader(self._config))

    def _take_back(self) -> None:
        """The other leader ends with a generation without members."""
        state = self._cluster.machine.state
        if state.config is not None and state.config.led_by == "external":
            self._append(AssignmentObserved(generation=state.generation + 100, members=()), faults.with_other_leader(state.config))

    def _declare(self, topology: TopologyDeclared) -> None:
        self._topology = topology
        self._append(topology)

    def _to_newest(self, member_id: str, orderly: bool) -> None:
        settings = self._cluster.last_process(member_id).settings
        self._restart(settings, orderly=orderly, older=member_id in self._builds.older)

    def _redeploy(self, fault: Fault) -> None:
        which = fault.size
        session_ms, margin_ms = faults.redeployed_settings(which, self._most_session_ms, least_margin_ms=self._least_margin_ms)
        last = self._cluster.last_process(fault.member_id).settings
        older = which // 9 % 3 == 0
        settings = attrs.evolve(
            last,
            session_timeout_ms=session_ms,
            lease_margin_ms=margin_ms,
            heartbeat_interval_ms=min(3_000, (session_ms - margin_ms) // 2),
            capacity=1 + which // 27 % 3,
            prepare_ms=None if older else last.prepare_ms,
            ready_lag_records=None if older else last.ready_lag_records,
        )
        self._restart(settings, orderly=which % 2 == 0, older=older)

    def _restart(self, settings: ProcessSettings, *, orderly: bool, older: bool) -> None:
        """Ends the process of a member, in order or by force, and starts it with the newest
        topology.
        """
        process = self._cluster.last_process(settings.member_id)
        if process.alive:
            process.resume()
            if orderly:
                process.close()
            else:
                process.kill()
        self._start_when_gone(process, settings, older)

    def _start_when_gone(self, process: ReplayedProcess, settings: ProcessSettings, older: bool) -> None:
        if process.alive:
            self._cluster.engine.after(1_000, self._start_when_gone, process, settings, older)
            return
        last = self._cluster.last_process(settings.member_id)
        last.kill()  # somebody may have started it meanwhile, as it was
        (self._builds.older.add if older else self._builds.older.discard)(settings.member_id)
        self._cluster.start_process(attrs.evolve(settings, topology_epoch=self._topology.epoch), proven_dead=last.incarnation)
