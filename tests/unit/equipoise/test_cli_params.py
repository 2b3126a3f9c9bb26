"""What is written after a command: logs, tasks and settings become values, or one line that names
the fix.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import click
import pytest
from click.testing import CliRunner, Result

from equipoise.cli import main
from equipoise.cli.command import command
from equipoise.cli.params import LOG, TASK, check_live_settings, read
from equipoise.cli.screen import Screen
from equipoise.cli.simulation import overridden
from equipoise.events.errors import InputError
from equipoise.events.facts import LogOpened, ProbingTick
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId
from equipoise.hosting.changed_settings import with_settings
from equipoise.log import Log, open_log

opened: list[Log] = []


@command("counts", json=True)
@click.argument("log", type=LOG)
@click.option("--task", type=TASK)
def counts(screen: Screen, log: Log, task: TaskId | None) -> None:
    """Counts the records of a log."""
    opened.append(log)
    screen.answer({"records": sum(1 for _ in read(screen, log, "counting")), "task": task})


def run(*args: str) -> Result:
    return CliRunner().invoke(counts, [*args, "--json"])


@pytest.mark.parametrize(("interval_ms", "said"), [(59_999, True), (60_000, False)])
def test_interval_below_the_kip_minimum_warns(interval_ms: int, said: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert overridden(Screen(), GroupSettings(), [f"probing_interval_ms={interval_ms}"]) == {"probing_interval_ms": interval_ms}
    assert ("--set probing_interval_ms: 59999 is below 60000, the least of KIP-441" in capsys.readouterr().err) is said
    assert overridden(Screen(), GroupSettings(probing_interval_ms=5), []) == {}  # recorded, not set here
    assert capsys.readouterr().err == ""


def test_interval_below_the_kip_minimum_is_refused_for_a_running_group() -> None:
    """One that the group has already stays: other settings may change."""
    few, least = GroupSettings(probing_interval_ms=59_999), GroupSettings(probing_interval_ms=60_000)
    for before in (None, least, GroupSettings(probing_interval_ms=5_000)):
        with pytest.raises(InputError, match=r"--set probing_interval_ms: 59999 is below 60000, the least of KIP-441; .*; write 60000 or more"):
            check_live_settings(few, before)
        check_live_settings(least, before)
    check_live_settings(attrs.evolve(few, max_warmups=7), few)


@pytest.fixture(params=["group.db", "group.jsonl"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    place = str(tmp_path / request.param)
    with open_log(place, "w") as log:
        log.append_fact("", 0, LogOpened(log_id="l1"))
        log.append_fact("orders", 5, ProbingTick())
    return place


def test_log_is_closed_after_the_command(location: str) -> None:
    assert run(location).stdout == '{\n  "records": 2,\n  "task": null\n}\n'
    with pytest.raises(InputError, match="closed"):
        next(iter(opened.pop().read()))


@pytest.mark.parametrize("line", ["verify", "explain --task 0_0", "tail", "timeline", "what-if", "what-if --to x.db", "archive --to x.db"])
def test_log_left_out_is_that_of_the_brokers_of_the_environment(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EQUIPOISE_BOOTSTRAP", raising=False)
    result = CliRunner().invoke(main, line.split())
    assert result.exit_code == 2
    assert "Missing argument '[LOG]'. Name a file, an archive or kafka://host:port, or set EQUIPOISE_BOOTSTRAP=host:port" in result.stderr
    monkeypatch.setenv("EQUIPOISE_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setenv("EQUIPOISE_PREFIX", "other")
    result = CliRunner().invoke(main, line.split())
    assert result.exit_code == 2
    assert "no broker answers at 127.0.0.1:1 " in result.stderr


@pytest.mark.parametrize("line", ["cluster", "record --to {t}/x.db --once"])
def test_brokers_left_out_are_those_of_the_environment(line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = line.format(t=tmp_path).split()
    monkeypatch.delenv("EQUIPOISE_BOOTSTRAP", raising=False)
    assert "as kafka://host:port, or set EQUIPOISE_BOOTSTRAP=host:port" in CliRunner().invoke(main, words).stderr
    monkeypatch.setenv("EQUIPOISE_BOOTSTRAP", "127.0.0.1:1")
    assert "no broker answers at 127.0.0.1:1 " in CliRunner().invoke(main, words).stderr


def test_log_sqlite_url(tmp_path: Path) -> None:
    with open_log(tmp_path / "x.db", "w") as log:
        log.append_fact("", 0, LogOpened(log_id="l1"))
    assert '"records": 1' in run(f"sqlite:///{tmp_path}/x.db").stdout


@pytest.mark.parametrize("name", ["absent.db", "absent.jsonl", "group.parquet", "kafka://h:1", "", "."])
def test_log_missing_or_of_unknown_form_is_error(tmp_path: Path, name: str) -> None:
    result = run(str(tmp_path / name) if name.startswith("absent") else name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("equipoise: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["garbage.db", "garbage.jsonl"])
def test_log_unreadable_is_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x00\xffno log at all\n" * 9)
    result = run(str(tmp_path / name))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1


def test_task_wrong_value_names_the_form(location: str) -> None:
    assert '"task": [\n    0,\n    3\n  ]' in run(location, "--task", "0_3").stdout
    result = run(location, "--task", "0-3")
    assert result.exit_code == 2
    assert "<sub-topology>_<partition>, as in 0_3" in result.stderr


def test_settings_go_over_settings_the_last_one_wins() -> None:
    changes = ["max_warmups=3", "max_warmups=4", "rack_aware_tags=zone,host", "rack_aware_strategy=min_cost"]
    settings = with_settings(GroupSettings(num_standbys=2), changes)
    assert settings == GroupSettings(num_standbys=2, max_warmups=4, rack_aware_tags=("zone", "host"), rack_aware_strategy="min_cost")
    assert with_settings(settings, []) == settings
    assert with_settings(settings, ["rack_aware_tags="]).rack_aware_tags == ()


def test_options_of_other_assignors_are_typed_as_json_has_them() -> None:
    changes = ["options.a=2", "options.b=0.5", "options.c=true", "options.d=[1]", "options.e=x=y"]
    settings = with_settings(GroupSettings(options={"a": 1, "z": 0}), changes)
    assert settings.options == {"a": 2, "b": 0.5, "c": True, "d": "[1]", "e": "x=y", "z": 0}


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("max_warmups", "write it as name=value"),
        ("max_warmup=3", "did you mean max_warmups?"),
        ("zzz=3", "there are: acceptable_recovery_lag"),
        ("max_warmups=three", "'three' is not a whole number"),
        ("max_warmups=-1", "--set max_warmups: -1 is not a whole number"),
        ("rack_aware_strategy=best", "--set rack_aware_strategy: 'best' is not one of"),
    ],
)
def test_wrong_setting_error_names_it_and_fix(setting: str, text: str) -> None:
    with pytest.raises(InputError) as caught:
        with_settings(GroupSettings(), [setting])
    assert text in str(caught.value)
