"""An archive: a Parquet dataset that is a log, partitioned by date. See
`equipoise.log.parquet.log`.
"""
