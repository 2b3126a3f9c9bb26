"""`python -m tools.commit_tables`: writes the tables of commits into docs/architecture.md. A test
keeps the page and `equipoise.member.tasks.commit_schedule` equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from equipoise.member.tasks.commit_schedule import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    TRANSACTION_STATES,
    Cell,
    CommitInput,
    CommitOrder,
    CommitState,
    Rule,
)
from equipoise.member.tasks.runner import TASK_STATES

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
BEGIN, END = "<!-- made by `make states`: commits -->\n", "<!-- end -->\n"


def render() -> str:
    """Returns the tables: one row for each input, one column for each state, one rule in each cell;
    then what rules do whose names do not say it.
    """
    rules: dict[str, Rule] = {}
    lines = ["States of a task under one grant, and what may follow each:", ""]
    lines += [f"- `{state.name}` ({state.value}): {_names(each.name for each in after)}" for state, after in TASK_STATES.items() if after]
    lines += ["", "What a task that runs has to commit:", "", *(f"- `{state.name}`: {state.value}" for state in CommitState)]
    for name, table in (("at_least_once", AT_LEAST_ONCE), ("exactly_once", EXACTLY_ONCE)):
        states = [state for state in CommitState if state in table and state is not CommitState.CLOSED]
        lines += ["", f"|`{name}`|{'|'.join(state.name for state in states)}|", "|---" * (len(states) + 1) + "|"]
        for heard in CommitInput:
            found = [table[state].get(heard) for state in states]
            if any(found):
                lines.append(f"|`{heard.name}`|{'|'.join('' if cell is None else _shown(cell) for cell in found)}|")
        rules |= {cell.__name__: cell for state in states for cell in table[state].values() if not isinstance(cell, CommitOrder)}
    lines += ["", "States of the transaction that tasks share, and what may follow each:", ""]
    lines += [f"- `{state.name}` ({state.value}): {_names(each.name for each in after)}" for state, after in TRANSACTION_STATES.items()]
    lines += ["", "Orders are in capitals; -: none. An empty cell is an error.", ""]
    lines += [f"- `{name}`: {_said(rule)}" for name, rule in sorted(rules.items()) if len(_said(rule).split()) > 9]
    return "\n".join(["", *lines, ""])


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _shown(cell: Cell) -> str:
    if isinstance(cell, CommitOrder):
        return "-" if cell is CommitOrder.NOTHING else cell.name
    return f"`{cell.__name__}`"


def _said(rule: Rule) -> str:
    return " ".join((rule.__doc__ or "").split())


def written(page: str) -> str:
    """Returns the page with the present tables."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + render() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
