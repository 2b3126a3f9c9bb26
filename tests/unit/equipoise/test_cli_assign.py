"""`python -m equipoise.assign`: one plan for each problem, in order and at once; the first unsound
line ends it with its number and field.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from equipoise.assign import assign
from equipoise.cli.screen import Screen

COMMAND = [sys.executable, "-m", "equipoise.assign"]


def problem(count: int = 2, /, **changes: Any) -> dict[str, Any]:
    tasks = [{"id": f"0_{partition}", "stateful": True, "end_offset": 5000} for partition in range(4)]
    first = {"id": "m0", "capacity": 1, "active": [task["id"] for task in tasks], "lags": {task["id"]: "active" for task in tasks}}
    rest = [{"id": f"m{number}", "capacity": 1} for number in range(1, count)]
    return {"assignor": "high_availability", "config": {"acceptable_recovery_lag": 100}, "tasks": tasks, "members": [first, *rest], **changes}


def lines(*problems: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in problems)


def run(stdin: bytes, *args: str) -> Result:
    return CliRunner().invoke(assign, args, input=stdin)


def plans(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_assign_prints_plans_in_order() -> None:
    answered = plans(run(lines(problem(1), problem(2), problem(3))))
    assert [sorted(plan["target"]) for plan in answered] == [["m0"], ["m0", "m1"], ["m0", "m1", "m2"]]
    assert answered[0]["members"]["m0"]["active"] == ["0_0", "0_1", "0_2", "0_3"]
    assert [plan["cost"]["moves"] for plan in answered] == [0, 2, 2]
    assert [movement["state"] for movement in answered[1]["movements"]] == ["warming", "warming"]
    assert answered[1]["members"]["m1"]["active"] == []
    assert answered[1]["members"]["m1"]["warmup"] == answered[1]["target"]["m1"]


def test_assign_lines_are_independent() -> None:
    alone = plans(run(lines(problem(3))))
    assert plans(run(lines(problem(2), problem(3), problem(3)))) == [*plans(run(lines(problem(2)))), *alone, *alone]


def test_assign_reads_a_file_like_stdin_and_skips_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_bytes(lines(problem(2)) + b"\n  \n" + lines(problem(1)).rstrip())
    assert plans(run(b"", str(tmp_path / "p.jsonl"))) == plans(run(lines(problem(2), problem(1)), "-"))


def test_assign_empty_input() -> None:
    assert plans(run(b"")) == []


@pytest.mark.parametrize(
    ("bad", "place"),
    [
        (b"not json\n", "<stdin> line 2: "),
        (b"\xff\xfe{}\n", "<stdin> line 2: "),
        (lines(problem(2, surplus=1)), "surplus"),
        (lines(problem(2, assignor="nobody")), "nobody"),
        (lines(problem(2, config={"max_warmups": -1})), "max_warmups"),
        (lines(problem(2, members=[{"id": "m1", "lags": {"0_0": -1}}])), "members[0]"),
        (lines(problem(2, members=[{"id": "m1"}, {"id": "m1"}])), "m1"),
        (b'{"assignor": "\\ud800"}\n', "<stdin> line 2: "),
        (b"[" * 100_000 + b"\n", "<stdin> line 2: "),
    ],
)
def test_assign_stops_at_an_invalid_line_and_names_it(bad: bytes, place: str) -> None:
    result = run(lines(problem(2)) + bad + lines(problem(2)))
    assert result.exit_code == 2
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr.startswith("equipoise: <stdin> line 2: ")
    assert place in result.stderr
    assert result.stderr.count("\n") == 1


def test_assign_missing_file_is_error() -> None:
    result = run(b"", "absent.jsonl")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "absent.jsonl" in result.stderr


def test_assign_answers_before_the_next_problem() -> None:
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for count in (1, 2):
            process.stdin.write(lines(problem(count)))
            process.stdin.flush()
            assert len(json.loads(process.stdout.readline())["target"]) == count
        process.stdin.close()
        assert process.wait(timeout=60) == 0


def test_assign_non_ascii_names_any_locale() -> None:
    named = problem(1, members=[{"id": "glück-日本"}])
    ascii_only = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(COMMAND, input=lines(named), capture_output=True, check=False, env=ascii_only)
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)["target"]) == ["glück-日本"]


def test_assign_help_example_works() -> None:
    text = CliRunner().invoke(assign, ["--help"]).stdout
    example = text[text.index("{") : text.rindex("}'") + 1]
    assert list(plans(run(b" ".join(example.encode().split()) + b"\n"))[0]["target"]) == ["m1"]


def test_plan_on_a_terminal_is_indented_and_the_same_json(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    plan = '{"members": {"m\\u202e1": {"active": ["0_0"]}}, "name": "m\u00fc"}'
    Screen().json_line(plan, indent=2)
    piped = capsysbinary.readouterr().out
    assert piped == plan.encode() + b"\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    Screen().json_line(plan, indent=2)
    shown = capsysbinary.readouterr().out.decode()
    assert json.loads(shown) == json.loads(plan)
    assert '\n  "members": {\n' in shown
    assert "\\u202e" in shown
