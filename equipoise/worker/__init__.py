"""The deployed worker: leads every group of the partitions it is given, on a real Kafka.

==============
==========================================================================================================
`settings`      one declaration for flags, environment and TOML `host`          one partition: taken
over, folded, published, ticked, checkpointed (the rules: `equipoise.statemachine.partition`)
`checkpoints`   the compacted topic of states `observer`      end offsets and racks as facts `app`
the Faust app that says which partitions are ours `http`          health, readiness, metrics, a
group's state as JSON `metrics`       what is counted, by the naming conventions of Prometheus
==============
==========================================================================================================
"""
