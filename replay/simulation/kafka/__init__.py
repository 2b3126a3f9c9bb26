"""A simulated Kafka Streams group: Kafka's coordinator, Streams' threads, Kafka's assignor; world,
disks and restores are those of our own members.

What is modelled is the protocol ``classic`` of Apache Kafka 4 with Streams' cooperative hand-over
(KIP-429) and KIP-441's probing; see `KafkaProtocol` for each behaviour and where it comes from.
"""

from equipoise.replay.simulation.kafka.group import KafkaGroup
from equipoise.replay.simulation.kafka.instance import InstanceSettings, KafkaStreamsInstance
from equipoise.replay.simulation.kafka.protocol import KafkaProtocol

__all__ = ["InstanceSettings", "KafkaGroup", "KafkaProtocol", "KafkaStreamsInstance"]
