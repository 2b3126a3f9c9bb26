"""A schema registry in this process, with the part of Confluent's API that serdes use: subjects and
their versions, numbers, references, and BACKWARD compatibility of Avro's records.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

Stored = dict[str, Any]


class RegistryServer:
    """`requests`: method and path of each request. `is_away`: it answers 503. `password`: of the
    user "u"; None: anybody may. `delay_s`: before each answer.
    """

    def __init__(self) -> None:
        self.subjects: dict[str, list[int]] = {}
        """Subject -> numbers of its versions."""
        self.schemas: list[Stored] = []
        self.requests: list[tuple[str, str]] = []
        self.is_away = False
        self.password: str | None = None
        self.delay_s = 0.0
        self.url = ""

    def register(self, subject: str, kind: str, schema: Any, references: Any = ()) -> int:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        _, answer = self.answer("POST", ["subjects", subject, "versions"], {"schema": text, "schemaType": kind, "references": list(references)})
        number: int = answer["id"]
        return number

    def answer(self, method: str, path: list[str], body: Any) -> tuple[int, Any]:
        if method == "GET" and path[:2] == ["schemas", "ids"]:
            number = int(path[2])
            return (200, self.schemas[number - 1]) if 0 < number <= len(self.schemas) else (404, {"error_code": 40403, "message": "Schema not found"})
        versions = self.subjects.get(path[1], [])
        if method == "GET":
            number = versions[int(path[3]) - 1]
            return 200, {"subject": path[1], "version": int(path[3]), "id": number, **self.schemas[number - 1]}
        stored: Stored = {"schema": body["schema"]}
        if body.get("schemaType", "AVRO") != "AVRO":
            stored["schemaType"] = body["schemaType"]
        if body.get("references"):
            stored["references"] = body["references"]
        known = [number for number in versions if self.schemas[number - 1]["schema"] == stored["schema"]]
        if known:
            return 200, {"id": known[0], "version": versions.index(known[0]) + 1, "subject": path[1]}
        if len(path) < 3:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        if versions and not self._is_compatible(self.schemas[versions[-1] - 1], stored):
            return 409, {"error_code": 409, "message": "Schema being registered is incompatible with an earlier schema"}
        self.schemas.append(stored)
        self.subjects.setdefault(path[1], []).append(len(self.schemas))
        return 200, {"id": len(self.schemas)}

    @staticmethod
    def _is_compatible(former: Stored, new: Stored) -> bool:
        """Whether a reader with the new schema reads what was written with the former one."""
        if "schemaType" in new:
            return True
        before = {field["name"]: field for field in json.loads(former["schema"]).get("fields", ())}
        fields = json.loads(new["schema"]).get("fields", ())
        return all(field["name"] in before or "default" in field for field in fields)


@contextmanager
def serving() -> Iterator[RegistryServer]:
    """A registry at `url`."""
    registry = RegistryServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._do("GET", None)

        def do_POST(self) -> None:
            self._do("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _do(self, method: str, body: Any) -> None:
            registry.requests.append((method, self.path))
            time.sleep(registry.delay_s)
            status: int
            answer: Any
            wanted = None if registry.password is None else "Basic " + base64.b64encode(f"u:{registry.password}".encode()).decode()
            if registry.is_away:
                status, answer = 503, {"message": "starting"}
            elif wanted is not None and self.headers["Authorization"] != wanted:
                status, answer = 401, {"error_code": 401, "message": "Unauthorized"}
            else:
                status, answer = registry.answer(method, [unquote(part) for part in self.path.strip("/").split("/")], body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *given: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
