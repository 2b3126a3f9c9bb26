"""Who may see the console, and the headers of its answers.

===================================  ==============================================================
the worker listens                   who is let in
===================================  ==============================================================
on the loopback, no `http_token`     everybody on this machine, by a name of the loopback
with `http_token`                    whoever gave the token: a browser on its login page, which
                                     gets a cookie; a program as ``Authorization: Bearer TOKEN``
beyond the loopback, no token        nobody
with `console_behind_proxy`          whoever the proxy lets through
===================================  ==============================================================

A name of the loopback in `Host`: a page of another site, whose name was made to mean 127.0.0.1,
gets nothing (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

import attrs
from aiohttp import web

from equipoise.serving import is_loopback

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer of the console."""
COOKIE = "equipoise_console"


class AccessSettings(Protocol):
    """The settings of a worker that decide on access."""

    @property
    def http_host(self) -> str: ...

    @property
    def http_token(self) -> str: ...

    @property
    def http_tls_cert(self) -> str: ...

    @property
    def console_behind_proxy(self) -> bool: ...


@attrs.frozen
class Refused:
    """`status` 401: the token is missing or wrong, 403: nobody is let in so."""

    status: int
    problem: str


class Admission:
    """Decides for each request. Cookies of another process do not count."""

    def __init__(self, settings: AccessSettings) -> None:
        self._settings = settings
        self._key = secrets.token_bytes(32)

    @property
    def cookie(self) -> str:
        """The cookie of whoever has given the token."""
        return hmac.new(self._key, self._settings.http_token.encode(), hashlib.sha256).hexdigest()

    def refuse(self, request: web.Request) -> Refused | None:
        """Why the request is refused; None: it is let in."""
        settings = self._settings
        if settings.console_behind_proxy:
            return None
        if settings.http_token:
            given = request.headers.get("Authorization", "")
            if same(given, f"Bearer {settings.http_token}") or same(request.cookies.get(COOKIE, ""), self.cookie):
                return None
            return Refused(401, "give the worker's http_token")
        if not is_loopback(settings.http_host):
            fix = "set EQUIPOISE_HTTP_TOKEN, or console_behind_proxy behind a proxy that authenticates"
            return Refused(403, f"this worker is reachable from other machines and has no http_token; {fix}")
        if not _names_loopback(request.headers.get("Host", "")):
            return Refused(403, "name the worker as 127.0.0.1 or localhost, or set console_behind_proxy where a proxy asks")
        return None

    def log_in(self, token: str) -> web.Response | None:
        """The answer that brings the cookie, and leads to the console; None: the token is wrong."""
        if not self._settings.http_token or not same(token, self._settings.http_token):
            return None
        answer = web.Response(status=303, headers={**HEADERS, "Location": "./"})
        secure = bool(self._settings.http_tls_cert)
        answer.set_cookie(COOKIE, self.cookie, path="/console", httponly=True, samesite="Strict", secure=secure)
        return answer


def same(given: str, wanted: str) -> bool:
    """Whether two secrets are equal, in the same time whatever they are."""
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def _names_loopback(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return is_loopback(name)
