"""The simulated cluster: a broker, workers, members and a network, driven by one event queue and
one seed.
"""

from equipoise.replay.simulation.member_process import Exit, ProcessSettings, ReplayedProcess
from equipoise.replay.simulation.process_network import NetworkSettings
from equipoise.replay.simulation.restored_copies import RestoreModel
from equipoise.replay.simulation.simulated_cluster import ClusterConfig, MemorySink, SimulatedCluster, Sink
from equipoise.replay.simulation.worker import SimulatedWorkerSettings
from equipoise.replay.simulation.world import ChangelogGrowth, Ownership, steady

__all__ = [
    "ChangelogGrowth",
    "ClusterConfig",
    "Exit",
    "MemorySink",
    "NetworkSettings",
    "Ownership",
    "ProcessSettings",
    "ReplayedProcess",
    "RestoreModel",
    "SimulatedCluster",
    "SimulatedWorkerSettings",
    "Sink",
    "steady",
]
