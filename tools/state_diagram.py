"""The transition table as Markdown for `docs/states.md`. `make states` writes the page, and a test
keeps the two equal.
"""

from __future__ import annotations

from equipoise.statemachine.state import GroupPhase, MemberPhase
from equipoise.statemachine.transitions import TRANSITIONS

HEAD = """# States and transitions

This page is generated from the code by `make states`; do not edit it.

## What a group waits for

```mermaid
stateDiagram-v2
    [*] --> UNCONFIGURED
    UNCONFIGURED --> EMPTY: GroupConfigured led_by=equipoise
    UNCONFIGURED --> SHADOWING: GroupConfigured led_by=external
    EMPTY --> GATHERING: MemberJoined (initial_delay_ms > 0)
    EMPTY --> LEADING: MemberJoined (initial_delay_ms = 0)
    GATHERING --> LEADING: initial delay passed
    GATHERING --> EMPTY: last member gone
    LEADING --> EMPTY: last member gone
    EMPTY --> SHADOWING: GroupConfigured led_by=external
    SHADOWING --> EMPTY: GroupConfigured led_by=equipoise, no members
```
"""


def _names(meaning: type[GroupPhase] | type[MemberPhase]) -> list[str]:
    return [member.name for member in meaning]


def render() -> str:
    """The whole page: one row per fact and one column per phase. A cell has the transition's name,
    or a rejection code in italics.
    """
    phases = list(GroupPhase)
    facts = sorted({fact for table in TRANSITIONS.values() for fact in table}, key=lambda fact: fact.__name__)
    lines = [HEAD, "## What each fact does\n", f"| fact | {' | '.join(_names(GroupPhase))} |", "|---" * (len(phases) + 1) + "|"]
    for fact in facts:
        cells = [_cell(TRANSITIONS[phase][fact].__name__) for phase in phases]
        lines.append(f"| `{fact.__name__}` | {' | '.join(cells)} |")
    lines.append("\nIn italics: the code of the `EventRejected` that answers it; the state stays as it is.\n")
    lines.append("## What a member waits for\n")
    lines.append(f"{', '.join(f'`{name}`' for name in _names(MemberPhase))}, as Kafka's group coordinator names them (KIP-848):\n")
    lines.append(MEMBERS)
    return "\n".join(lines)


MEMBERS = """```mermaid
stateDiagram-v2
    [*] --> STABLE: MemberJoined
    STABLE --> UNREVOKED: MemberAssigned names tasks in `revoke`
    UNREVOKED --> STABLE: its report, of that epoch or later, no longer holds them
    STABLE --> UNRELEASED: a task it is to get is still another's
    UNRELEASED --> STABLE: the other let go, so it is granted in the same step
    UNREVOKED --> [*]: revocation_timeout_ms, expelled
    STABLE --> [*]: MemberLeft, session_timeout_ms, or superseded
    UNRELEASED --> [*]: MemberLeft, session_timeout_ms, or superseded
```
"""


def _cell(name: str) -> str:
    return f"*{name.removeprefix('rejected:')}*" if name.startswith("rejected:") else f"`{name}`"
