"""Serdes whose schemas are in a schema registry: Avro, JSON Schema, Protobuf. They need the extra
``equipoise[registry]``.

::

    from equipoise.registry import AvroSerde, SchemaRegistry

    registry = SchemaRegistry("http://registry:8081")
    orders = Source("orders", value_serde=AvroSerde(registry))  # as they were written
    totals = AvroSerde(registry, schema=TOTAL, subject="totals-value")

A record begins with a byte 0 and the number of its schema in 4 bytes, as Confluent's serdes write
it. Schemas are fetched and registered once, with the first record that needs each, by another
thread while the task waits; a registry that does not answer is no error of the record.

- `client`: the registry's HTTP API; `wire`: the first bytes
- `serdes`: the serdes; `protobuf_files`: the messages of a file
"""

from __future__ import annotations

from equipoise.registry.client import RegisteredSchema, RegistryError, SchemaRegistry
from equipoise.registry.serdes import AvroSerde, JsonSchemaSerde, ProtobufSerde

__all__ = ["AvroSerde", "JsonSchemaSerde", "ProtobufSerde", "RegisteredSchema", "RegistryError", "SchemaRegistry"]
