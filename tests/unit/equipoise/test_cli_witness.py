"""`equipoise witness` with --ended and with --group, where no broker is needed: what it says about
its options, and without a broker. Removals: tests/live/test_group_members.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.hosting.live_settings import read_settings
from equipoise.kafka.connection import Connection

NOBODY = "127.0.0.1:1"
PATIENCE_S = 60.0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["witness", "--ended", "--yes"], "--ended: name the --group of the member"),
        (["witness", "--ended", "--group", "g", "--client-id", "c"], "--client-id and --host: name both"),
        (["witness", "--ended", "--group", "g", "--host", "10.0.0.1"], "--client-id and --host: name both"),
        (["witness", "--ended", "--group", "g", "--instance-id", "x", "--member-id", "m"], "name one of them"),
        (["witness", "--ended", "--group", "g", "--", "true"], "--ended: name the --group of the member"),
        (["witness", "--yes", "--", "true"], "--yes: needs --ended"),
        (["witness", "--json", "--", "true"], "--json: needs --ended"),
        (["witness", "--instance-id", "x", "--", "true"], "--instance-id: needs --group"),
        (["witness", "--client-id", "x", "--", "true"], "--client-id: needs --group"),
        (["witness", "--bootstrap", NOBODY, "--", "true"], "--bootstrap: needs --group"),
        (["witness", "--group", "g", "--client-id", "c", "--instance-id", "x", "--", "true"], "name one of them"),
        (["witness", "--group", "g", "--security-protocol", "SASL_SSL", "--", "true"], "sasl_username and sasl_password"),
    ],
)
def test_wrong_options_end_with_one_line(arguments: list[str], line: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert line in result.stderr
    assert result.stderr.count("\n") == 1


def test_settings_of_a_connection_are_not_read_without_a_group() -> None:
    """They may be meant for the command, and be complete only there."""
    done = subprocess.run(
        [sys.executable, "-m", "equipoise", "witness", "--", "true"], env={"EQUIPOISE_SECURITY_PROTOCOL": "SASL_SSL"}, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0


def test_file_of_settings_may_have_those_of_the_log_too(tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    file.write_text('[connection]\nbootstrap = "b:1"\nprefix = "p"\n')
    assert read_settings(Connection, {}, file=file, environ={}) == Connection(bootstrap="b:1")


def test_remove_member_without_a_broker_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "equipoise", "witness", "--ended", "--group", "g", "--instance-id", "x", "--bootstrap", NOBODY],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"equipoise: bootstrap: no broker answers at {NOBODY} ")
    assert done.stderr.count("\n") == 1


def test_command_runs_without_a_broker_and_nothing_is_removed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "equipoise", "witness", "--group", "g", "--bootstrap", NOBODY, "--", "sh", "-c", "exit 3"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 3
    first, second = done.stderr.splitlines()
    assert first.startswith("group g: the members cannot be read, trying again: ")
    assert "has ended; nothing was removed, because the members could not be read: " in second
