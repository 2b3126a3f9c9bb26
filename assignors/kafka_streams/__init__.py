"""The assignor `kafka_streams`: what Apache Kafka Streams 4 decides
(``HighAvailabilityTaskAssignor``: KIP-441, KIP-708, KIP-925), exactly.

The baseline of every comparison, defects included. Ported from its behaviour, none of its code:
held equal, case by case, with the class of the published jar (`bench/java`).

::

    active tasks dealt out in turn and evened out            actives
    the same with less traffic across racks                  racks, graph
    standbys, spread over client tags                        standbys
    who runs a task until its new owner is caught up         movements
    stateless tasks to whoever has least                     actives
    the whole, in Kafka's order                              assign
    a problem of ours in Kafka's terms, and back             assignor
    what it takes of the Java runtime                        java, hash_map, common.java_order
"""

from equipoise.assignors.kafka_streams.assignor import KafkaStreams

__all__ = ["KafkaStreams"]
