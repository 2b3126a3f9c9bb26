"""The frame of the command line: exit codes, one line on stderr, JSON alone on stdout, tables,
progress bars, a closed pipe, an interrupt.
"""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import equipoise
from equipoise._build import COMMIT, commit, version_text
from equipoise.cli import COMMANDS, main
from equipoise.cli.screen import Screen, Table, plain
from equipoise.log import open_log
from tests.unit.equipoise.command_group_under_test import group
from tests.unit.replay.lived import lived, write

ROOT = Path(__file__).parents[3]
SCRIPT = [sys.executable, str(Path(__file__).with_name("command_group_under_test.py"))]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "TERM": "xterm", "COLUMNS": "100"}


def run(*args: str) -> Result:
    return CliRunner().invoke(group, args)


def script(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SCRIPT, *args], capture_output=True, text=True, env=ENVIRONMENT, check=False, timeout=60)


def on_a_terminal(*args: str, stdout_too: bool, columns: int = 100, command: Sequence[str] = SCRIPT) -> tuple[str, str]:
    """Runs the command with stderr (and stdout) on a terminal; returns what came on stdout, if a
    pipe, and on the terminal.
    """
    leader, follower = pty.openpty()
    environment = {**ENVIRONMENT, "COLUMNS": str(columns)}
    process = subprocess.Popen([*command, *args], stdout=follower if stdout_too else subprocess.PIPE, stderr=follower, env=environment, text=True)
    os.close(follower)
    drawn = b""
    while True:
        try:
            piece = os.read(leader, 65_536)
        except OSError:  # Linux says EIO when the last writer has gone
            break
        if not piece:
            break
        drawn += piece
    os.close(leader)
    piped = process.communicate(timeout=60)[0] or ""
    assert process.returncode == 0, drawn
    return piped, drawn.decode()


@pytest.mark.parametrize(
    ("how", "code", "line"),
    [
        ("input", 2, "equipoise: the log is a folder; name a file in it\n"),
        ("field", 2, "equipoise: LagReported.lags[0_3]: -1 is not a lag\n"),
        ("gap", 2, "equipoise: offset 17: offset 16 is missing\n"),
        ("base", 2, "equipoise: no\n"),
        ("invariant", 1, "equipoise: invariant 1: 0_0 has two owners\n"),
        ("missing-file", 2, "equipoise: group.db: No such file or directory\n"),
        ("interrupt", 130, "equipoise: interrupted\n"),
    ],
)
def test_error_is_one_line_and_exit_code(how: str, code: int, line: str) -> None:
    result = run("fails", how)
    assert (result.exit_code, result.stderr, result.stdout) == (code, line, "")


@pytest.mark.parametrize("how", ["defect", "recursion"])
def test_defect_asks_for_a_report_and_shows_traceback_with_debug(how: str) -> None:
    result = run("fails", how)
    assert result.exit_code == 70
    assert result.stderr.count("\n") == 1
    assert "please report it" in result.stderr
    for args in (["fails", how, "--debug"], ["--debug", "fails", how]):
        loud = run(*args)
        assert loud.exit_code == 70
        assert loud.stderr.startswith("Traceback")
        assert loud.stderr.endswith(result.stderr)


def test_user_error_shows_traceback_only_with_debug() -> None:
    assert "Traceback" not in run("fails", "field").stderr
    assert "Traceback" in run("fails", "field", "--debug").stderr


MISUSES = ["nothing", "--nothing", "answers --nothing", "answers --code", "answers --code x", "fails nothing", "fails", "answers a b"]


@pytest.mark.parametrize("line", MISUSES)
def test_misuse_is_one_line_that_names_the_help_and_exit_2(line: str) -> None:
    result = run(*line.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("equipoise: ")
    assert result.stderr.count("\n") == 1
    assert result.stderr.rstrip().endswith("--help")


def test_unknown_command_lists_commands() -> None:
    assert run("answer").stderr == "equipoise: no command 'answer'; did you mean answers?; see group --help\n"
    assert run("zzz").stderr == "equipoise: no command 'zzz'; there are: fails, answers, explains, counts, floods, waits; see group --help\n"


def test_answer_no_is_exit_1_on_stdout() -> None:
    assert run("answers", "--code", "1").exit_code == 1
    assert json.loads(run("answers", "--code", "1", "--json").stdout)["rows"][0][0] == "0_0"


def test_json_is_alone_on_stdout_and_silences_the_rest() -> None:
    result = run("answers", "--json")
    assert json.loads(result.stdout) == {"rows": [["0_0", 5, None], ["0_10", 123456, 0.25]]}
    assert result.stderr == ""


def test_piped_table_is_plain_and_aligned() -> None:
    result = run("answers")
    assert result.stdout == "a heading\ntask      lag  share\n0_0         5\n0_10  123,456    0.2\n"
    assert result.stderr == "two rows follow\n"
    assert run("answers", "--quiet").stderr == ""


def test_plain_table_is_never_cut() -> None:
    text = plain(Table(columns=("a",), rows=[("word " * 500 + "end",)]))
    assert text == "a\n" + "word " * 500 + "end"


def test_wide_characters_keep_their_columns() -> None:
    assert plain(Table(columns=("m", "n"), rows=[("日本", 1), ("ab", 22)], title="t")) == "t\nm      n\n日本   1\nab    22"


def test_row_of_wrong_length_is_error() -> None:
    with pytest.raises(ValueError, match="1 cells in a table of 2"):
        Table(columns=("a", "b"), rows=[("x",)])


def test_json_nan_is_error() -> None:
    with pytest.raises(ValueError, match="JSON"):
        Screen(json=True).answer({"share": float("nan")})


def test_exit_codes_of_a_real_process() -> None:
    assert [script("fails", how).returncode for how in ("field", "invariant", "defect", "interrupt")] == [2, 1, 70, 130]
    assert script("answers").returncode == 0
    assert script("answers", "--code", "1").returncode == 1
    assert script("nothing").returncode == 2


def test_interrupt_is_one_line() -> None:
    done = script("waits")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "equipoise: interrupted\n")


def test_closed_stdout_is_no_error() -> None:
    with subprocess.Popen([*SCRIPT, "floods"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"x" * 80 + b"\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141


def test_progress_bar_shows_only_on_a_terminal() -> None:
    piped, drawn = on_a_terminal("counts", "5000", stdout_too=False)
    assert piped == "5000\n"
    assert "counting" in drawn
    assert "5,000/5,000" in drawn
    for silencer in ("--quiet", "--json"):
        piped, drawn = on_a_terminal("counts", "5000", silencer, stdout_too=False)
        assert (piped, drawn) == ("5000\n", "")
    assert script("counts", "5000").stderr == ""


def test_terminal_table_has_borders() -> None:
    _, drawn = on_a_terminal("answers", stdout_too=True)
    assert "━" in drawn or "─" in drawn
    assert "123,456" in drawn


@pytest.mark.parametrize("columns", [24, 40, 60, 80, 100, 200])
def test_narrow_terminal_breaks_no_word(columns: int) -> None:
    _, drawn = on_a_terminal("explains", stdout_too=True, columns=columns)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", drawn).replace("\r", "")
    words = {word.strip(":·") for word in shown.split()}
    assert {"generation", "0_10", "04:35:17.024", "123,456", "acceptable_recovery_lag"} <= words
    assert max(map(len, shown.splitlines())) <= columns


def test_narrow_terminal_shows_rows_as_lines() -> None:
    narrow = on_a_terminal("explains", stdout_too=True, columns=40)[1]
    assert "task: 0_10 · decided: 04:35:17.024" in narrow
    assert "task: 0_10" not in on_a_terminal("explains", stdout_too=True, columns=200)[1]


def test_main_no_args_helps() -> None:
    result = CliRunner().invoke(main, [])
    assert result.exit_code == 0
    assert result.stdout == CliRunner().invoke(main, ["--help"]).stdout
    assert result.stdout.startswith("Usage: equipoise")


@pytest.mark.parametrize("line", ["--help", "verify --help", "spark --help"])
def test_help_imports_nothing_large(line: str) -> None:
    """numpy, the solver, pandas and pyarrow take half a second and over 100 MB; help needs none
    of them.
    """
    code = (
        "import sys\nfrom equipoise.cli import main\n"
        "try:\n    main(sys.argv[1:])\nfinally:\n"
        "    print([name for name in ('numpy', 'ortools', 'pandas', 'pyarrow', 'pyspark', 'aiokafka') if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *line.split()], capture_output=True, text=True, env=ENVIRONMENT, check=True, timeout=60)
    assert done.stdout.startswith("Usage: ")
    assert done.stderr == "[]\n"


def test_version_option_and_attribute_are_that_of_the_installed_package() -> None:
    assert equipoise.__version__ == metadata.version("equipoise")
    assert CliRunner().invoke(main, ["--version"]).stdout == f"{version_text()}\n"
    assert version_text().split()[:2] == ["equipoise", equipoise.__version__]


def test_commit_is_that_of_the_build_or_of_the_checkout(tmp_path: Path) -> None:
    package = tmp_path / "equipoise"
    package.mkdir()
    assert commit(package) == ""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert commit(package) == "", "nothing was committed yet"
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    assert commit(package) == head[:12]
    (package / COMMIT).write_text("0a1b2c3d4e5f\n")
    assert commit(package) == "0a1b2c3d4e5f"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_commands_has_an_example(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert f"equipoise {name}" in result.stdout
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.name == name
    assert {"quiet", "debug"} <= {str(param.name) for param in command.params}


def test_timeline_on_a_terminal_shows_progress_while_it_folds_and_while_it_draws(tmp_path: Path) -> None:
    with open_log(tmp_path / "group.db", "w") as log:
        write(log, lived())
    arguments = ["timeline", str(tmp_path / "group.db"), "--html", str(tmp_path / "x.html"), "--svg", str(tmp_path / "x.svg")]
    told, drawn = on_a_terminal(*arguments, stdout_too=False, command=[sys.executable, "-m", "equipoise"])
    assert told.startswith("orders")
    seen = re.findall(r"folding|drawing x\.\w+", drawn)
    assert [label for label, _ in itertools.groupby(seen)] == ["folding", "drawing x.html", "drawing x.svg"]
    assert f"/{len(lived()):,}" in drawn
