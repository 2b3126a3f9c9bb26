"""Simulated groups, so that jobs over many groups can be tried without a Kafka."""
