"""Serdes of records whose schemas are in a registry."""

from __future__ import annotations

import io
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from equipoise._extras import needed_by
from equipoise.events.errors import FieldError, InputError
from equipoise.member.tasks.serdes import values_of
from equipoise.registry.client import AVRO, JSON, PROTOBUF, RegisteredSchema, SchemaRegistry
from equipoise.registry.protobuf_files import names_at


class _RegistrySerde:
    """A serde of any kind. `subject`: under which the schema of what is sent is registered."""

    kind = ""

    def __init__(self, registry: SchemaRegistry, subject: str | None, *, register: bool) -> None:
        if not isinstance(registry, SchemaRegistry):
            raise FieldError(f"{type(self).__name__}.registry", f"{registry!r:.60} is no SchemaRegistry")
        self._registry, self._subject, self._register = registry, subject, register
        self._head: bytes | None = None

    def _schema(self) -> RegisteredSchema:
        """Returns the schema of what is sent. Raises InputError when there is none."""
        raise NotImplementedError

    def _own_head(self) -> bytes:
        if self._head is None:
            schema = self._schema()
            if self._subject is None:
                raise InputError(f"{type(self).__name__}: to send, give it the subject of its schema, such as 'orders-value'")
            self._head = head_of(self._registry.number(self._subject, schema, register=self._register))
        return self._head

    def _written_by(self, data: bytes) -> RegisteredSchema:
        """Returns the schema of a record. Raises InputError when it is of another kind."""
        number = schema_number(data)
        found = self._registry.schema(number)
        if found.kind != self.kind:
            raise InputError(f"schema {number} of the record is of kind {found.kind}, and {type(self).__name__} reads {self.kind}")
        return found


class AvroSerde(_RegistrySerde):
    """Avro. `schema`: of what is sent, and as which records are read, whatever schema they were
    written with (Avro's schema evolution); None: nothing is sent, and records are read as they were
    written. `of`: an attrs class or dataclass of the values; None: they are dicts.

    `subject`: of `schema` in the registry. `register`: it is registered if it is new; otherwise it
    must be there.
    """

    kind = AVRO

    def __init__(
        self,
        registry: SchemaRegistry,
        *,
        schema: Mapping[str, Any] | str | None = None,
        subject: str | None = None,
        register: bool = True,
        of: type | None = None,
    ) -> None:
        super().__init__(registry, subject, register=register)
        with needed_by("AvroSerde"):
            fastavro: Any = import_module("fastavro")
        self._fastavro = fastavro
        self._given: Any = json.loads(schema) if isinstance(schema, str) else schema
        try:
            self._own: Any = None if self._given is None else fastavro.parse_schema(self._given, named_schemas={})
        except (fastavro.schema.SchemaParseException, ValueError, KeyError) as error:
            raise FieldError("AvroSerde.schema", f"it is no schema of Avro: {type(error).__name__} {error}") from None
        self._pack, self._unpack = values_of(of, "AvroSerde.of")
        self._parsed: dict[int, Any] = {}

    def _schema(self) -> RegisteredSchema:
        if self._given is None:
            raise InputError("AvroSerde: to send, give it a schema")
        return RegisteredSchema(AVRO, json.dumps(self._given))

    def serialize(self, value: Any) -> bytes:
        """Raises InputError when the value is not as the schema says, or the registry refuses the
        schema; SerdeUnavailableError when it does not answer.
        """
        head = self._own_head()
        out = io.BytesIO()
        out.write(head)
        try:
            self._fastavro.schemaless_writer(out, self._own, self._pack(value))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise InputError(f"{value!r:.60} is not as the schema of subject {self._subject!r} says: {error}") from None
        return out.getvalue()

    def deserialize(self, data: bytes) -> Any:
        """Raises InputError when this is no such record; SerdeUnavailableError."""
        number = schema_number(data)
        parsed = self._parsed.get(number)
        if parsed is None:
            parsed = self._parsed[number] = self._parse(self._written_by(data))
        source = io.BytesIO(data)
        source.seek(HEAD_BYTES)
        try:
            read = self._fastavro.schemaless_reader(source, parsed, self._own)
        except (EOFError, ValueError, TypeError, IndexError, KeyError, self._fastavro.read.SchemaResolutionError) as error:
            raise InputError(f"it cannot be read by schema {number}: {type(error).__name__} {error}") from None
        return self._unpack(read)

    def _parse(self, schema: RegisteredSchema) -> Any:
        names: dict[str, Any] = {}
        self._parse_references(schema, names)
        return self._fastavro.parse_schema(json.loads(schema.text), named_schemas=names)

    def _parse_references(self, schema: RegisteredSchema, names: dict[str, Any]) -> None:
        for name, subject, version in schema.references:
            if name not in names:
                other = self._registry.version(subject, version)
                self._parse_references(other, names)
                self._fastavro.parse_schema(json.loads(other.text), named_schemas=names)


class JsonSchemaSerde(_RegistrySerde):
    """JSON with a schema in the registry. `schema`: of what is sent, by which it is checked; None:
    nothing is sent. `check_read`: records are checked by the schema that they were written with.
    The rest is as for `AvroSerde`.
    """

    kind = JSON

    def __init__(
        self,
        registry: SchemaRegistry,
        *,
        schema: Mapping[str, Any] | str | None = None,
        subject: str | None = None,
        register: bool = True,
        of: type | None = None,
        check_read: bool = True,
    ) -> None:
        super().__init__(registry, subject, register=register)
        with needed_by("JsonSchemaSerde"):
            import jsonschema
            import referencing
        self._jsonschema, self._referencing = jsonschema, referencing
        self._given = json.loads(schema) if isinstance(schema, str) else schema
        self._own = None if self._given is None else self._checker(self._given, {})
        self._pack, self._unpack = values_of(of, "JsonSchemaSerde.of")
        self._check_read = check_read
        self._checkers: dict[int, Any] = {}

    def _checker(self, schema: Any, others: dict[str, Any]) -> Any:
        kind = self._jsonschema.validators.validator_for(schema)
        try:
            kind.check_schema(schema)
        except self._jsonschema.SchemaError as error:
            raise FieldError("JsonSchemaSerde.schema", f"it is no JSON Schema: {error.message}") from None
        specification = self._referencing.jsonschema.DRAFT202012
        resources = [(name, self._referencing.Resource.from_contents(other, default_specification=specification)) for name, other in others.items()]
        return kind(schema, registry=self._referencing.Registry().with_resources(resources))

    def _schema(self) -> RegisteredSchema:
        if self._given is None:
            raise InputError("JsonSchemaSerde: to send, give it a schema")
        return RegisteredSchema(JSON, json.dumps(self._given))

    def serialize(self, value: Any) -> bytes:
        """Raises InputError when the value is not as the schema says, or the registry refuses the
        schema; SerdeUnavailableError when it does not answer.
        """
        head, packed = self._own_head(), self._pack(value)
        self._check(self._own, packed, f"subject {self._subject!r}")
        return head + json.dumps(packed, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()

    def deserialize(self, data: bytes) -> Any:
        """Raises InputError when this is no such record; SerdeUnavailableError."""
        number = schema_number(data)
        checker = self._checkers.get(number)
        if checker is None:
            found, others = self._written_by(data), {}  # type: tuple[RegisteredSchema, dict[str, Any]]
            self._collect(found, others)
            checker = self._checkers[number] = self._checker(json.loads(found.text), others)
        try:
            read = json.loads(data[HEAD_BYTES:])
        except ValueError as error:
            raise InputError(f"it is no JSON behind the number of schema {number}: {error}") from None
        if self._check_read:
            self._check(checker, read, f"number {number}")
        return self._unpack(read)

    def _collect(self, schema: RegisteredSchema, others: dict[str, Any]) -> None:
        for name, subject, version in schema.references:
            if name not in others:
                other = self._registry.version(subject, version)
                others[name] = json.loads(other.text)
                self._collect(other, others)

    def _check(self, checker: Any, value: Any, place: str) -> None:
        error = self._jsonschema.exceptions.best_match(checker.iter_errors(value))
        if error is not None:
            raise InputError(f"{error.json_path} is not as the schema of {place} says: {error.message:.200}")


class ProtobufSerde(_RegistrySerde):
    """Messages of the class `of`, as protoc makes it. They are read by `of` itself, whatever
    version they were written with; a record of another message is an error. `subject`: of its file
    in the registry; files that it imports are registered under their own names. `schema`: the text
    of the file; None: its descriptor in base64, which older registries do not take. The rest is as
    for `AvroSerde`.
    """

    kind = PROTOBUF

    def __init__(self, registry: SchemaRegistry, of: Any, *, schema: str | None = None, subject: str | None = None, register: bool = True) -> None:
        super().__init__(registry, subject, register=register)
        with needed_by("ProtobufSerde"):
            message: Any = import_module("google.protobuf.message")
        if not (isinstance(of, type) and issubclass(of, message.Message)):
            raise FieldError("ProtobufSerde.of", f"{of!r:.60} is no class of a Protobuf message")
        message_class: Any = of
        self._text = schema
        self._of = message_class
        self._errors: Any = (message.DecodeError, message.EncodeError)
        self._path = _path_of(message_class.DESCRIPTOR)
        self._known: set[tuple[int, tuple[int, ...]]] = set()
        """Schemas and places in them that are `of`."""

    def _schema(self) -> RegisteredSchema:
        return self._file_schema(self._of.DESCRIPTOR.file)

    def _file_schema(self, file: Any) -> RegisteredSchema:
        references = []
        for each in file.dependencies:
            if not each.name.startswith("google/protobuf/"):  # each registry has these
                other = self._file_schema(each)
                self._registry.number(each.name, other, register=self._register)
                references.append((each.name, each.name, self._registry.version_of(each.name, other)))
        is_own = file.name == self._of.DESCRIPTOR.file.name
        text = self._text if is_own and self._text is not None else b64encode(file.serialized_pb).decode()
        return RegisteredSchema(PROTOBUF, text, tuple(references))

    def serialize(self, value: Any) -> bytes:
        """Raises InputError for another message, or when the registry refuses the schema;
        SerdeUnavailableError when it does not answer.
        """
        if not isinstance(value, self._of):
            raise InputError(f"{value!r:.40} is no {self._of.DESCRIPTOR.full_name}")
        head = self._own_head()
        try:
            data: bytes = value.SerializeToString(deterministic=True)
        except self._errors as error:
            raise InputError(f"the message cannot be written: {error}") from None
        return head + packed_path(self._path) + data

    def deserialize(self, data: bytes) -> Any:
        """Raises InputError when this is no such record; SerdeUnavailableError."""
        number = schema_number(data)
        path, at = unpacked_path(data, HEAD_BYTES)
        written = number, tuple(path)
        if written not in self._known:
            found, expected = names_at(self._written_by(data).text, path), self._of.DESCRIPTOR.full_name
            if expected not in found:
                what = " or ".join(sorted(found)) or f"message {path}, which is not there,"
                raise InputError(f"it is a {what} of schema {number}, and no {expected}")
            self._known.add(written)
        try:
            return self._of.FromString(data[at:])
        except self._errors as error:
            raise InputError(f"it is no {self._of.DESCRIPTOR.full_name}: {error}") from None


def _path_of(message: Any) -> list[int]:
    path: list[int] = []
    while message is not None:
        outer = message.containing_type
        there = message.file.message_types_by_name.values() if outer is None else outer.nested_types
        path.insert(0, [each.full_name for each in there].index(message.full_name))
        message = outer
    return path


# The first bytes of a record whose schema is in a registry: a byte 0, the number of the schema in
# 4 bytes, and with Protobuf the path to the message in its file.

MAGIC = b"\0"
HEAD_BYTES = 5
_FIRST_MESSAGE = b"\0"


def head_of(number: int) -> bytes:
    """The first bytes for a schema."""
    return MAGIC + number.to_bytes(HEAD_BYTES - 1)


def schema_number(data: bytes) -> int:
    """The number of the schema of a record. Raises InputError."""
    if len(data) < HEAD_BYTES or data[:1] != MAGIC:
        raise InputError(f"{data[:16]!r} does not begin with a byte 0 and the number of a schema: it was written without a registry")
    return int.from_bytes(data[1:HEAD_BYTES])


def packed_path(path: Sequence[int]) -> bytes:
    """The place of a message in its file: the index of the outermost one, then of each within."""
    if list(path) == [0]:
        return _FIRST_MESSAGE
    return b"".join(_varint(each << 1) for each in (len(path), *path))


def unpacked_path(data: bytes, at: int) -> tuple[list[int], int]:
    """The path that begins at this byte, and where the message begins. Raises InputError."""
    count, at = _read_varint(data, at)
    path = []
    for _ in range(min(count, len(data))):
        index, at = _read_varint(data, at)
        path.append(index)
    return path or [0], at


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number that is not negative, in zigzag."""
    number = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise InputError("the path to the message behind the number of the schema is cut off")
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number >> 1, at
