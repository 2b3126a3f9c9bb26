"""The assignor `kafka_streams`: exactly what Apache Kafka Streams 4 decides
(``HighAvailabilityTaskAssignor``: KIP-441, KIP-708, KIP-925).

It is the baseline of every comparison, defects included. It reimplements Kafka's behaviour without
its code, and tests hold it equal, case by case, to the class of the published jar (`bench/java`).

::

    active tasks in round-robin order, then evened out       actives
    the same with less traffic across racks                  racks, graph
    standbys, spread over client tags                        standbys
    interim owners until the new owner is caught up          movements
    stateless tasks to the least loaded client               actives
    all steps, in Kafka's order                              assign
    our problem in Kafka's terms, and Kafka's answer         assignor
    parts of the Java runtime                                java, hash_map, common.java_order
"""

from equipoise.assignors.kafka_streams.assignor import KafkaStreams

__all__ = ["KafkaStreams"]
