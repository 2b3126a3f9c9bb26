"""Faust's credentials for the brokers, from the worker's settings."""

from __future__ import annotations

from typing import Any

from equipoise.worker.settings import WorkerSettings


def faust_credentials(settings: WorkerSettings) -> Any:
    """Returns what a Faust app takes as `broker_credentials`; None: a connection in plain text."""
    import faust
    from faust.types.auth import AuthProtocol, SASLMechanism

    context = settings.ssl_context
    if settings.security_protocol.startswith("SASL"):
        credentials = faust.SASLCredentials(
            username=settings.sasl_username,
            password=settings.sasl_password,
            ssl_context=context,
            mechanism=SASLMechanism(settings.sasl_mechanism),
        )
        credentials.protocol = AuthProtocol(settings.security_protocol)
        return credentials
    return None if context is None else faust.SSLCredentials(context)
