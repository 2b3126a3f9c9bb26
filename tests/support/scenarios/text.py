"""The text form of a scenario: directive lines, ``----``, golden lines, a blank line; ``#`` begins
a comment (after etcd raft's datadriven tests).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from equipoise.events.errors import InputError

SEPARATOR = "----"


class ScenarioError(InputError):
    """A scenario that cannot be run: the message names file, line and fix."""

    def __init__(self, path: str, line: int, problem: str) -> None:
        super().__init__(f"{path}:{line}: {problem}")
        self.path = path
        self.line = line
        self.problem = problem


@attrs.frozen(kw_only=True)
class Directive:
    """One line: ``join m1 at_ms=0`` has name ``join``, words ``("m1",)`` and arguments ``{"at_ms":
    "0"}``. `line` counts from 1.
    """

    name: str
    words: tuple[str, ...]
    arguments: dict[str, str]
    line: int


@attrs.frozen(kw_only=True)
class Case:
    """Directives and the golden text under them. `golden_from`, `golden_to`: its place in the
    file's lines, as a slice.
    """

    directives: tuple[Directive, ...]
    golden: tuple[str, ...]
    golden_from: int
    golden_to: int


@attrs.frozen(kw_only=True)
class Scenario:
    """A parsed file. `lines` keep every comment, so that a rewrite changes golden lines alone."""

    path: str
    lines: tuple[str, ...]
    cases: tuple[Case, ...]

    def rewritten(self, goldens: Sequence[Sequence[str]]) -> str:
        """The file's text with other golden lines, one sequence for each case."""
        lines: list[str] = []
        done = 0
        for case, golden in zip(self.cases, goldens, strict=True):
            lines += [*self.lines[done : case.golden_from], *golden]
            done = case.golden_to
        lines += self.lines[done:]
        return "\n".join(lines) + "\n"


def parse(text: str, path: str) -> Scenario:
    """Raises ScenarioError with the line for directives without ``----``, for words that are no
    argument, and for a file without any case.
    """
    lines = tuple(text.splitlines())
    cases: list[Case] = []
    directives: list[Directive] = []
    at = 0
    while at < len(lines):
        line = lines[at].strip()
        at += 1
        if line == SEPARATOR:
            if not directives:
                raise ScenarioError(path, at, f"{SEPARATOR} without a directive above it")
            end = at
            while end < len(lines) and lines[end].strip():
                end += 1
            if SEPARATOR in lines[at:end]:
                raise ScenarioError(path, at, f"golden text with a {SEPARATOR} in it; end it with a blank line before the next directive")
            cases.append(Case(directives=tuple(directives), golden=tuple(line.rstrip() for line in lines[at:end]), golden_from=at, golden_to=end))
            directives = []
            at = end
        elif line and not line.startswith("#"):
            directives.append(_directive(line, path, at))
    if directives:
        raise ScenarioError(
            path, directives[0].line, f"directive {directives[0].name!r} has no {SEPARATOR} under it; add one, `--rewrite` fills in the rest"
        )
    if not cases:
        raise ScenarioError(path, 1, "no directive in the file")
    return Scenario(path=path, lines=lines, cases=tuple(cases))


def _directive(line: str, path: str, number: int) -> Directive:
    name, *rest = _split(line, path, number)
    words: list[str] = []
    arguments: dict[str, str] = {}
    for part in rest:
        key, equals, value = part.partition("=")
        if not equals or "(" in key:
            words.append(part)
        elif not key:
            raise ScenarioError(path, number, f"{part!r} has no name before the =")
        elif key in arguments:
            raise ScenarioError(path, number, f"argument {key!r} is given twice")
        else:
            arguments[key] = value
    return Directive(name=name, words=tuple(words), arguments=arguments, line=number)


def _split(line: str, path: str, number: int) -> list[str]:
    """Words between spaces; inside parentheses spaces do not count."""
    parts: list[str] = [""]
    depth = 0
    for char in line:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if depth < 0:
            raise ScenarioError(path, number, "a ) without its (")
        if not char.isspace():
            parts[-1] += char
        elif depth == 0 and parts[-1]:
            parts.append("")
    if depth:
        raise ScenarioError(path, number, "a ( without its )")
    return [part for part in parts if part]
