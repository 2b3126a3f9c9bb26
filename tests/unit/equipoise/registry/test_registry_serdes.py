"""Serdes with a schema registry: the bytes, schemas that change, and what is said when it fails."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import attrs
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]  # it has no types
from hypothesis import given
from hypothesis import strategies as st

from equipoise import BytesSerde, ErrorPolicy, Record, TaskContext
from equipoise.events.errors import FieldError, InputError
from equipoise.member.tasks.serdes import SerdeUnavailableError
from equipoise.registry import AvroSerde, JsonSchemaSerde, ProtobufSerde, RegistryError, SchemaRegistry
from equipoise.registry.protobuf_files import names_at
from equipoise.registry.serdes import packed_path, unpacked_path
from equipoise.testing import TaskDriver
from tests.schema_registry import RegistryServer, serving

OLD: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string"}]}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "cents", "type": "long", "default": 7}]}
BAD = {**OLD, "fields": [*OLD["fields"], {"name": "cents", "type": "long"}]}
JSON_SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


@attrs.frozen
class Order:
    id: int
    note: str


@dataclass
class Numbered:
    id: int


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with serving() as registry:
        yield registry


def test_avro_is_written_as_other_clients_read_it(server: RegistryServer) -> None:
    serde = AvroSerde(SchemaRegistry(server.url), schema=OLD, subject="orders-value")
    server.register("other", "AVRO", {"type": "string"})
    data = serde.serialize({"id": 3, "note": "x"})
    assert data == b"\0" + struct.pack(">I", 2) + b"\x06\x02x"  # long 3 in zigzag; a string of one byte
    assert serde.deserialize(data) == {"id": 3, "note": "x"}
    assert json.loads(server.schemas[1]["schema"]) == OLD


def test_registry_is_asked_once_for_each_schema(server: RegistryServer) -> None:
    registry = SchemaRegistry(server.url)
    serde, reader = AvroSerde(registry, schema=OLD, subject="a/b"), AvroSerde(registry)
    data = [serde.serialize({"id": number, "note": ""}) for number in range(50)]
    assert [reader.deserialize(each)["id"] for each in data] == list(range(50))
    assert server.requests == [("POST", "/subjects/a%2Fb/versions")]
    reader = AvroSerde(SchemaRegistry(server.url))
    assert [reader.deserialize(each)["id"] for each in data] == list(range(50))
    assert server.requests[1:] == [("GET", "/schemas/ids/1")]


def test_reader_of_another_version_reads_by_avros_rules(server: RegistryServer) -> None:
    registry = SchemaRegistry(server.url)
    old, new = AvroSerde(registry, schema=OLD, subject="orders-value"), AvroSerde(registry, schema=NEW, subject="orders-value")
    assert new.deserialize(old.serialize({"id": 1, "note": "x"})) == {"id": 1, "note": "x", "cents": 7}
    assert old.deserialize(new.serialize({"id": 1, "note": "x", "cents": 9})) == {"id": 1, "note": "x"}
    with pytest.raises(InputError, match="it cannot be read by schema 1: "):
        AvroSerde(registry, schema=BAD).deserialize(old.serialize({"id": 1, "note": "x"}))


def test_incompatible_or_unknown_schema_is_refused(server: RegistryServer) -> None:
    registry = SchemaRegistry(server.url)
    AvroSerde(registry, schema=OLD, subject="orders-value").serialize({"id": 1, "note": "x"})
    with pytest.raises(RegistryError, match=r"refuses the schema of subject 'orders-value' \(409: it is incompatible") as caught:
        AvroSerde(registry, schema=BAD, subject="orders-value").serialize({"id": 1, "note": "x", "cents": 1})
    assert caught.value.status == 409
    with pytest.raises(RegistryError, match=r"\(404: it is not there\): Schema not found"):
        AvroSerde(registry, schema=NEW, subject="orders-value", register=False).serialize({"id": 1, "note": "x", "cents": 1})
    assert server.subjects == {"orders-value": [1]}
    with pytest.raises(RegistryError, match="refuses schema 9"):
        AvroSerde(registry).deserialize(b"\0\0\0\0\x09")


def test_schema_that_refers_to_another_one_is_read(server: RegistryServer) -> None:
    server.register("address", "AVRO", {"type": "record", "name": "Address", "fields": [{"name": "city", "type": "string"}]})
    outer = {"type": "record", "name": "User", "fields": [{"name": "home", "type": "Address"}]}
    number = server.register("users", "AVRO", outer, [{"name": "Address", "subject": "address", "version": 1}])
    assert AvroSerde(SchemaRegistry(server.url)).deserialize(b"\0" + struct.pack(">I", number) + b"\x06Ulm") == {"home": {"city": "Ulm"}}


def test_values_are_of_a_class(server: RegistryServer) -> None:
    registry = SchemaRegistry(server.url)
    avro = AvroSerde(registry, schema=OLD, subject="o", of=Order)
    assert avro.deserialize(avro.serialize(Order(1, "x"))) == Order(1, "x")
    checked = JsonSchemaSerde(registry, schema=JSON_SCHEMA, subject="n", of=Numbered)
    assert checked.deserialize(checked.serialize(Numbered(4))) == Numbered(4)
    with pytest.raises(InputError, match=r"\{'id': 1\} is no Order"):
        avro.serialize({"id": 1})


def test_json_is_checked_by_its_schema_both_ways(server: RegistryServer) -> None:
    registry = SchemaRegistry(server.url)
    serde = JsonSchemaSerde(registry, schema=JSON_SCHEMA, subject="n")
    assert serde.serialize({"id": 1}) == b'\0\0\0\0\x01{"id":1}'
    assert serde.deserialize(b'\0\0\0\0\x01{"id": 2}') == {"id": 2}
    with pytest.raises(InputError, match=r"\$\.id is not as the schema of subject 'n' says: 'a' is not of type 'integer'"):
        serde.serialize({"id": "a"})
    with pytest.raises(InputError, match=r"\$ is not as the schema of number 1 says: 'id' is a required property"):
        serde.deserialize(b"\0\0\0\0\x01{}")
    assert JsonSchemaSerde(registry, check_read=False).deserialize(b"\0\0\0\0\x01{}") == {}
    with pytest.raises(InputError, match="it is no JSON behind the number of schema 1"):
        serde.deserialize(b"\0\0\0\0\x01{")
    with pytest.raises(InputError, match="schema 1 of the record is of kind JSON, and AvroSerde reads AVRO"):
        AvroSerde(registry).deserialize(b"\0\0\0\0\x01{}")
    inner = server.register("inner", "JSON", {"type": "string"})
    outer = server.register("outer", "JSON", {"items": {"$ref": "inner.json"}}, [{"name": "inner.json", "subject": "inner", "version": 1}])
    assert (inner, outer) == (2, 3)
    with pytest.raises(InputError, match=r"\$\[0\] is not as"):
        serde.deserialize(b"\0\0\0\0\x03[1]")


def messages() -> tuple[Any, Any]:
    """Classes of two messages, the second one within another and in a file that imports."""
    pool = descriptor_pool.DescriptorPool()
    common = descriptor_pb2.FileDescriptorProto(name="common.proto", package="t", syntax="proto3")
    common.message_type.add(name="Money").field.add(name="cents", number=1, type=3, label=1)
    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="t", syntax="proto3", dependency=["common.proto"])
    file.message_type.add(name="First")
    outer = file.message_type.add(name="Outer")
    outer.nested_type.add(name="Other")
    outer.nested_type.add(name="Order").field.add(name="price", number=1, type=11, label=1, type_name=".t.Money")
    for each in (common, file):
        pool.Add(each)
    return tuple(message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in ("t.Money", "t.Outer.Order"))


def test_protobuf_names_the_message_in_its_file_and_registers_what_that_imports(server: RegistryServer) -> None:
    registry, (money, order) = SchemaRegistry(server.url), messages()
    plain = ProtobufSerde(registry, money, subject="money-value")
    assert plain.serialize(money(cents=5)) == b"\0\0\0\0\x01\0\x08\x05"
    serde = ProtobufSerde(registry, order, subject="orders-value")
    data = serde.serialize(order(price=money(cents=5)))
    assert data == b"\0\0\0\0\x03\x04\x02\x02\x0a\x02\x08\x05"
    assert serde.deserialize(data).price.cents == 5
    assert plain.deserialize(plain.serialize(money(cents=6))).cents == 6
    assert server.subjects == {"money-value": [1], "common.proto": [2], "orders-value": [3]}
    assert server.schemas[2]["references"] == [{"name": "common.proto", "subject": "common.proto", "version": 1}]
    with pytest.raises(InputError, match=r"it is no t\.Outer\.Order"):
        serde.deserialize(b"\0\0\0\0\x03\x04\x02\x02\xff")
    with pytest.raises(InputError, match=r"is no t\.Money"):
        plain.serialize(order())
    for other, written in ((plain, data), (serde, b"\0\0\0\0\x01\0\x08\x05")):
        with pytest.raises(InputError, match=r"it is a t\.(Outer\.Order of schema 3, and no t\.Money|Money of schema 1, and no t\.Outer\.Order)"):
            other.deserialize(written)
    with pytest.raises(InputError, match=r"it is a message \[7\], which is not there, of schema 1"):
        plain.deserialize(b"\0\0\0\0\x01\x02\x0e\x08\x05")


PROTO = """
syntax = "proto2"; // message Not {}
package shop.v1;
import "common.proto";
/* message Neither { } */
option (of.file) = { name: "message {" };
enum Colour { RED = 0; }
message First {
  map<string, int64> totals = 1;
  optional string message = 2 [(of.field) = { a: 1 }, default = "}"];
  message Inner { message Deep { required int32 n = 1; } }
  oneof one { string text = 3; group Grouped = 4 { optional int32 n = 1; } }
  enum Kind { A = 0; }
  message Last {}
}
service Shop { rpc Buy(First) returns (Second) { option deprecated = true; } }
message Second { reserved 1 to 5; extensions 100 to 199; }
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ([0], {"shop.v1.First"}),
        ([1], {"shop.v1.Second"}),
        ([2], set()),
        ([0, 0], {"shop.v1.First.Inner"}),
        ([0, 0, 0], {"shop.v1.First.Inner.Deep"}),
        ([0, 1], {"shop.v1.First.Inner", "shop.v1.First.Grouped"}),
        ([0, 2], {"shop.v1.First.Grouped", "shop.v1.First.Last"}),
        ([0, 3], {"shop.v1.First.Last"}),
    ],
)
def test_message_of_a_file_as_text_is_found_by_its_place(path: list[int], expected: set[str]) -> None:
    assert names_at(PROTO, path) == expected


@pytest.mark.parametrize("policy", [ErrorPolicy.stop(), ErrorPolicy.retry(1, backoff_s=0.0)])
@pytest.mark.parametrize("many", [False, True])
def test_first_look_up_does_not_block_the_loop_and_the_record_is_handled_once(server: RegistryServer, policy: ErrorPolicy, many: bool) -> None:
    number = server.register("orders-value", "AVRO", OLD)
    server.delay_s = 0.3
    seen: list[Any] = []
    registry = SchemaRegistry(server.url)
    totals = AvroSerde(registry, schema=NEW, subject="totals-value")

    def keep(record: Record, context: TaskContext) -> None:
        with suppress(Exception):  # a handler that hides errors loses nothing
            context.send("totals", {**record.value, "cents": 1}, value_serde=totals)
        seen.append(record.value)

    def keep_all(records: Sequence[Record], context: TaskContext) -> None:
        for record in records:
            keep(record, context)

    async def run() -> None:
        handler: Any = {"batch_handler": keep_all} if many else {"handler": keep}
        driver = TaskDriver(**handler, value_serde=AvroSerde(registry), on_error=policy)
        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            while True:
                began_s = time.monotonic()
                await asyncio.sleep(0.01)
                longest = max(longest, time.monotonic() - began_s)

        watching = asyncio.create_task(watch())
        sent = await driver.send(b"\0" + struct.pack(">I", number) + b"\x06\x02x", value_serde=BytesSerde())
        watching.cancel()
        assert longest < 0.2
        assert len(server.requests) == 2
        assert [each.topic for each in sent] == ["totals"]
        assert seen == [{"id": 3, "note": "x"}] * 2  # called again, once the schema of what it sends was known

    asyncio.run(run())


def test_timer_waits_for_the_registry_and_does_not_fail_while_that_is_away(server: RegistryServer) -> None:
    totals = AvroSerde(SchemaRegistry(server.url), schema=NEW, subject="totals-value")

    def report(context: TaskContext) -> None:
        context.send("totals", {"id": 1, "note": "", "cents": 1}, value_serde=totals)

    async def run() -> None:
        driver = TaskDriver(lambda record, context: None, on_assigned=lambda context: context.every(1.0, report))
        server.is_away = True
        assert await driver.advance(1.5) == []
        assert driver.failed is None
        server.is_away = False
        assert len(await driver.advance(1.0)) == 1

    asyncio.run(run())


@given(st.lists(st.integers(0, 300), min_size=1, max_size=4), st.binary(max_size=3))
def test_path_of_a_message_is_read_as_it_was_written(path: list[int], rest: bytes) -> None:
    packed = packed_path(path)
    assert unpacked_path(b"12345" + packed + rest, 5) == (path, 5 + len(packed))
    if len(packed) > 1:
        with pytest.raises(InputError, match="cut off"):
            unpacked_path(packed[:-1], 0)


@pytest.mark.parametrize("data", [b"", b"\0\0\0\0", b'{"id": 1}', b"\x01\0\0\0\x01x"])
def test_record_without_a_schema_is_told_from_others(server: RegistryServer, data: bytes) -> None:
    registry = SchemaRegistry(server.url)
    for serde in (AvroSerde(registry), JsonSchemaSerde(registry), ProtobufSerde(registry, messages()[0])):
        with pytest.raises(InputError, match="does not begin with a byte 0 and the number of a schema: it was written without a registry"):
            serde.deserialize(data)
    assert server.requests == []


def test_record_waits_while_the_registry_is_away_with_any_policy(server: RegistryServer, caplog: pytest.LogCaptureFixture) -> None:
    number = server.register("orders-value", "AVRO", OLD)

    async def run() -> None:
        seen: list[Any] = []

        def keep(record: Record, context: TaskContext) -> None:
            seen.append(record.value)

        driver = TaskDriver(keep, value_serde=AvroSerde(SchemaRegistry(server.url)), on_error=ErrorPolicy.skip())
        server.is_away = True
        data = b"\0" + struct.pack(">I", number) + b"\x06\x02x"
        with pytest.raises(SerdeUnavailableError, match="503"):
            await driver.send(data, value_serde=BytesSerde())
        assert seen == []
        assert driver.failed is None
        server.is_away = False
        await driver.send(data, value_serde=BytesSerde())
        assert seen == [{"id": 3, "note": "x"}]
        await driver.send(b"no avro", value_serde=BytesSerde())
        assert seen == [{"id": 3, "note": "x"}]

    asyncio.run(run())
    said = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "waits: " in said[0]
    assert "(503): starting" in said[0]
    assert "was skipped: it cannot be read: " in said[1]


def test_registry_that_is_not_there_or_wants_a_password_is_named(server: RegistryServer) -> None:
    with pytest.raises(SerdeUnavailableError, match=r"http://127\.0\.0\.1:9 does not answer for schema 1: ConnectionRefusedError"):
        SchemaRegistry("http://127.0.0.1:9").schema(1)
    server.password = "secret"
    server.register("s", "AVRO", OLD)
    with pytest.raises(RegistryError, match=r"\(401: give SchemaRegistry user and password\): Unauthorized"):
        SchemaRegistry(server.url).schema(1)
    assert SchemaRegistry(server.url, user="u", password="secret").schema(1).kind == "AVRO"
    with pytest.raises(FieldError, match=r"SchemaRegistry\.url: 'registry:8081' is no address"):
        SchemaRegistry("registry:8081")


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda registry: AvroSerde(registry, schema={"type": "recrod"}), r"AvroSerde\.schema: it is no schema of Avro"),
        (lambda registry: JsonSchemaSerde(registry, schema={"type": 3}), r"JsonSchemaSerde\.schema: it is no JSON Schema"),
        (lambda registry: ProtobufSerde(registry, dict), r"ProtobufSerde\.of: <class 'dict'> is no class of a Protobuf message"),
        (lambda registry: AvroSerde("http://x"), r"AvroSerde\.registry: 'http://x' is no SchemaRegistry"),  # type: ignore[arg-type]  # it is none
        (lambda registry: AvroSerde(registry, of=dict), r"AvroSerde\.of: <class 'dict'> is neither an attrs class nor a dataclass"),
        (lambda registry: AvroSerde(registry, schema=OLD).serialize({}), "to send, give it the subject of its schema"),
        (lambda registry: AvroSerde(registry).serialize({}), "to send, give it a schema"),
        (lambda registry: AvroSerde(registry, schema=OLD, subject="s").serialize({"id": "a"}), "is not as the schema of subject 's' says"),
    ],
)
def test_what_is_wrong_is_said(server: RegistryServer, make: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        make(SchemaRegistry(server.url))
