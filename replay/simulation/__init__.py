"""The simulated cluster: deterministic, one event queue, one seed."""

from equipoise.replay.simulation.cluster import ClusterConfig, MemorySink, SimulatedCluster, Sink
from equipoise.replay.simulation.network import NetworkSettings
from equipoise.replay.simulation.process import Exit, Process, ProcessSettings
from equipoise.replay.simulation.restore import RestoreModel
from equipoise.replay.simulation.worker import WorkerSettings
from equipoise.replay.simulation.world import Growth, Ownership, steady

__all__ = [
    "ClusterConfig",
    "Exit",
    "Growth",
    "MemorySink",
    "NetworkSettings",
    "Ownership",
    "Process",
    "ProcessSettings",
    "RestoreModel",
    "SimulatedCluster",
    "Sink",
    "WorkerSettings",
    "steady",
]
