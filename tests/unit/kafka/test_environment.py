"""Settings of the environment."""

from __future__ import annotations

import attrs
import pytest

from equipoise.events.errors import InputError
from equipoise.hosting.live_settings import LiveSettings, read_settings
from equipoise.kafka.connection import Connection
from equipoise.kafka.declared_settings import OTHERS, from_environment, variable
from equipoise.worker.settings import WorkerSettings

SHAPES = (Connection, LiveSettings, WorkerSettings)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("EQUIPOISE_BOOTSTRP", "EQUIPOISE_BOOTSTRAP"),
        ("EQUIPOISE_BOOTSTRAP_SERVERS", "EQUIPOISE_BOOTSTRAP"),
        ("EQUIPOISE_SASL_USER", "EQUIPOISE_SASL_USERNAME"),
        ("EQUIPOISE_SSL_CA", "EQUIPOISE_SSL_CA_FILE"),
    ],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_variable_that_is_nearly_a_setting_is_refused(shape: type[Connection], name: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"^environment {name}: no such setting; did you mean {meant}\\?$"):
        read_settings(shape, {}, environ={name: "broker:9092"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EQUIPOISE_HOME", "/opt"),
        ("EQUIPOISE_IMAGE", "x"),
        ("EQUIPOISE_PORT", "tcp://10.0.0.1:8090"),
        ("EQUIPOISE_HTTP_PORT_8090_TCP_PORT", "8090"),
        ("EQUIPOISE_SERVICE_HOST", "10.0.0.1"),
        ("EQUIPOISE_HTTP_SERVICE_PORT", "8090"),
        ("BOOTSTRP", "x"),
    ],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_variable_of_somebody_else_is_left_alone(shape: type[Connection], name: str, value: str) -> None:
    assert read_settings(shape, {}, environ={name: value}) == shape()


@pytest.mark.parametrize("shape", SHAPES)
def test_variable_of_another_command_is_left_alone(shape: type[Connection]) -> None:
    every = {variable(field.name) for each in SHAPES for field in attrs.fields(each)} | OTHERS
    own = {variable(field.name) for field in attrs.fields(shape)}
    assert from_environment(shape, dict.fromkeys(every - own, "x")) == {}


@pytest.mark.parametrize("name", ["EQUIPOISE_SSL_CA_FILE", "EQUIPOISE_BOOTSTRAP", "EQUIPOISE_SSL_CHECK_HOSTNAME"])
def test_empty_variable_says_what_to_do(name: str) -> None:
    with pytest.raises(InputError, match=f"^environment {name}: it is empty; unset it, or set a value$"):
        Connection.from_environment({name: ""})
