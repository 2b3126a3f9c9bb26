"""Plays a scenario file: its directives on the real machine, their golden text beside what was
given.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import attrs

from equipoise.scenarios import cluster_directives, fact_directives, member_directives, query_directives, session_directives
from equipoise.scenarios.context import Context
from equipoise.scenarios.parsed_directive import ParsedDirective
from equipoise.scenarios.registry import DIRECTIVES
from equipoise.scenarios.text import Directive, Scenario, ScenarioError, parse

TABLES = (cluster_directives, fact_directives, member_directives, query_directives, session_directives)
"""Modules whose import fills the table of directives."""


@attrs.frozen(kw_only=True)
class ScenarioResult:
    """What a file gave. `given`: one golden text for each case; `disagreements`: what the doubles
    found, which no golden text can excuse.
    """

    scenario: Scenario
    given: tuple[tuple[str, ...], ...]
    disagreements: tuple[str, ...]

    @property
    def text(self) -> str:
        """The file as it would be with the golden text given now."""
        return self.scenario.rewritten(self.given)

    @property
    def matches(self) -> bool:
        """All golden text is written, and is what was given."""
        return all(case.golden == given for case, given in zip(self.scenario.cases, self.given, strict=True))

    @property
    def holds(self) -> bool:
        """Where golden text is written it is what was given, and nothing disagreed."""
        written = ((case.golden, given) for case, given in zip(self.scenario.cases, self.given, strict=True) if case.golden)
        return not self.disagreements and all(golden == given for golden, given in written)

    def diff(self) -> str:
        """A unified diff from the file to what was given; empty when they are equal."""
        path = self.scenario.path
        lines = difflib.unified_diff([*self.scenario.lines], self.text.splitlines(), f"{path} (golden)", f"{path} (given)", lineterm="")
        return "" if self.matches else "\n".join(lines)


def run_text(text: str, path: str) -> ScenarioResult:
    """Plays a scenario. Raises ScenarioError, with file and line, for what cannot be played."""
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
    """Plays the scenario in a file. Raises OSError when it cannot be read, else as `run_text`."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ScenarioError(str(path), line, "is not UTF-8, so it is no scenario; name a text file") from None
    return run_text(text, str(path))
