"""Facts that nobody has decided on yet, at the end of a log.

Decisions follow from facts, so a reader can compute what a leader would decide. Nobody carries that
out before it is written: whatever is shown of a group ends before the first such fact.
"""

from __future__ import annotations

from typing import Any

import attrs

from equipoise.replay.trouble import Severity, Trouble
from equipoise.replay.wording import clock_text, counted


@attrs.frozen
class Undecided:
    """`offset`, `append_ms`: of the first fact whose decisions are not all written. `decisions`:
    how many are not, of this fact and those after it.
    """

    offset: int
    append_ms: int
    decisions: int

    @property
    def text(self) -> str:
        """The sentence for people, without a full stop."""
        are = "is" if self.decisions == 1 else "are"
        return f"nobody has decided since {clock_text(self.append_ms)}: {counted(self.decisions, 'decision')} {are} not written"

    def document(self) -> dict[str, Any]:
        return attrs.asdict(self)


@attrs.frozen(kw_only=True)
class Deciding:
    """The evidence of a statement about a group: who decides, as far as is known. `undecided`:
    facts without their decisions; None: there are none. `workers`: members of the group of workers;
    None: not known, `unknown` says why. "" with that: of a file, or of an earlier fact.
    """

    undecided: Undecided | None = None
    workers: int | None = None
    unknown: str = ""

    @property
    def trouble(self) -> Trouble | None:
        """Returns that nothing is decided; None: as far as is known, somebody decides."""
        if self.undecided is not None:
            return Trouble(Severity.HALTED, f"{self.undecided.text}{self._by()}; what follows is the state before")
        if self.workers == 0:
            return Trouble(Severity.HALTED, "no worker runs: nobody decides what becomes of the tasks of a member that leaves or ends")
        return None

    def _by(self) -> str:
        if self.workers is not None:
            return "; no worker runs" if self.workers == 0 else f"; {counted(self.workers, 'worker')} should: see what it logs"
        return f"; whether a worker runs is not known: {self.unknown}" if self.unknown else ""

    def calm(self, text: str) -> str:
        """Returns `text`, that all is well, with what is missing to know it."""
        if self.workers is not None:
            return text
        return f"{text}; whether a worker leads is not known: {self.unknown}" if self.unknown else f"{text}, as of that offset"

    def document(self) -> dict[str, Any]:
        undecided = None if self.undecided is None else self.undecided.document()
        return {"undecided": undecided, "workers": self.workers, "unknown": self.unknown or None}
