"""One directive line, parsed: its words and arguments, each of the kind that the directive takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import attrs

from equipoise.events.errors import InputError
from tests.support.scenarios.argument_values import ValueKind, member_range, read_value
from tests.support.scenarios.text import Directive, ScenarioError

T = TypeVar("T")


@attrs.frozen
class Argument:
    """An argument ``name=value``: its kind of value and its description."""

    kind: ValueKind
    about: str


class ParsedDirective:
    """One directive line. Raises ScenarioError, with the line, for an unknown argument or a value
    of the wrong kind.
    """

    def __init__(self, directive: Directive, words: str, arguments: Mapping[str, Argument], path: str) -> None:
        self.directive = directive
        self._path = path
        self._values: dict[str, Any] = {}
        least, most = _counts(words)
        if not least <= len(directive.words) <= most:
            raise self.error(f"write {f'{directive.name} {words}'.strip()}")
        for name, text in directive.arguments.items():
            argument = arguments.get(name)
            if argument is None:
                known = ", ".join(sorted(arguments)) or "none"
                raise self.error(f"{directive.name} has no argument {name!r}; it has {known}")
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
        """The arguments among `names` that the line has."""
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
    """Fewest and most words: ``MEMBER TASKS`` is 2, ``MEMBER...`` is 1 or more, ``[MEMBER...]`` any
    number.
    """
    parts = words.split()
    least = sum(1 for part in parts if not part.startswith("["))
    return least, 1_000_000 if any("..." in part for part in parts) else len(parts)
