"""Runs a scenario file on the real machine and compares its golden text with the output."""

from __future__ import annotations

import difflib
from pathlib import Path

import attrs

from tests.support.scenarios import cluster_directives, fact_directives, member_directives, query_directives, session_directives
from tests.support.scenarios.directives import DIRECTIVES
from tests.support.scenarios.parsed_directive import ParsedDirective
from tests.support.scenarios.scenario_context import Context
from tests.support.scenarios.text import Directive, Scenario, ScenarioError, parse

TABLES = (cluster_directives, fact_directives, member_directives, query_directives, session_directives)
"""Modules whose import fills the table of directives."""


@attrs.frozen(kw_only=True)
class ScenarioResult:
    """The output of a file. `given`: one text for each case. `disagreements`: findings of the
    self-checks, which always fail the file.
    """

    scenario: Scenario
    given: tuple[tuple[str, ...], ...]
    disagreements: tuple[str, ...]

    @property
    def text(self) -> str:
        """The file with the output as golden text."""
        return self.scenario.rewritten(self.given)

    @property
    def matches(self) -> bool:
        """Every case has golden text, and it equals the output."""
        return all(case.golden == given for case, given in zip(self.scenario.cases, self.given, strict=True))

    @property
    def holds(self) -> bool:
        """Existing golden text equals the output, and nothing disagreed."""
        written = ((case.golden, given) for case, given in zip(self.scenario.cases, self.given, strict=True) if case.golden)
        return not self.disagreements and all(golden == given for golden, given in written)

    def diff(self) -> str:
        """A unified diff from the file to the output; empty when they are equal."""
        path = self.scenario.path
        lines = difflib.unified_diff([*self.scenario.lines], self.text.splitlines(), f"{path} (golden)", f"{path} (given)", lineterm="")
        return "" if self.matches else "\n".join(lines)


def run_text(text: str, path: str) -> ScenarioResult:
    """Runs a scenario. Raises ScenarioError, with file and line, when it cannot be run."""
    scenario = parse(text, path)
    checked = [[_checked(one, path) for one in case.directives] for case in scenario.cases]
    context = Context()
    given: list[tuple[str, ...]] = []
    for directives in checked:
        context.out = []
        context.expected_halt = False
        halted_before = context.halted
        for parsed in directives:
            DIRECTIVES[parsed.directive.name].run(context, parsed)
        halted = context.halted
        if halted is not None and halted is not halted_before and not context.expected_halt:
            raise directives[-1].error(f"the group halted ({halted.code}: {halted.problem}); if it should, add `expect-halt {halted.code}`")
        given.append(tuple(line.rstrip() for line in context.out) or ("ok",))
    return ScenarioResult(scenario=scenario, given=tuple(given), disagreements=context.close())


def _checked(directive: Directive, path: str) -> ParsedDirective:
    spec = DIRECTIVES.get(directive.name)
    if spec is None:
        raise ScenarioError(path, directive.line, f"unknown directive {directive.name!r}; there are {', '.join(sorted(DIRECTIVES))}")
    return ParsedDirective(directive, spec.words, spec.arguments, path)


def run_file(path: Path) -> ScenarioResult:
    """Runs the scenario in a file. Raises OSError when it cannot be read, and what `run_text`
    raises. Raises ScenarioError for a file that is not UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ScenarioError(str(path), line, "is not UTF-8, so it is no scenario; name a text file") from None
    return run_text(text, str(path))
