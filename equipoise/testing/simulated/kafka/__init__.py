"""A simulated Kafka: brokers in memory (`cluster`, `coordinators`, `log`) and clients that
implement `equipoise.kafka.client` (`clients`, `consumer`, `producer`).

Time comes from a scheduler and chance from one seed, so the same seed gives the same run. What
clients can see is compared with a real broker by `tests/live/test_simulated_kafka.py`.
"""
