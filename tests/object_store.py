"""An S3 server on this machine, for tests: moto's, in a process of its own, with its requests
recorded and failures on demand.

`python -m tests.object_store` serves until its standard input ends, and prints its port.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

BUCKET = "bucket"
_CONTROL = "/_test"
_ROOT = Path(__file__).parents[1]


@attrs.frozen
class ObjectStoreServer:
    """A running server. `environment`: what makes pyarrow use it."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def requests(self) -> list[str]:
        """Returns ``METHOD path?query`` of the requests since the last call."""
        return [str(each) for each in self._control({})]

    @contextlib.contextmanager
    def failing(self, containing: str, *, status: str = "403 Forbidden", after_s: float = 0.0) -> Iterator[None]:
        """Answers requests whose ``METHOD path?query`` has the text `containing` with `status`;
        `after_s`: after so long.
        """
        self._control({"containing": containing, "status": status, "after_s": after_s})
        try:
            yield
        finally:
            self._control({"containing": ""})

    def _control(self, document: dict[str, Any]) -> list[Any]:
        request = urllib.request.Request(f"{self.url}{_CONTROL}", json.dumps(document).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: list[Any] = json.load(answer)
        return found


@contextlib.contextmanager
def serving() -> Iterator[ObjectStoreServer]:
    """A server with an empty bucket, BUCKET."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.object_store"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=_ROOT)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        assert port, "the server has not started: python -m tests.object_store"
        server = ObjectStoreServer(f"http://127.0.0.1:{port}")
        with urllib.request.urlopen(urllib.request.Request(f"{server.url}/{BUCKET}", method="PUT"), timeout=30):
            pass
        yield server
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


def main() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            pass

    server = make_server("127.0.0.1", 0, _Recording(DomainDispatcherApplication(create_backend_app)), threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
    os._exit(0)


class _Recording:
    """Moto's application behind the failures that a test asks for."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._requests: list[str] = []
        self._failing: dict[str, Any] = {}

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == _CONTROL:
            asked = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            if asked:
                self._failing = asked if asked["containing"] else {}
            requests, self._requests = ([], self._requests) if asked else (self._requests, [])
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(requests).encode()]
        request = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}?{environ['QUERY_STRING']}"
        self._requests.append(request)
        if self._failing and self._failing["containing"] in request:
            time.sleep(self._failing["after_s"])
            body = b"<Error><Code>AccessDenied</Code><Message>not today</Message></Error>"
            headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(body))), ("Connection", "close")]
            start_response(self._failing["status"], headers)
            return [body]
        answer: Iterable[bytes] = self._application(environ, start_response)
        return answer


if __name__ == "__main__":
    main()
