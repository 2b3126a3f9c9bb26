"""The directives: one table of names, words, arguments and functions. The reference in the docs is made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from events.errors import InputError
from replay.scenarios.text import Directive, ScenarioError
from replay.scenarios.words import WHOLE, Kind, member_range, read_value

if TYPE_CHECKING:
    from replay.scenarios.play import Play

T = TypeVar("T")
Run = Callable[["Play", "Said"], None]


@attrs.frozen
class Argument:
    """``name=value``: its kind of value and what it says."""

    kind: Kind
    about: str


@attrs.frozen(kw_only=True)
class Spec:
    """A directive. `words` is what stands before the arguments, as in ``MEMBER...``; empty: none."""

    name: str
    words: str
    about: str
    arguments: Mapping[str, Argument]
    run: Run


class Said:
    """One directive line, read and checked: an unknown argument or a value of the wrong kind is a ScenarioError with its line."""

    def __init__(self, directive: Directive, spec: Spec, path: str) -> None:
        self.directive = directive
        self._path = path
        self._values: dict[str, Any] = {}
        least, most = _counts(spec.words)
        if not least <= len(directive.words) <= most:
            raise self.error(f"write {f'{spec.name} {spec.words}'.strip()}")
        for name, text in directive.arguments.items():
            argument = spec.arguments.get(name)
            if argument is None:
                known = ", ".join(sorted(spec.arguments)) or "none"
                raise self.error(f"{spec.name} has no argument {name!r}; it has {known}")
            try:
                self._values[name] = read_value(argument.kind, text)
            except InputError as error:
                raise self.error(f"{name}: {error}") from None

    def error(self, problem: str) -> ScenarioError:
        return ScenarioError(self._path, self.directive.line, problem)

    def get(self, name: str, default: T) -> T:
        """The argument's value, or the default when it is not there."""
        value: T = self._values.get(name, default)
        return value

    def find(self, name: str) -> Any:
        """The argument's value, None when it is not there."""
        return self._values.get(name)

    def has(self, name: str) -> bool:
        return name in self._values

    def given(self, *names: str) -> dict[str, Any]:
        """Those of `names` that were given."""
        return {name: self._values[name] for name in names if name in self._values}

    @property
    def member(self) -> str:
        return self.directive.words[0]

    def members(self) -> list[str]:
        """Every word as a member, ranges written out."""
        try:
            return [name for word in self.directive.words for name in member_range(word)]
        except InputError as error:
            raise self.error(str(error)) from None


def _counts(words: str) -> tuple[int, int]:
    """Fewest and most words: ``MEMBER TASKS`` is 2, ``MEMBER...`` is 1 or more, ``[MEMBER...]`` any number."""
    parts = words.split()
    least = sum(1 for part in parts if not part.startswith("["))
    return least, 1_000_000 if any("..." in part for part in parts) else len(parts)


DIRECTIVES: dict[str, Spec] = {}

TIME = {
    "at_ms": Argument(WHOLE, "append time of the first fact: the broker's clock is set to it, in either direction"),
    "after_ms": Argument(WHOLE, "append time of the first fact, counted from the last one"),
}
"""Arguments of every directive that appends facts."""


def directive(name: str, words: str, about: str, /, **arguments: Argument) -> Callable[[Run], Run]:
    """Decorator: adds a directive to the table."""

    def add(run: Run) -> Run:
        if name in DIRECTIVES:
            raise AssertionError(f"directive {name} twice")
        DIRECTIVES[name] = Spec(name=name, words=words, about=about, arguments=arguments, run=run)
        return run

    return add


def reference() -> str:
    """The table of directives as Markdown, for docs/scenarios.md."""
    lines = ["| directive | arguments | does |", "|---|---|---|"]
    for spec in (DIRECTIVES[name] for name in sorted(DIRECTIVES)):
        own = {name: argument for name, argument in spec.arguments.items() if name not in TIME}
        arguments = "<br>".join(f"`{name}={_cell(argument.kind.example)}` {_cell(argument.about)}" for name, argument in own.items())
        lines.append(f"| `{_cell(f'{spec.name} {spec.words}'.strip())}` | {arguments} | {_cell(spec.about)} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
