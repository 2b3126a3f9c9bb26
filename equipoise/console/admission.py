"""Who may see the console.

===================================  ==============================================================
the worker listens                   who is let in
===================================  ==============================================================
on the loopback, no `http_token`     everybody on this machine
with `http_token`                    whoever gave the token: a browser on its login page, which
                                     gets a cookie; a program as ``Authorization: Bearer TOKEN``
beyond the loopback, no token        nobody
with `console_behind_proxy`          whoever the proxy lets through
===================================  ==============================================================

Pages of other sites get nothing: `equipoise.hosting.admission`.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Protocol

from aiohttp import web

from equipoise.hosting.admission import RefusedRequest, is_loopback

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


class ConsoleAdmission:
    """Decides for each request. Cookies of another process do not count."""

    def __init__(self, settings: AccessSettings) -> None:
        self._settings = settings
        self._key = secrets.token_bytes(32)

    @property
    def cookie(self) -> str:
        """The cookie of whoever has given the token."""
        return hmac.new(self._key, self._settings.http_token.encode(), hashlib.sha256).hexdigest()

    def has_secret(self, request: web.Request) -> bool:
        """Returns whether the request has the token, or the cookie of whoever gave it."""
        token = self._settings.http_token
        return bool(token) and (has_token(request, token) or same(request.cookies.get(COOKIE, ""), self.cookie))

    def refuse(self, request: web.Request) -> RefusedRequest | None:
        """Returns why the request is refused; None: it is let in. Status 401: the token is missing
        or wrong, 403: nobody is let in so.
        """
        settings = self._settings
        if settings.console_behind_proxy or self.has_secret(request):
            return None
        if settings.http_token:
            return RefusedRequest(401, "give the worker's http_token")
        if not is_loopback(settings.http_host):
            fix = "set EQUIPOISE_HTTP_TOKEN, or console_behind_proxy behind a proxy that authenticates"
            return RefusedRequest(403, f"this worker is reachable from other machines and has no http_token; {fix}")
        return None

    def log_in(self, token: str) -> web.Response | None:
        """The answer that brings the cookie, and leads to the console; None: the token is wrong."""
        if not self._settings.http_token or not same(token, self._settings.http_token):
            return None
        answer = web.Response(status=303, headers={"Location": "./"})
        secure = bool(self._settings.http_tls_cert)
        answer.set_cookie(COOKIE, self.cookie, path="/console", httponly=True, samesite="Strict", secure=secure)
        return answer


def same(given: str, wanted: str) -> bool:
    """Returns whether two secrets are equal, in the same time whatever they are."""
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def has_token(request: web.Request, token: str) -> bool:
    """Returns whether the request is authorized by this token."""
    return same(request.headers.get("Authorization", ""), f"Bearer {token}")
