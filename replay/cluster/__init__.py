"""The simulated cluster: deterministic, one event queue, one seed."""

from replay.cluster.cluster import ClusterConfig, MemorySink, SimulatedCluster, Sink
from replay.cluster.network import NetworkSettings
from replay.cluster.process import Exit, Process, ProcessSettings
from replay.cluster.restore import RestoreModel
from replay.cluster.worker import WorkerSettings
from replay.cluster.world import Growth, Ownership, steady

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
