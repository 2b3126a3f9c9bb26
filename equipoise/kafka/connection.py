"""How to reach the brokers: one declaration for the worker, members and readers."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import Any

import attrs

from equipoise.events import fields
from equipoise.events.errors import FieldError, InputError
from equipoise.kafka.client import Clients
from equipoise.kafka.declared_settings import build, from_environment, setting, variable

MOST_PORT = 65_535


def _addresses(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Accepts brokers' addresses: a host or host:port each, with commas between them."""
    fields.text()(owner, attribute, value)
    for address in value.split(","):
        problem = _unsound(address.strip())
        if problem is not None:
            raise FieldError(f"{type(owner).__name__}.{attribute.name}", f"{problem}; write host:port[,host:port]")


def _unsound(address: str) -> str | None:
    """Returns what is wrong with one address; None: nothing."""
    if "/" in address or "@" in address or any(char.isspace() for char in address):
        return f"{address!r:.80} is not host:port"
    if address.startswith("["):
        host, bracket, rest = address[1:].partition("]")
        port = rest.removeprefix(":") if rest.startswith(":") else None
        if not bracket or (rest and port is None):
            return f"{address!r:.80} is not [host]:port"
    elif address.count(":") > 1:  # an IPv6 address without a port
        host, port = address, None
    else:
        host, colon, rest = address.partition(":")
        port = rest if colon else None
    if not host:
        return f"{address!r:.80} names no host"
    if port is not None and not (port.isascii() and port.isdecimal() and 1 <= int(port) <= MOST_PORT):
        return f"{port!r:.80} in {address!r:.80} is not a port from 1 to {MOST_PORT}"
    return None


_TEXT_OR_NONE = fields.optional(fields.text())
MISSING = "Kafka needs the extra: pip install 'equipoise[kafka]'"


@attrs.frozen(kw_only=True)
class Connection:
    """Addresses, TLS and SASL. Passwords come from the environment or TOML."""

    bootstrap: str = setting("127.0.0.1:9092", "Brokers to begin with: host:port,host:port.", validator=_addresses)
    security_protocol: str = setting(
        "PLAINTEXT",
        "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
        validator=fields.one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )
    sasl_mechanism: str = setting(
        "PLAIN", "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.", validator=fields.one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    )
    sasl_username: str | None = setting(None, "User for SASL.", validator=_TEXT_OR_NONE)
    sasl_password: str | None = setting(None, "Password for SASL.", validator=_TEXT_OR_NONE, secret=True)
    ssl_ca_file: str | None = setting(None, "Certificates that the brokers' are signed by (PEM); else the system's.", validator=_TEXT_OR_NONE)
    ssl_certificate_file: str | None = setting(None, "Our own certificate (PEM), where brokers ask for one.", validator=_TEXT_OR_NONE)
    ssl_key_file: str | None = setting(None, "Its key (PEM).", validator=_TEXT_OR_NONE)
    ssl_key_password: str | None = setting(None, "Password of the key.", validator=_TEXT_OR_NONE, secret=True)
    ssl_check_hostname: bool = setting(True, "Whether a broker's certificate must name its host.", validator=fields.boolean)

    def __attrs_post_init__(self) -> None:
        if self.security_protocol.startswith("SASL") and (self.sasl_username is None or self.sasl_password is None):
            raise InputError(f"sasl_username and sasl_password: security_protocol {self.security_protocol} needs both")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ, *, bootstrap: str | None = None) -> Connection:
        """Returns a connection as variables `EQUIPOISE_...` say, such as EQUIPOISE_BOOTSTRAP or
        EQUIPOISE_SASL_PASSWORD. `bootstrap`: instead of the variable. Raises InputError.
        """
        address = {} if bootstrap is None else {"bootstrap": bootstrap}
        return build(Connection, ("environment", from_environment(Connection, environ)), ("address", address))

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """Returns the TLS context; None without TLS. Raises InputError for files that cannot be
        used.
        """
        if "SSL" not in self.security_protocol:
            return None
        if self.ssl_key_file is not None and self.ssl_certificate_file is None:
            raise InputError("ssl_certificate_file: ssl_key_file is its key, and needs it; set both or none")
        for name in ("ssl_ca_file", "ssl_certificate_file", "ssl_key_file"):
            _check_file(name, getattr(self, name))
        try:
            context = ssl.create_default_context(cafile=self.ssl_ca_file)
        except OSError as error:  # ssl.SSLError is one
            raise InputError(f"ssl_ca_file: {self.ssl_ca_file} holds no certificates in PEM ({error}); name the file of the brokers' CA") from None
        context.check_hostname = self.ssl_check_hostname
        if self.ssl_certificate_file is not None:
            key = self.ssl_key_file or self.ssl_certificate_file
            try:
                context.load_cert_chain(self.ssl_certificate_file, self.ssl_key_file, self.ssl_key_password or _no_password)
            except _NoPasswordError:
                raise InputError(f"ssl_key_password: the key in {key} is encrypted; set {variable('ssl_key_password')}") from None
            except OSError as error:
                what = f"{self.ssl_certificate_file} and {key} are no certificate in PEM with its key, or the password is another one ({error})"
                raise InputError(f"ssl_certificate_file, ssl_key_file: {what}") from None
        return context

    @property
    def clients(self) -> Clients:
        """Makes clients with these settings. Raises InputError when the extra `kafka` is not
        installed, or TLS files cannot be used.
        """
        try:
            from equipoise.kafka.aiokafka_wire import DeployedClients
        except ImportError:
            raise InputError(MISSING) from None
        return DeployedClients(self.options())

    def options(self) -> dict[str, Any]:
        """Returns keyword arguments for aiokafka's clients, producers and consumers."""
        options: dict[str, Any] = {"bootstrap_servers": self.bootstrap, "security_protocol": self.security_protocol, "ssl_context": self.ssl_context}
        if self.security_protocol.startswith("SASL"):
            options |= {
                "sasl_mechanism": self.sasl_mechanism,
                "sasl_plain_username": self.sasl_username,
                "sasl_plain_password": self.sasl_password,
            }
        return options


class _NoPasswordError(Exception):
    """OpenSSL asked for the password of a key. Without this it would ask on the terminal."""


def _no_password() -> str:
    raise _NoPasswordError


def _check_file(name: str, path: str | None) -> None:
    """Raises InputError when the file of a setting cannot be read."""
    if path is None:
        return
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise InputError(f"{name}: {path}: {error.strerror or error}; correct the path, or the rights of the file") from None


def connection_to(bootstrap: str, environ: Mapping[str, str] = os.environ) -> Connection:
    """Returns a connection to `bootstrap`, with TLS and SASL from the environment. Raises
    InputError.
    """
    return Connection.from_environment(environ, bootstrap=bootstrap)
