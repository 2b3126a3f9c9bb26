"""The table of directives: names, words, arguments and functions. `python -m
tests.support.scenarios --directives` prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from tests.support.scenarios.argument_values import WHOLE
from tests.support.scenarios.parsed_directive import Argument, ParsedDirective
from tests.support.scenarios.scenario_context import Context

Run = Callable[[Context, ParsedDirective], None]


@attrs.frozen(kw_only=True)
class Spec:
    """A directive. `words`: its positional part, as in ``MEMBER...``; empty: none."""

    name: str
    words: str
    about: str
    arguments: Mapping[str, Argument]
    run: Run


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
    """Every directive with its arguments, as text."""
    lines: list[str] = []
    for spec in (DIRECTIVES[name] for name in sorted(DIRECTIVES)):
        lines += [f"{spec.name} {spec.words}".strip(), f"    {spec.about}"]
        lines += [f"    {name}={argument.kind.example}  {argument.about}" for name, argument in spec.arguments.items() if name not in TIME]
        lines.append("")
    lines += ["Each directive that appends facts also takes:", *(f"    {name}=N  {argument.about}" for name, argument in TIME.items())]
    return "\n".join(lines)
