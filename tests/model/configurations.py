"""What the model in `model/lease.pml` is searched for: its configurations, and the rules that can
be switched off.
"""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Process:
    """One process (incarnation) of a configuration. Times are in steps.

    `suspect`: it goes step by step, message by message. Otherwise it is as dangerous as it can be:
    it reads at once and its lease never ends. `starts`: it joins at any moment; otherwise it is
    live from the beginning. `proof`: it claims that its predecessor is dead.
    """

    member: int
    session: int
    margin: int
    suspect: bool = False
    starts: bool = False
    proof: bool = False


@attrs.frozen(kw_only=True)
class Configuration:
    """One search. Process 0 runs the task at the beginning.

    `jumps`: how often the broker's clock jumps ahead. `step`, `raised`: `max_step_ms`, and what a
    configuration may set it to, and back, at any moment. `moves`: at any moment, any number of
    times, the leader revokes the task from its owner, and expels a member. `late`: at any moment it
    falls behind, and its decisions are published later. `witness`: at any moment, the end of a
    process that is over is proven. `rests`: other groups of the partition append at any moment, and
    at any moment the worker says how long members were silent. `trails`: of a trace, see
    `tests.model.lease`. `without`: rules that are switched off.
    """

    processes: tuple[Process, ...]
    jumps: int = 1
    step: int = 1
    raised: int = 1
    moves: bool = False
    crashes: bool = False
    closes: bool = False
    late: bool = False
    witness: bool = False
    rests: bool = False
    trails: bool = False
    without: frozenset[str] = frozenset()

    def on(self, rule: str) -> bool:
        return rule not in self.without


RULES: dict[str, tuple[str, str]] = {
    "R_DATED": ("M4", "a lease dates from its sending"),
    "R_NO_REVIVAL": ("M4", "a lapsed lease never revives"),
    "R_CLAMP": ("L2", "group time is clamped to `max_step_ms`"),
    "R_MARGIN": ("M4", "a margin for failovers"),
    "R_JOIN_MARGIN": ("M4", "a join with a margin below `max_step_ms` is rejected"),
    "R_FITS_LIVE": ("M4", "`max_step_ms` stays within the margins of members"),
    "R_FITS_FENCED": ("M4", "... and within those of fenced incarnations"),
    "R_FETCH": ("M4", "a lease needs a fetch too, not heartbeats alone"),
    "R_END": ("M4", "only a fetch that reached the end counts"),
    "R_NUMBERS": ("L4", "a reader takes decision n + 1 only"),
    "R_HEEDS": ("M4", "a member ends when it reads that it is out"),
    "R_HOLD": ("M5", "a hold after force"),
    "R_OWN_SESSION": ("M1", "a hold lasts the session timeout that the replaced incarnation joined with"),
    "R_LONGEST": ("M5", "of several holds the longest counts"),
    "R_HOLD_PASSES": ("M5", "a hold passes to the next owner"),
    "R_HEARD": ("M5", "what a fenced incarnation sends shows that it lives"),
    "R_PROOF": ("M5", "a proof of death cannot be true while the old process lives"),
    "R_WITNESS": ("M11", "a proof of death is sent only when the process has ended"),
    "R_AFTER": ("L11", "a silence counts directly after the fact behind which it was measured"),
    "R_SMALLEST": ("L11", "a partition's clock moves by at most the smallest step of its groups"),
    "R_EPOCH": ("M3", "only a report that knows of the revocation releases the task"),
}
"""Rule, as `model/lease.pml` names it -> where docs/protocol.md has it, and what it says."""


def _process(member: int, session: int, margin: int, *what: str) -> Process:
    return Process(member=member, session=session, margin=margin, suspect="suspect" in what, starts="starts" in what, proof="proof" in what)


def _planned(*processes: Process, **options: object) -> Configuration:
    return Configuration(processes=processes, **options)  # type: ignore[arg-type]


EQUAL = _process(0, 4, 1, "suspect"), _process(1, 4, 1)
LONG = _process(0, 5, 1, "suspect"), _process(1, 3, 2)
"""A long session and a small margin beside a short session and a large margin."""

SEARCHED: dict[str, Configuration] = {
    "revoked, expelled or expired": _planned(*EQUAL, moves=True, late=True),
    "... with unequal sessions and margins": _planned(*LONG, moves=True),
    "... and two jumps of the clock": _planned(_process(0, 4, 2, "suspect"), _process(1, 3, 1), moves=True, jumps=2),
    "... and max_step_ms raised and lowered": _planned(_process(0, 5, 2, "suspect"), _process(1, 3, 1), moves=True, raised=2),
    "in a group at rest, beside others of the partition": _planned(*EQUAL, moves=True, rests=True, raised=2),
    "drained and closed, or crashed": _planned(_process(0, 4, 1, "suspect"), _process(1, 3, 2), moves=True, crashes=True, closes=True),
    "superseded by a shorter session": _planned(*LONG, _process(0, 3, 1, "starts"), late=True),
    "superseded by a longer session": _planned(_process(0, 3, 1, "suspect"), _process(1, 4, 1), _process(0, 5, 1, "starts"), moves=True, late=True),
    "crashed, expelled or superseded, and proven dead": _planned(*EQUAL, _process(0, 3, 1, "starts"), moves=True, crashes=True, witness=True),
    "crashed, and back with a proof": _planned(*EQUAL, _process(0, 3, 1, "starts", "proof"), moves=True, crashes=True),
}
"""`make model`"""

LONGER: dict[str, Configuration] = {
    "unequal sessions and margins, published late": _planned(*LONG, moves=True, late=True),
    "superseded by a shorter session, revoked or expelled": _planned(*LONG, _process(0, 3, 1, "starts"), moves=True),
    "superseded, and the next owner too": _planned(*LONG, _process(0, 3, 1, "starts"), _process(1, 3, 1, "starts")),
    "both owners message by message": _planned(_process(0, 3, 1, "suspect"), _process(1, 2, 1, "suspect"), moves=True),
}
"""Besides, `make model LONG=1`"""

COMPARED: dict[str, Configuration] = {
    "revoked or expired": _planned(_process(0, 2, 1, "suspect"), _process(1, 2, 1), moves=True, late=True),
    "closed, crashed, superseded": _planned(
        _process(0, 3, 1, "suspect"), _process(1, 2, 1), _process(0, 2, 1, "starts", "proof"), crashes=True, closes=True, jumps=0
    ),
    "proven dead": _planned(_process(0, 3, 1, "suspect"), _process(1, 2, 1), _process(0, 2, 1, "starts"), crashes=True, witness=True, jumps=0),
    "configured": _planned(_process(0, 4, 2, "suspect"), _process(1, 3, 1), raised=2),
    "silent": _planned(_process(0, 2, 1, "suspect"), _process(1, 2, 1), rests=True),
}
"""Small enough for the same relation in Python (tests/model/lease.py)."""


def _off(rule: str, *processes: Process, **options: object) -> Configuration:
    return _planned(*processes, without=frozenset({rule}), **options)


SECOND = _process(0, 4, 1, "starts")
BROKEN: dict[str, Configuration] = {
    "R_DATED": _off("R_DATED", *EQUAL),
    "R_NO_REVIVAL": _off("R_NO_REVIVAL", *EQUAL),
    "R_CLAMP": _off("R_CLAMP", *EQUAL),
    "R_MARGIN": _off("R_MARGIN", *EQUAL),
    "R_JOIN_MARGIN": _off("R_JOIN_MARGIN", _process(0, 3, 1), _process(1, 3, 1), _process(0, 3, 0, "suspect", "starts"), moves=True),
    "R_FITS_LIVE": _off("R_FITS_LIVE", *EQUAL, raised=2),
    "R_FITS_FENCED": _off("R_FITS_FENCED", _process(0, 4, 1, "suspect"), _process(1, 4, 2), moves=True, raised=2),
    "R_FETCH": _off("R_FETCH", *EQUAL, SECOND),
    "R_END": _off("R_END", *EQUAL, SECOND),
    "R_NUMBERS": _off("R_NUMBERS", *EQUAL, SECOND),
    "R_HEEDS": _off("R_HEEDS", *EQUAL, SECOND),
    "R_HOLD": _off("R_HOLD", *EQUAL, SECOND),
    "R_OWN_SESSION": _off("R_OWN_SESSION", _process(0, 5, 1, "suspect"), _process(1, 3, 1), _process(0, 3, 1, "starts")),
    "R_LONGEST": _off("R_LONGEST", _process(0, 5, 1, "suspect"), _process(1, 2, 1), _process(0, 2, 1, "starts"), _process(1, 2, 1, "starts")),
    "R_HOLD_PASSES": _off("R_HOLD_PASSES", *EQUAL, moves=True),
    "R_HEARD": _off("R_HEARD", *EQUAL, SECOND),
    "R_PROOF": _off("R_PROOF", *EQUAL, _process(0, 4, 1, "starts", "proof")),
    "R_WITNESS": _off("R_WITNESS", *EQUAL, witness=True),
    "R_AFTER": _off("R_AFTER", *EQUAL, rests=True, jumps=0),
    "R_SMALLEST": _off("R_SMALLEST", *EQUAL, rests=True, raised=2),
    "R_EPOCH": _off("R_EPOCH", _process(0, 4, 1), _process(1, 4, 1, "suspect"), moves=True),
}
"""Rule -> the configuration in which its absence is searched."""


@attrs.frozen(kw_only=True)
class Owners:
    """One search of `model/changelog.pml`: the owners of a task one after the other, each by the
    number of its log and its token there; at most so many records in the changelog.
    """

    grants: tuple[tuple[int, int], ...]
    most: int
    without: frozenset[str] = frozenset()


CHANGELOG_RULES: dict[str, tuple[str, str]] = {
    "C_ORIGINS": ("M6", "records below the highest origin before them do not count"),
    "C_EPOCH": ("M6", "origins are ordered by epoch, then log, then token"),
    "C_FENCE": ("M6", "a new owner writes a fence"),
    "C_TO_FENCE": ("M6", "it restores up to its fence before it runs"),
    "C_OWNER_LAST": ("M6", "it starts again if another origin is above its own by then"),
    "C_FOLLOWS": ("M6", "it starts again if its records do not follow each other"),
}
ONE_LOG = (1, 1), (1, 2), (1, 3)
LATER_LOG = (1, 3), (2, 1), (2, 2)
THREE_LOGS = (2, 3), (3, 1), (1, 1)
"""The third log has the lowest id, so a late fence of the second one is above its own."""
OWNERS: dict[str, Owners] = {
    "one log": Owners(grants=ONE_LOG, most=8),
    "a new log, tokens begin again": Owners(grants=LATER_LOG, most=8),
    "two new logs, the last one with the lowest id": Owners(grants=THREE_LOGS, most=8),
}
WITHOUT_FENCE: dict[str, Owners] = {
    rule: Owners(grants=grants, most=8, without=frozenset({rule}))
    for rule, grants in {
        "C_ORIGINS": ONE_LOG,
        "C_EPOCH": LATER_LOG,
        "C_FENCE": ONE_LOG,
        "C_TO_FENCE": ONE_LOG,
        "C_OWNER_LAST": THREE_LOGS,
        "C_FOLLOWS": THREE_LOGS,
    }.items()
}
