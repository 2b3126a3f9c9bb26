"""The serdes of `equipoise.registry` against the registry at SCHEMA_REGISTRY_URL, whatever runs
there: Karapace, Confluent's or Apicurio's (with /apis/ccompat/v7). Without one, against a server of
its API in this process.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from equipoise.registry import AvroSerde, JsonSchemaSerde, ProtobufSerde, RegistryError, SchemaRegistry
from tests.schema_registry import serving
from tests.unit.equipoise.registry.test_registry_serdes import BAD, JSON_SCHEMA, NEW, OLD, messages

MONEY = 'syntax = "proto3";\npackage t;\nmessage Money {\n  int64 cents = 1;\n}\n'


@pytest.fixture
def url() -> Iterator[str]:
    if named := os.environ.get("SCHEMA_REGISTRY_URL"):
        yield named
    else:
        with serving() as registry:
            yield registry.url


@pytest.fixture
def subject() -> str:
    return f"equipoise-{uuid.uuid4().hex}"


def test_registry_takes_schemas_and_gives_them_to_other_readers(url: str, subject: str) -> None:
    money, _ = messages()
    written: list[tuple[Any, Any, Any]] = [
        (AvroSerde(SchemaRegistry(url), schema=OLD, subject=f"{subject}-avro"), AvroSerde(SchemaRegistry(url)), {"id": 1, "note": "x"}),
        (JsonSchemaSerde(SchemaRegistry(url), schema=JSON_SCHEMA, subject=f"{subject}-json"), JsonSchemaSerde(SchemaRegistry(url)), {"id": 1}),
        (ProtobufSerde(SchemaRegistry(url), money, schema=MONEY, subject=subject), ProtobufSerde(SchemaRegistry(url), money), money(cents=5)),
    ]
    for writer, reader, value in written:
        assert reader.deserialize(writer.serialize(value)) == value


def test_registry_takes_descriptors_of_protobuf_with_what_they_import(url: str, subject: str) -> None:
    money, order = messages()
    writer, reader = ProtobufSerde(SchemaRegistry(url), order, subject=subject), ProtobufSerde(SchemaRegistry(url), order)
    try:
        data = writer.serialize(order(price=money(cents=5)))
    except RegistryError as error:
        assert error.status == 422, "an older registry takes the text alone"  # noqa: PT017
        assert "ProtobufSerde(schema=...)" in str(error)  # noqa: PT017
        return
    assert reader.deserialize(data).price.cents == 5


def test_registry_takes_a_compatible_schema_and_no_other(url: str, subject: str) -> None:
    registry = SchemaRegistry(url)
    old = AvroSerde(registry, schema=OLD, subject=subject).serialize({"id": 1, "note": "x"})
    new = AvroSerde(registry, schema=NEW, subject=subject)
    assert new.deserialize(old) == {"id": 1, "note": "x", "cents": 7}
    assert new.serialize({"id": 1, "note": "x", "cents": 2})[:5] != old[:5]
    with pytest.raises(RegistryError, match="refuses the schema of subject") as caught:
        AvroSerde(registry, schema=BAD | {"fields": [*OLD["fields"], {"name": "other", "type": "long"}]}, subject=subject).serialize({})
    assert caught.value.status == 409
