"""Which requests a worker's or a member's HTTP port takes, on every path.

A browser sends what pages of other sites ask for to any address that it reaches. Three rules keep
such pages out, so that they read and write nothing:

=====================  =============================================================================
of a request           taken is
=====================  =============================================================================
``Host``               on the loopback: a loopback address, or ``localhost``. Elsewhere: any IP
                       address, a name without a dot, and the machine's own name. Always: the names
                       of `http_hosts`. A site whose name was made to mean this address (DNS
                       rebinding) has another one
``Origin``,            what the port's own pages send, what no page sends, and a link that somebody
``Sec-Fetch-Site``     follows
body                   the media type of the path, which forms of other sites cannot send unasked
=====================  =============================================================================

The host does not matter to a request that shows a secret, or comes over TLS: no other site has the
secret or the certificate. A program that names no host (HTTP/1.0) is no browser.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

import attrs
from aiohttp import web

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s\[\]:/@?#]+)(?::\d{1,5})?")
_ORIGIN = re.compile(r"https?://(.+)")


@attrs.frozen
class RefusedRequest:
    """Why a request is not taken. `status`: of the answer."""

    status: int
    problem: str


class Admission:
    """Decides for each request to a port that listens on `bound`. `named`: names of `http_hosts`,
    with ``*`` for any characters. `tls`: the port serves TLS. `has_secret`: whether a request shows
    a secret that other sites do not know.
    """

    def __init__(
        self, bound: str, named: Iterable[str] = (), *, tls: bool = False, has_secret: Callable[[web.Request], bool] = lambda request: False
    ) -> None:
        self._is_loopback = is_loopback(bound)
        self._named = tuple(pattern.lower() for pattern in named)
        self._own = socket.gethostname().lower()
        self._tls, self._has_secret = tls, has_secret

    def refuse(self, request: web.Request) -> RefusedRequest | None:
        """Returns why the request is refused; None: it is taken."""
        hosts = request.headers.getall("Host", [])
        if len(hosts) > 1 or (not hosts and request.version >= (1, 1)):
            return RefusedRequest(400, "the request must have one Host header")
        host = hosts[0] if hosts else ""
        if self._is_of_another_site(request, host):
            problem = "a page of another site asks: only the pages served here, programs and links may; leave out Origin, or ask from here"
            return RefusedRequest(403, problem)
        if not hosts or self._tls or self.takes_host(host) or self._has_secret(request):
            return None
        name, reached = _name_of(host) or host, "localhost, 127.0.0.1" if self._is_loopback else "its IP address, a name without a dot"
        return RefusedRequest(403, f"Host {name!r:.100} is no name of this server: ask {reached}, or add the name to http_hosts")

    def takes_host(self, host: str) -> bool:
        """Returns whether this is a ``Host`` under which the port is asked."""
        name = _name_of(host)
        if not name:
            return False
        if is_loopback(name) or any(fnmatchcase(name, pattern) for pattern in self._named):
            return True
        return not self._is_loopback and (_is_address(name) or "." not in name or name == self._own)

    def _is_of_another_site(self, request: web.Request, host: str) -> bool:
        site = request.headers.get("Sec-Fetch-Site")  # pages cannot set it
        if site == "same-origin":
            return False
        follows = request.method in ("GET", "HEAD") and request.headers.get("Sec-Fetch-Mode") == "navigate"
        if site not in (None, "none") and not (follows and request.headers.get("Sec-Fetch-Dest") == "document"):
            return True
        return any(not self._is_own(origin, host) for origin in request.headers.getall("Origin", []))

    def _is_own(self, origin: str, host: str) -> bool:
        """Returns whether a page of `origin` was served here, or by a proxy that `http_hosts`
        names.
        """
        parts = _ORIGIN.fullmatch(origin.lower())
        if parts is None:
            return False
        name = _name_of(parts[1])
        return bool(host and parts[1] == host.lower()) or any(fnmatchcase(name, pattern) for pattern in self._named if pattern != "*")


def _name_of(host: str) -> str:
    """The name or the address in a ``Host``, without the port; "": it is none."""
    parts = _HOST.fullmatch(host)
    return "" if parts is None else parts[1].strip("[]").rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Returns whether this name or address reaches nothing but this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def names_in(text: str) -> tuple[str, ...]:
    """The names of a setting `http_hosts`, which commas separate."""
    return tuple(name for each in text.split(",") if (name := each.strip()))
