"""Reads and registers schemas, by the HTTP API that Confluent's registry, Karapace, Apicurio and
Redpanda have. Each schema is asked for once.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import attrs

from equipoise.events.errors import FieldError, InputError
from equipoise.member.tasks.serdes import SerdeUnavailableError, ask

_TYPE = "application/vnd.schemaregistry.v1+json"
AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
Reference = tuple[str, str, int]
"""Name under which a schema refers to another one, and the subject and version of that."""


class RegistryError(InputError):
    """The registry refuses: `status` and `code` are its own."""

    def __init__(self, problem: str, status: int, code: int) -> None:
        super().__init__(problem)
        self.status, self.code = status, code


@attrs.frozen
class RegisteredSchema:
    """A schema as the registry has it. `kind`: AVRO, JSON or PROTOBUF."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()


class SchemaRegistry:
    """A schema registry at `url`. `user`, `password`: for basic authentication. `ca_file`:
    certificates of those who sign its certificate; None: the system's. `timeout_s`: of a request.

    Its calls block, but not in a handler or timer of a task: there another thread asks, the task
    waits, and the handler is called again if it has sent something with a new schema. Raises
    FieldError when the URL is none.
    """

    def __init__(self, url: str, *, user: str | None = None, password: str = "", ca_file: str | None = None, timeout_s: float = 5.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise FieldError("SchemaRegistry.url", f"{url!r} is no address of a registry; write http://host:8081")
        self._url, self._host, self._port, self._base = url, parts.hostname, parts.port, parts.path.rstrip("/")
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self._headers = {"Content-Type": _TYPE, "Accept": f"{_TYPE}, application/json"}
        if user is not None:
            self._headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._schemas: dict[int, RegisteredSchema] = {}
        self._versions: dict[tuple[str, int], RegisteredSchema] = {}
        self._numbers: dict[tuple[str, RegisteredSchema], int] = {}
        self._answers: dict[tuple[str, str, bytes | None], dict[str, Any]] = {}
        """Method, path and body -> the answer."""

    def schema(self, number: int) -> RegisteredSchema:
        """The schema with this number. Raises RegistryError, SerdeUnavailableError."""
        found = self._schemas.get(number)
        if found is None:
            found = self._schemas[number] = _schema_of(self._ask("GET", f"/schemas/ids/{number}", what=f"schema {number}"))
        return found

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """One version of a subject, as schemas refer to it. Raises RegistryError,
        SerdeUnavailableError.
        """
        found = self._versions.get((subject, version))
        if found is None:
            answer = self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/{version}", what=f"version {version} of subject {subject!r}")
            found = self._versions[subject, version] = _schema_of(answer)
        return found

    def number(self, subject: str, schema: RegisteredSchema, *, register: bool = True) -> int:
        """The number of a schema of `subject`. `register`: one that is new there is registered.
        Raises RegistryError: it is new and is not to be registered, or the registry takes it for
        incompatible. Raises SerdeUnavailableError.
        """
        known = self._numbers.get((subject, schema))
        if known is not None:
            return known
        body: dict[str, Any] = {"schema": schema.text}
        if schema.kind != AVRO:
            body["schemaType"] = schema.kind
        if schema.references:
            body["references"] = [{"name": name, "subject": of, "version": version} for name, of, version in schema.references]
        path = f"/subjects/{quote(subject, safe='')}"
        answer = self._ask("POST", f"{path}/versions" if register else path, body, what=f"the schema of subject {subject!r}")
        number = answer.get("id")
        if not isinstance(number, int):
            raise RegistryError(f"{self._url}: its answer about subject {subject!r} has no id: is this a schema registry?", 200, 0)
        self._numbers[subject, schema] = number
        self._schemas.setdefault(number, schema)
        return number

    def version_of(self, subject: str, schema: RegisteredSchema) -> int:
        """The version that a schema is of its subject. Raises RegistryError,
        SerdeUnavailableError.
        """
        body: dict[str, Any] = {"schema": schema.text, "schemaType": schema.kind}
        return int(self._ask("POST", f"/subjects/{quote(subject, safe='')}", body, what=f"the schema of subject {subject!r}")["version"])

    def _ask(self, method: str, path: str, body: Any = None, *, what: str) -> dict[str, Any]:
        asked = method, path, None if body is None else json.dumps(body).encode()
        known = self._answers.get(asked)
        return ask(what, lambda: self._look_up(asked, what)) if known is None else known

    def _look_up(self, asked: tuple[str, str, bytes | None], what: str) -> dict[str, Any]:
        with self._lock:  # whoever comes later finds the answer
            if asked not in self._answers:
                self._answers[asked] = self._answer(*asked, what)
            return self._answers[asked]

    def _answer(self, method: str, path: str, body: bytes | None, what: str) -> dict[str, Any]:
        status, text = self._send(method, path, body, what)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if status == 200 and isinstance(answer, dict):
            return answer
        said = answer if isinstance(answer, dict) else {}
        why = " ".join(str(said.get("message", text[:200].decode(errors="replace"))).split())
        if status >= 500 or status == 429:
            raise SerdeUnavailableError(f"{self._url} does not answer for {what} ({status}): {why}")
        fixes = {
            401: "give SchemaRegistry user and password",
            403: "this user may not",
            404: "it is not there",
            409: "it is incompatible with the former ones; change the schema, or the compatibility of the subject",
            422: "it is no valid schema; older registries take Protobuf as text alone: ProtobufSerde(schema=...)",
        }
        fix = fixes.get(status, "is this a schema registry?")
        raise RegistryError(f"{self._url} refuses {what} ({status}: {fix}): {why}", status, int(said.get("error_code", 0) or 0))

    def _send(self, method: str, path: str, body: bytes | None, what: str) -> tuple[int, bytes]:
        if self._tls is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        else:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=self._tls)
        try:
            connection.request(method, self._base + path, body, self._headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise SerdeUnavailableError(f"{self._url} does not answer for {what}: {type(error).__name__} {error}".rstrip()) from None
        finally:
            connection.close()


def _schema_of(answer: dict[str, Any]) -> RegisteredSchema:
    references: Sequence[dict[str, Any]] = answer.get("references") or ()
    named = tuple((str(each["name"]), str(each["subject"]), int(each["version"])) for each in references)
    return RegisteredSchema(str(answer.get("schemaType") or AVRO), str(answer["schema"]), named)
