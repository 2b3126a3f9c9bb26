"""A rejected configuration in commands: `tail` explains it; by `verify` and `status` the former one
is in force.
"""

from __future__ import annotations

from pathlib import Path

from equipoise.log import open_log
from equipoise.statemachine.partition import real_machine
from tests.unit.equipoise.test_commands import run
from tests.unit.statemachine.test_refused_configuration import TYPO, lead, log, stored


def test_tail_shows_a_rejected_configuration_and_verify_finds_the_log_identical(tmp_path: Path) -> None:
    records = log(TYPO)
    _, decisions = lead(records, real_machine)
    location = f"{tmp_path}/group.db"
    with open_log(location, "w") as target:
        for record in records:
            target.append_fact(record.group, record.append_ms, record.event)
            target.append_decisions(each for each in stored([record], decisions) if each is not record)  # type: ignore[misc]
    told = run("tail", location).stdout.splitlines()
    assert "GroupConfigured is rejected (assignor_unavailable): " in told[-1]
    assert sum(": configured: " in line for line in told) == 1, "the former one"
    assert told[-1].endswith("did you mean 'high_availability'?")
    assert run("verify", location).exit_code == 0
    assert "high_availability" in run("status", location, "--all").stdout
