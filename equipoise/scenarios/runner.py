"""Plays a scenario file: its directives on the real machine, their golden text beside what was
given.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import attrs

from equipoise.scenarios import ask, clusters, say_facts, say_truth, sessions
from equipoise.scenarios.play import Play
from equipoise.scenarios.registry import DIRECTIVES
from equipoise.scenarios.said import Said
from equipoise.scenarios.text import Directive, Scenario, ScenarioError, parse

TABLES = (ask, clusters, say_facts, say_truth, sessions)
"""Modules whose import fills the table of directives."""


@attrs.frozen(kw_only=True)
class Outcome:
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


def play_text(text: str, path: str) -> Outcome:
    """Plays a scenario. Raises ScenarioError, with file and line, for what cannot be played."""
    scenario = parse(text, path)
    checked = [[_checked(one, path) for one in case.directives] for case in scenario.cases]
    play = Play()
    given: list[tuple[str, ...]] = []
    for directives in checked:
        play.out = []
        play.expected_halt = False
        halted_before = play.halted
        for said in directives:
            DIRECTIVES[said.directive.name].run(play, said)
        halted = play.halted
        if halted is not None and halted is not halted_before and not play.expected_halt:
            raise directives[-1].error(f"the group halted ({halted.code}: {halted.problem}); if it should, add `expect-halt {halted.code}`")
        given.append(tuple(line.rstrip() for line in play.out) or ("ok",))
    return Outcome(scenario=scenario, given=tuple(given), disagreements=play.close())


def _checked(directive: Directive, path: str) -> Said:
    spec = DIRECTIVES.get(directive.name)
    if spec is None:
        raise ScenarioError(path, directive.line, f"unknown directive {directive.name!r}; there are {', '.join(sorted(DIRECTIVES))}")
    return Said(directive, spec.words, spec.arguments, path)


def play_file(path: Path) -> Outcome:
    """Plays the scenario in a file. Raises OSError when it cannot be read, else as `play_text`."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ScenarioError(str(path), line, "is not UTF-8, so it is no scenario; name a text file") from None
    return play_text(text, str(path))
