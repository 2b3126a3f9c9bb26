"""Rounds for applications that something else carries out, asked over HTTP (docs/streams.md).

An application of Kafka Streams has an assignor of its own (KIP-924, ``java/streams-assignor``),
which sends the state of the application and gets back who runs what.
"""
