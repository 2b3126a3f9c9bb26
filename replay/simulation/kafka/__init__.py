"""A simulated Kafka Streams group: Kafka's coordinator, Streams' threads and Kafka's assignor, on
the world, disks and restores of the simulated cluster.

It models the protocol ``classic`` of Apache Kafka 4 with Streams' cooperative hand-over (KIP-429)
and KIP-441's probing; `KafkaProtocol` names the source of each behaviour.
"""

from equipoise.replay.simulation.kafka.instance import InstanceSettings, KafkaStreamsInstance
from equipoise.replay.simulation.kafka.protocol import KafkaProtocol
from equipoise.replay.simulation.kafka.streams_group import KafkaGroup

__all__ = ["InstanceSettings", "KafkaGroup", "KafkaProtocol", "KafkaStreamsInstance"]
