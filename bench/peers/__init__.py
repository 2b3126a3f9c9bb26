"""Peers side by side on one broker: the same stateful application led by equipoise, by Kafka
Streams, by Faust, and by a plain consumer group.

Everything is measured from the outside, the same way for all: a feeder writes records to each
partition at a steady rate, the application answers each with a record of its own, and what counts
are the broker's append times of both (`bench.peers.waits` has the definitions).

    python -m bench.peers --only equipoise,faust --tasks 12 --state-mb 20
"""
