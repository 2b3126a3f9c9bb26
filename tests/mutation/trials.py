"""Runs tests on mutants, each in a fork of a process that has imported everything and run nothing.

A trial ends with the first test that fails. A test that loops for ever ends by its processor time.
"""

from __future__ import annotations

import contextlib
import difflib
import gc
import hashlib
import importlib
import io
import itertools
import math
import os
import pickle
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import attrs
import coverage
import pytest
from _pytest.runner import runtestprotocol

from tests.mutation.mutants import ROOT, Mutant

T = TypeVar("T")

EXAMPLES = 10
"""Examples of each Hypothesis test."""
MOST_S = 6.0
"""Tests of one trial: the first of them that together take so long on the original, in s."""
OWN = 10
"""So much sooner are the tests tried whose file is named after the module, or begins its name."""
SLACK_S, TIMES_SLOWER = 2, 3
"""Processor time of a trial: so many times what its tests need on the original, and so many s."""


@attrs.frozen(kw_only=True)
class Measured:
    """What one test does on the original."""

    depends: str
    """Hash of the test's file."""
    seconds: float
    """Processor time."""
    lines: Mapping[str, Collection[int]]
    """Module -> lines that it runs."""


@attrs.define(kw_only=True)
class Baseline:
    tests: Mapping[str, Measured]
    imported: Collection[str]
    """Names of the modules that the tests import late."""
    texts: Mapping[str, str]
    """Module -> its text, by which lines are named."""

    @cached_property
    def covered(self) -> Mapping[tuple[str, int], Collection[str]]:
        """(module, line) -> tests that run it."""
        found: dict[tuple[str, int], list[str]] = {}
        for test, measured in self.tests.items():
            for module, lines in measured.lines.items():
                for line in lines:
                    found.setdefault((module, line), []).append(test)
        return found


@attrs.frozen(kw_only=True)
class Trial:
    mutant: Mutant
    killer: str | None
    """The test that failed, or TIMEOUT; None: all passed, and the mutant survives."""
    tests: int
    """Tests that run the mutated lines."""


TIMEOUT = "timeout"


def with_tests(selection: Sequence[str], then: Callable[[list[pytest.Item]], T], *, examples: int = EXAMPLES) -> T:
    """Collects the selected tests in this process and hands them to `then`. `examples`: of each
    Hypothesis test. One that fails is looked at no further.
    """

    class Inside:
        result: T

        def pytest_collection(self) -> None:
            import hypothesis

            every = list(hypothesis.HealthCheck)
            once = hypothesis.Phase.explicit, hypothesis.Phase.generate
            few = hypothesis.settings(
                derandomize=True, deadline=None, max_examples=examples, database=None, suppress_health_check=every, phases=once, print_blob=False
            )
            hypothesis.settings.register_profile("mutation", few)
            hypothesis.settings.load_profile("mutation")

        def pytest_runtestloop(self, session: pytest.Session) -> bool:
            self.result = then(session.items)
            return True

    inside = Inside()
    arguments = ["-qq", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
    ended = pytest.main([*arguments, *selection], plugins=[inside])
    if ended != pytest.ExitCode.OK:
        raise SystemExit(f"mutation: the tests were not collected: {ended!r}")
    return inside.result


def measured(items: Sequence[pytest.Item], modules: Collection[str], kept: Path) -> Baseline:
    """Runs each test once on the original, in a fork, and imports here what they imported. `kept`:
    where the answers are from one run to the next. A test is not run again while its file and the
    lines that it ran are the same: these have moved with the text around them.
    """
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in modules}
    before = Baseline(tests={}, imported=[], texts=texts)
    if kept.exists():
        before = pickle.loads(kept.read_bytes())  # noqa: S301 - written below
    moved = {name: moved_lines(before.texts[name], text) for name, text in texts.items()}
    hashes = {path: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in {item.path for item in items}}
    known: dict[str, Measured] = {}
    for item in items:
        test = before.tests.get(item.nodeid)
        if test is not None and test.depends == hashes[item.path] and all(moved[name].keys() >= set(ran) for name, ran in test.lines.items()):
            lines = {name: {moved[name][line] for line in ran} for name, ran in test.lines.items()}
            known[item.nodeid] = attrs.evolve(test, lines=lines)

    fresh = [item for item in items if item.nodeid not in known]

    def run() -> Baseline:
        at_first = set(sys.modules)
        seconds: dict[str, float] = {}
        measure = coverage.Coverage(data_file=None, include=[str(ROOT / name) for name in modules], config_file=False)
        measure.start()
        for item in fresh:
            measure.switch_context(item.nodeid)
            began = time.process_time()
            if not _passes(item):
                raise SystemExit(f"mutation: {item.nodeid} fails on the original")
            seconds[item.nodeid] = time.process_time() - began
        measure.stop()
        lines: dict[str, dict[str, set[int]]] = {item.nodeid: {} for item in fresh}
        for name in modules:
            for line, tests in measure.get_data().contexts_by_lineno(str(ROOT / name)).items():
                for test in filter(None, tests):
                    lines[test].setdefault(name, set()).add(line)
        found = {item.nodeid: Measured(depends=hashes[item.path], seconds=seconds[item.nodeid], lines=lines[item.nodeid]) for item in fresh}
        imported = sorted({*before.imported, *(name for name in sys.modules if name not in at_first)})
        return Baseline(tests={**known, **found}, imported=imported, texts=texts)

    baseline = _forked(run) if fresh else attrs.evolve(before, tests=known, texts=texts)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(pickle.dumps(baseline))
    for name in baseline.imported:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    return baseline


def moved_lines(before: str, after: str) -> Mapping[int, int]:
    """Line -> its number now; a line that changed is absent."""
    matcher = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    return {old + each + 1: new + each + 1 for old, new, count in matcher.get_matching_blocks() for each in range(count)}


def try_all(
    mutants: Sequence[Mutant], items: Sequence[pytest.Item], baseline: Baseline, killers: Mapping[Any, str], *, most_s: float = MOST_S
) -> Iterator[Trial]:
    """Tries each mutant. `killers`: key of a mutant -> test that killed it before, which comes
    first; then the tests that kill many others, and fast ones. `most_s`: see MOST_S.
    """
    by_name = {item.nodeid: item for item in items}
    kills: Counter[tuple[str, str]] = Counter()
    covered, seconds = baseline.covered, {name: each.seconds for name, each in baseline.tests.items()}
    for mutant in mutants:
        names = {name for line in mutant.lines for name in covered.get((mutant.module, line), ())}
        names = names or {name for line in mutant.all_lines for name in covered.get((mutant.module, line), ())}
        former = killers.get(mutant.key)
        costs = {name: _cost(baseline.tests[name], mutant.module, kills[mutant.function, name]) / _own(name, mutant.module) for name in names}
        ordered = sorted(names, key=lambda name: (name != former, costs[name], name))
        ordered = [name for name, ends_s in zip(ordered, itertools.accumulate(seconds[name] for name in ordered), strict=True) if ends_s <= most_s]
        allowed_s = math.ceil(SLACK_S + TIMES_SLOWER * sum(seconds[name] for name in ordered))
        killer = killer_of(mutant, [by_name[name] for name in ordered], allowed_s) if ordered else None
        if killer is not None:
            kills[mutant.function, killer] += 1
        yield Trial(mutant=mutant, killer=killer, tests=len(ordered))


def _cost(test: Measured, module: str, kills: int) -> float:
    """Orders the tests of a mutant: fast ones first, those that run little else, and those that
    killed others of the function.
    """
    return (0.001 + test.seconds) * (50 + len(test.lines.get(module, ()))) / (1 + kills) ** 2


def _own(test: str, module: str) -> int:
    name = Path(test.partition("::")[0]).stem.removeprefix("test_")
    return OWN if f"{Path(module).stem}_".startswith(f"{name}_") else 1


def killer_of(mutant: Mutant, items: Sequence[pytest.Item], allowed_s: int) -> str | None:
    def run() -> str | None:
        resource.setrlimit(resource.RLIMIT_CPU, (allowed_s, allowed_s + 1))
        mutant.apply()
        return next((item.nodeid for item in items if not _passes(item)), None)

    try:
        return _forked(run)
    except TimeoutError:
        return TIMEOUT


def _passes(item: pytest.Item) -> bool:
    return all(report.outcome != "failed" for report in runtestprotocol(item, log=False, nextitem=None))


def _forked(run: Callable[[], T]) -> T:
    """What `run` returns in a fork of this process. Raises TimeoutError when the fork was ended by
    its processor time, SystemExit when it ended otherwise.
    """
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        code = 1
        try:
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(io.StringIO()):
                os.dup2(nowhere.fileno(), 1)
                answer = pickle.dumps(run())
            with os.fdopen(writes, "wb") as pipe:
                pipe.write(answer)
            code = 0
        except BaseException as error:  # noqa: BLE001 - the parent must see any end of a fork
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
        raise TimeoutError
    if status:
        raise SystemExit(f"mutation: a trial ended with status {status}")
    result: T = pickle.loads(answer)  # noqa: S301 - written by this process's own fork
    return result
