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

docs/architecture.md#following-the-code follows one fact to its decision, file by file.
"""
