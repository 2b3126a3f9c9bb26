"""`make mutation`: tries mutants of the state machine and the assignors, and counts what is killed.
Fails for a module below its floor or with a survivor that survivors.toml does not explain.

usage: python -m tests.mutation [MODULE ...] [--all] [--write] [--survivors] [--sample N --turn T]
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import pickle
import resource
import sys
import time
import tomllib
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs

from tests.mutation.modules import MODULES
from tests.mutation.mutants import ROOT, Module, Mutant
from tests.mutation.trials import MOST_S, TIMEOUT, measured, try_all, with_tests

Key = tuple[str, str, str, str, int]

OUT = ROOT / "out" / "mutation"
QUICK_S = 0.3
SURVIVORS = Path(__file__).parent / "survivors.toml"
FLOORED = [name for name, judged in MODULES.items() if judged.floor is not None]


@cache
def mutants_of(name: str) -> Sequence[Mutant]:
    """Kept below out/ with a hash of what they are made from: making them takes a second for fifty
    lines.
    """
    kept = OUT / f"{_stem(name)}.mutants"
    sources = (ROOT / name, Path(__file__).with_name("mutants.py"))
    made_from = _hash("".join(path.read_text(encoding="utf-8") for path in sources) + metadata.version("mutmut"))
    before, made = pickle.loads(kept.read_bytes()) if kept.exists() else ("", ())  # noqa: S301 - written below
    if before != made_from:
        made = Module(name).mutants
        OUT.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(pickle.dumps((made_from, made)))
    return made


def _stem(name: str) -> str:
    return name.removesuffix(".py").replace("/", ".")


def explained() -> dict[Key, str]:
    """Survivors that are triaged -> reason."""
    listed = tomllib.loads(SURVIVORS.read_text(encoding="utf-8")).get("survivor", [])
    return {(each["module"], each["function"], each["before"], each["after"], each.get("nth", 1)): each["reason"] for each in listed}


@attrs.define
class Results:
    """Trials of one module, kept below out/, each with hashes of what it depends on: the mutated
    function, and the test that killed the mutant, or all tests. Other functions may change
    verdicts, too: then remove out/.
    """

    name: str
    sources: Mapping[Key, str]
    """Mutant -> hash of its function."""
    tests: Mapping[str, str]
    """Test, without parameters -> hash of its function."""
    killers: dict[Key, str | None] = attrs.field(factory=dict)
    """Mutant -> the test that killed it; None: it survived."""
    outdated: dict[Key, tuple[str | None, str, str]] = attrs.field(factory=dict)
    """Trials that no longer hold, as they are stored. Their killers are tried first."""

    @classmethod
    def load(cls, name: str) -> Results:
        results = cls(name, {each.key: _hash(each.source) for each in mutants_of(name)}, _tests_of(name))
        if cls.stored(name).exists():
            for *rest, killer, source, test in json.loads(cls.stored(name).read_text(encoding="utf-8")):
                key = (name, *rest)
                if key not in results.sources:
                    continue
                if (source, test) == (results.sources[key], results._test(killer)):
                    results.killers[key] = killer
                else:
                    results.outdated[key] = killer, source, test
        return results

    def _test(self, killer: str | None) -> str:
        """Hash of what a verdict depends on."""
        if killer is None:
            return _hash(repr(sorted(self.tests.items())))
        return TIMEOUT if killer == TIMEOUT else self.tests.get(killer.partition("[")[0], "")

    @property
    def former(self) -> Mapping[Key, str]:
        """Mutant -> the test that killed it before."""
        return {key: killer for key, (killer, *_) in self.outdated.items() if killer is not None}

    @staticmethod
    def stored(name: str) -> Path:
        return OUT / f"{_stem(name)}.json"

    def save(self) -> None:
        OUT.mkdir(parents=True, exist_ok=True)
        trials = {**self.outdated, **{key: (killer, self.sources[key], self._test(killer)) for key, killer in self.killers.items()}}
        self.stored(self.name).write_text(json.dumps([(*key[1:], *trial) for key, trial in trials.items()], indent=0), encoding="utf-8")


@cache
def _tests_of(name: str) -> Mapping[str, str]:
    """Test of the module, without parameters -> hash of its function when the run began."""
    return {test: digest for path in MODULES[name].tests for test, digest in tests_in(path, (ROOT / path).read_text(encoding="utf-8")).items()}


def tests_in(path: str, text: str) -> Mapping[str, str]:
    """Test -> hash of its function, with its decorators."""
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    lines = text.splitlines()
    first = {each.name: min([each.lineno, *(decorator.lineno for decorator in each.decorator_list)]) for each in functions}
    return {f"{path}::{each.name}": _hash("\n".join(lines[first[each.name] - 1 : each.end_lineno])) for each in functions}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def try_modules(names: Sequence[str], tests: Sequence[str], sample: Collection[Key] | None, *, quick_s: float | None) -> None:
    """Tries the mutants of modules that the same tests judge, and stores each module's trials.
    `quick_s`: with the fastest tests alone, so a survivor is not stored.
    """

    def run(items: list[Any]) -> None:
        todo = {}
        for name in names:
            results = Results.load(name)
            mutants = [each for each in mutants_of(name) if each.key not in results.killers and (sample is None or each.key in sample)]
            todo[name] = results, mutants
        if not any(mutants for _, mutants in todo.values()):
            return
        alike = [name for name, judged in MODULES.items() if judged.tests == tests]  # so that one measurement serves them all
        baseline = measured(items, alike, OUT / f"{hashlib.sha256(repr(alike).encode()).hexdigest()[:16]}.baseline")
        for name, (results, mutants) in todo.items():
            stored_s = time.monotonic()
            for number, trial in enumerate(try_all(mutants, items, baseline, results.former, most_s=quick_s or MOST_S), start=1):
                if trial.killer is not None or quick_s is None:
                    results.killers[trial.mutant.key] = trial.killer
                if trial.killer is None:
                    print(f"survives ({trial.tests} tests): {trial.mutant}", flush=True)
                if time.monotonic() - stored_s > 10:
                    results.save()
                    print(f"{name}: {number} of {len(mutants)}", file=sys.stderr, flush=True)
                    stored_s = time.monotonic()
            results.save()

    with_tests(tests, run)


@attrs.frozen(kw_only=True)
class Score:
    """What became of the mutants of one module, or of a sample of them."""

    mutants: int
    killed: int
    explained: int
    """Survivors that survivors.toml explains."""
    left: Sequence[Mutant]
    """The other survivors."""
    untried: int

    @property
    def percent(self) -> float:
        return 100 * self.killed / max(self.mutants, 1)


def score(name: str, sample: Collection[Key] | None, reasons: Mapping[Key, str]) -> Score:
    mutants = [each for each in mutants_of(name) if sample is None or each.key in sample]
    killers = Results.load(name).killers
    survivors = [each for each in mutants if each.key in killers and killers[each.key] is None]
    left = [each for each in survivors if each.key not in reasons]
    untried = sum(each.key not in killers for each in mutants)
    killed = len(mutants) - untried - len(survivors)
    return Score(mutants=len(mutants), killed=killed, explained=len(survivors) - len(left), left=left, untried=untried)


def report(names: Sequence[str], sample: Collection[Key] | None) -> int:
    """Prints the table. 1: a survivor is not explained, or a module that was tried whole is below
    its floor.
    """
    reasons = explained()
    failed = False
    print(f"\n{'module':<36}{'mutants':>8}{'killed':>8}{'explained':>10}{'left':>6}{'untried':>9}{'score':>8}{'floor':>7}")
    for name in names:
        found, floor = score(name, sample, reasons), MODULES[name].floor
        killers = Results.load(name).killers
        all_keys = {each.key for each in mutants_of(name)} if sample is None else set(reasons)
        stale = [key for key in reasons if key[0] == name and (killers.get(key) is not None or key not in all_keys)]
        shown = "" if floor is None else f"{floor:.0f} %"
        counts = f"{found.mutants:>8}{found.killed:>8}{found.explained:>10}{len(found.left):>6}{found.untried:>9}"
        print(f"{name:<36}{counts}{found.percent:>7.1f}%{shown:>7}")
        for key in stale:
            print(f"  is killed or no mutant, though survivors.toml lists it: {key[1]}\n    - {key[2]}\n    + {key[3]}")
        print(*(f"  {each}" for each in found.left), sep="\n", end="\n" if found.left else "")
        failed |= floor is not None and ((sample is None and found.percent < floor) or bool(found.left or stale))
    used_s = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(f"{used_s:.0f} s of processor time")
    return int(failed)


PAGE = Path(__file__).with_name("scores.md")
BEGIN, END = "<!-- made by `python -m tests.mutation --write` -->\n", "<!-- end of the scores of mutation testing -->"


def write() -> None:
    """Writes the table of the page: modules of which all mutants were tried."""
    reasons = explained()
    lines = ["", "| module | mutants | killed | | explained | neither |", "|---|---|---|---|---|---|"]
    for name in MODULES:
        if Results.stored(name).exists():
            found = score(name, None, reasons)
            if not found.untried:
                lines.append(f"| `{name}` | {found.mutants} | {found.killed} | {found.percent:.1f} % | {found.explained} | {len(found.left)} |")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n\n" + END + rest.partition(END)[2], encoding="utf-8")


def drawn(names: Sequence[str], number: int, turn: int) -> set[Key]:
    """Every k-th mutant, about `number` of them; `turn` says where to begin."""
    keys = [each.key for name in names for each in mutants_of(name)]
    every = max(1, len(keys) // number)
    return set(keys[turn % every :: every])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Mutation testing of the state machine and the assignors.")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"{', '.join(MODULES)} (those with a floor)")
    parser.add_argument("--all", action="store_true", help="every module")
    parser.add_argument("--write", action="store_true", help=f"try nothing; write the table of {PAGE.name} from the trials that are stored")
    quick = f"try the fastest tests alone, so many seconds of them ({QUICK_S}) instead of {MOST_S}; stores kills alone"
    parser.add_argument("--quick", type=float, nargs="?", const=QUICK_S, help=quick)
    parser.add_argument("--survivors", action="store_true", help="try again only what survived the last run")
    parser.add_argument("--sample", type=int, help="about so many mutants instead of all")
    parser.add_argument("--turn", type=int, default=0, help="which sample (0): another number, other mutants")
    given = parser.parse_args()
    if given.write:
        write()
        return 0
    os.environ["CI"] = "true"
    names = given.modules or (list(MODULES) if given.all else FLOORED)
    sample: set[Key] | None = None
    if given.sample:
        sample = drawn(names, given.sample, given.turn)
        print(f"a sample of {len(sample)} mutants, --turn {given.turn}")
    if given.survivors:
        sample = set()
        for name in names:
            results = Results.load(name)
            survived = [key for key, killer in results.killers.items() if killer is None]
            survived += [key for key, (killer, *_) in results.outdated.items() if killer is None]
            sample.update(survived)
            for key in survived:
                results.killers.pop(key, None)
                results.outdated.pop(key, None)
            results.save()
    for tests in dict.fromkeys(MODULES[name].tests for name in names):
        try_modules([name for name in names if MODULES[name].tests == tests], tests, sample, quick_s=given.quick)
    return report(names, None if given.survivors else sample)


if __name__ == "__main__":
    sys.exit(main())
