"""What every test shares: hypothesis profiles, `--rewrite` for golden files, and the turns of slow
tests.

Hypothesis draws the same examples in every run (`fixed`), so that a change is judged by what it
changes. `make examples` draws new ones (EXAMPLES=new), twice as many, and keeps failures in
.hypothesis/. What it finds becomes an `@example` of its test. `make soak` prints its seeds.

Neither has a deadline: two shared cores say nothing about speed. Benchmarks do that, by ratios.
"""

from __future__ import annotations

import json
import os
import signal
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
import hypothesis
import pytest

from equipoise.cli.screen import Screen

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

SLOW = Path(__file__).with_name("slow.txt")
"""Names of tests that are slow beside those that are marked so: long for what they are, or one case
of many that is.
"""
SLOW_S = 0.5
TURNS = 10
"""In so many builds, one after the other, every slow test runs; see `.ci/run`."""
_SLOW_IS_NO_FAULT = [hypothesis.HealthCheck.too_slow]

hypothesis.settings.register_profile(
    "fixed", derandomize=True, deadline=None, max_examples=50, print_blob=True, database=None, suppress_health_check=_SLOW_IS_NO_FAULT
)
hypothesis.settings.register_profile("new", deadline=None, max_examples=100, print_blob=True, suppress_health_check=_SLOW_IS_NO_FAULT)
hypothesis.settings.load_profile("new" if os.environ.get("EXAMPLES") == "new" else "fixed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--turn", type=int, metavar="N", help=f"run every {TURNS}th slow test, others for each N")
    parser.addoption("--cpu", metavar="FILE", help=f"append what each test takes, in CPU seconds; those above {SLOW_S} belong into tests/slow.txt")
    parser.addoption("--rewrite", action="store_true", help="write golden files from what the code gives now; read the diff before committing")


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs in its background deaf to it, and children inherit that
    if config.getoption("--rewrite") and os.environ.get("CI"):
        raise pytest.UsageError("--rewrite is refused when CI is set: golden files are rewritten by people, who read the diff")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow = frozenset(SLOW.read_text(encoding="utf-8").splitlines())
    for item in items:
        if item.nodeid in slow:
            item.add_marker("slow")
    turn = config.getoption("--turn")
    if turn is not None:
        takes_turns = (item for item in items if item.get_closest_marker("slow") and not item.get_closest_marker("smoke"))
        left = [item for item in takes_turns if zlib.crc32(item.nodeid.encode()) % TURNS != turn % TURNS]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    began = os.times()
    try:
        return (yield)
    finally:
        if file := item.config.getoption("--cpu"):
            took_s = sum(os.times()[:4]) - sum(began[:4])
            with open(file, "a", encoding="utf-8") as written:
                written.write(f"{took_s:.1f} {item.nodeid.partition('@')[0]}\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _refuse_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _refuse_skip((yield))


def _refuse_skip(report: Report) -> Report:
    """In CI what would be skipped fails: whatever a test needs must be installed there."""
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome, report.longrepr = "failed", f"skipped, which is a failure in CI: {reason}"
    return report


@pytest.fixture(scope="session")
def rewrite(request: pytest.FixtureRequest) -> bool:
    """True: golden files are written instead of compared."""
    return bool(request.config.getoption("--rewrite"))


@pytest.fixture(scope="session", autouse=True)
def json_output_is_checked() -> Iterator[None]:
    """Whatever a command prints with --json in this process fits its schema, in every test."""
    answer, json_line = Screen.answer, Screen.json_line

    def checked(document: Any) -> None:
        from tests.json_schemas import check, reference_of

        context = click.get_current_context(silent=True)
        reference = None if context is None else reference_of(context)
        if reference is not None:
            check(reference, document)

    def answer_checked(screen: Screen, document: Any, *parts: Any) -> None:
        if screen.json:
            checked(json.loads(json.dumps(document)))
        answer(screen, document, *parts)

    def json_line_checked(screen: Screen, document: str) -> None:
        checked(json.loads(document))
        json_line(screen, document)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Screen, "answer", answer_checked)
        patch.setattr(Screen, "json_line", json_line_checked)
        yield
