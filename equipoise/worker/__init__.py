"""The deployed worker: leads every group of the log partitions it is given, on a real Kafka.

- `app`: the Faust app that hands out partitions; starts and stops the worker
- `host`: leads one partition: takeover, folding, publishing, ticks, checkpoints (the rules are in
  `equipoise.statemachine.partition`)
- `reading`: reads checkpoints, published decisions and facts of a partition
- `checkpoints`: the compacted topic of checkpoints
- `observer`: end offsets, racks and source lags as facts
- `http`: health, readiness, metrics, and groups as JSON
- `metrics`: what Prometheus scrapes
- `settings`: one declaration for flags, environment and TOML

The way of one fact, from its record in Kafka to the published decision, by file and function:

1. ``equipoise/cli/worker.py`` `worker`: `equipoise worker`
2. ``equipoise/worker/app.py`` `Worker`: a host for each assigned partition
3. ``equipoise/worker/host.py`` `PartitionHost`: reads, folds, publishes
4. ``equipoise/worker/reading.py`` `FactReader`, `next_fact`: the next record
5. ``events/log/kafka/envelope.py`` `fact_row`, `fact_record`: the record as a fact
6. ``events/log/rows.py`` `record_of`
7. ``events/codec.py`` `decode`
8. ``events/facts.py`` `LagReported`, for example
9. ``statemachine/partition.py`` `PartitionLead`: the group of the fact
10. ``statemachine/machine.py`` `GroupMachine`: one step
11. ``statemachine/transitions.py`` `lag_reported`: the fact's effect on the state
12. ``statemachine/actions.py``: the state's operations
13. ``statemachine/leader.py`` `decide`: asks the assignor, if the fact calls for it
14. ``assignors/high_availability/assignor.py`` `HighAvailability`: the plan
15. ``events/decisions.py`` `AssignmentIssued`, `MemberAssigned`: back to `host`, which publishes
"""
