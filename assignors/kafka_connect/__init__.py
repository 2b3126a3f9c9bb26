"""The assignor `kafka_connect`: what Apache Kafka Connect 4 decides
(``IncrementalCooperativeAssignor``: KIP-415), exactly.

The baseline that `cooperative` is compared with, defects included. Ported from its behaviour, none
of its code: held equal, round by round, with the class of the published jar
(`bench/java/connect/ConnectDriver.java`).

::

    a round of Connect's, and what its leader remembers        rounds
    its first protocol, in which all stop (``EagerAssignor``)  eager
    a problem of ours in Connect's terms, and back             assignor
"""

from equipoise.assignors.kafka_connect.assignor import KafkaConnect, KafkaConnect1

__all__ = ["KafkaConnect", "KafkaConnect1"]
