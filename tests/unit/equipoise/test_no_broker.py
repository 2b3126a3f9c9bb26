"""Every command says, in one sentence and soon, that no broker answers, and why."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from equipoise.cli import main
from equipoise.kafka import aiokafka_lifecycle, started_clients
from equipoise.kafka.connection import Connection

PLACE = "127.0.0.1:1"
REFUSED = f"bootstrap: no broker answers at {PLACE} ({PLACE}: Connection refused); start it, or correct the address"
ASKS = {
    "status": f"status --bootstrap {PLACE}",
    "explain": f"explain kafka://{PLACE} --task 0_1",
    "timeline": f"timeline kafka://{PLACE}",
    "tail": f"tail kafka://{PLACE}",
    "verify": f"verify kafka://{PLACE}",
    "size": f"size kafka://{PLACE}",
    "what-if": f"what-if kafka://{PLACE} --to {{t}}/x.db",
    "worker": f"worker --bootstrap {PLACE} --http-port 0",
    "witness": f"witness --ended --group g --member-id m --bootstrap {PLACE}",
    "configure": f"configure --group g --bootstrap {PLACE}",
    "scale-down": f"scale-down --group g --keep 1 --bootstrap {PLACE}",
    "lead": f"lead --group g --to {{t}}/g.db --bootstrap {PLACE}",
    "migrate": f"migrate --bootstrap {PLACE}",
    "archive": f"archive kafka://{PLACE} --to {{t}}/a/",
    "cluster": f"cluster kafka://{PLACE}",
}
ALSO = (
    f"lead --group g --dry-run --bootstrap {PLACE}",
    f"lead --group g-* --dry-run --bootstrap {PLACE}",
    f"lead --group g-* --to {{t}}/logs --bootstrap {PLACE}",
    f"migrate --group g --back --bootstrap {PLACE}",
    f"migrate --to members --group g --consumers c --bootstrap {PLACE}",
    f"configure --group g --set max_warmups=1 --bootstrap {PLACE}",
)
LOOKS_ITSELF = {"doctor"}
"""Commands whose answer is that no broker answers."""


def run(words: str, folder: Path) -> Result:
    return CliRunner().invoke(main, words.format(t=folder).split())


def test_commands_are_all_that_reach_brokers() -> None:
    context = click.Context(main)
    every = {name: main.get_command(context, name) for name in main.list_commands(context)}
    found = {name for name, each in every.items() if each and {"bootstrap", "log"} & {param.name for param in each.params}}
    assert found | LOOKS_ITSELF <= {*ASKS, *LOOKS_ITSELF}


@pytest.mark.parametrize("words", [*ASKS.values(), *ALSO])
def test_command_without_broker_says_so_in_one_sentence(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.cli.ended_member.ANSWERED_WITHIN_S", 0.2)
    result = run(words, tmp_path)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == f"equipoise: {REFUSED}"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a broker that takes connections and says nothing."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(50)
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("words", [ASKS["status"], ASKS["lead"], ASKS["cluster"]])
def test_command_with_a_silent_broker_says_so_soon(words: str, silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(started_clients, "FIRST_ANSWER_S", 0.3)
    monkeypatch.setattr(aiokafka_lifecycle, "_LEAST_S", 0.3)
    began_s = time.monotonic()
    result = run(words.replace(PLACE, silent), tmp_path)
    assert f"no broker answers at {silent} ({silent}: no answer within" in result.stderr
    assert time.monotonic() - began_s < 20, "a request may take 40 s"


def test_default_address_is_named_as_such() -> None:
    default = Connection().bootstrap
    with pytest.raises(started_clients.UnreachableError, match="this is the default address, and --bootstrap or EQUIPOISE_BOOTSTRAP sets it"):
        raise started_clients.unreachable(Connection(), f"{default}: Connection refused")


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("b:1: SaslAuthenticationFailed: Invalid username or password", "sasl_username, sasl_password: the brokers at b:1 refuse them"),
        ("b:1: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", "ssl_ca_file: no TLS connection to b:1"),
        ("b:1: Connection refused", "bootstrap: no broker answers at b:1 (b:1: Connection refused); start it, or correct the address"),
    ],
)
def test_sentence_names_what_is_to_be_corrected(why: str, said: str) -> None:
    text = str(started_clients.unreachable(Connection(bootstrap="b:1"), why))
    assert text.startswith(said)
    assert ("start it" in text) == ("refused" in why)
