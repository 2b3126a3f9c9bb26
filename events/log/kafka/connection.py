"""How to reach the brokers: one declaration for the worker, members and readers."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import Any

import attrs

from equipoise.events import fields
from equipoise.events.errors import InputError
from equipoise.events.log.kafka.client import Clients
from equipoise.events.log.kafka.settings import build, from_environment, setting

_TEXT_OR_NONE = fields.optional(fields.text())
MISSING = "Kafka needs the extra: pip install 'equipoise[kafka]'"


@attrs.frozen(kw_only=True)
class Connection:
    """Addresses, TLS and SASL. Passwords come from the environment or TOML."""

    bootstrap: str = setting("127.0.0.1:9092", "Brokers to begin with: host:port,host:port.", validator=fields.text())
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
        try:
            context = ssl.create_default_context(cafile=self.ssl_ca_file)
            context.check_hostname = self.ssl_check_hostname
            if self.ssl_certificate_file is not None:
                context.load_cert_chain(self.ssl_certificate_file, self.ssl_key_file, self.ssl_key_password)
        except OSError as error:  # ssl.SSLError is one
            raise InputError(f"ssl_ca_file, ssl_certificate_file, ssl_key_file: {error}") from None
        return context

    @property
    def clients(self) -> Clients:
        """Makes clients with these settings. Raises InputError when the extra `kafka` is not
        installed, or TLS files cannot be used.
        """
        try:
            from equipoise.events.log.kafka.aiokafka_client import DeployedClients
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


def connection_to(bootstrap: str, environ: Mapping[str, str] = os.environ) -> Connection:
    """Returns a connection to `bootstrap`, with TLS and SASL from the environment. Raises
    InputError.
    """
    return Connection.from_environment(environ, bootstrap=bootstrap)
