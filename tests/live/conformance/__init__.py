"""Kafka Streams' own integration tests, as published, led by a worker (`make conformance`)."""
