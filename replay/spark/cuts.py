"""`verify` from the beginning of every log, with large groups cut at the states that former runs
have left, so that several tasks verify one group.

No state is taken on trust. A piece begins at a stored state, and the piece before must end at the
same one, to the byte: counts, digests and what waits included. So the row of the last piece is that
of the whole group. Where the two differ, or where a piece could not be read or compared to its end,
the group is verified as a whole from there on, from the last state that was reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import attrs

from equipoise.replay.spark.groups import TASKS_A_CORE, Numbers, Unit, over_groups, parallelism, strict_files_of, unpacked
from equipoise.replay.spark.pieces import Targets
from equipoise.replay.spark.pieces import schema as of_rows
from equipoise.replay.spark.results import kept
from equipoise.replay.spark.states import CUT_RECORDS, Former, VerifiedGroups, distance, schema, state_row, verify_on

Place = tuple[str, str]
"""(location, group)."""


@attrs.frozen
class WrongState:
    """A stored state that is not the one that is reached there. `row`: the row of the partition
    before which it is; `offset`: of the next fact.
    """

    location: str
    group: str
    row: int
    offset: int


@attrs.frozen
class PiecesPlan:
    """The work of a run. `units`: every group, or the pieces of it, in order. `saved`: the
    states at which they begin.
    """

    units: list[Unit]
    saved: dict[tuple[str, str, int], bytes]
    """(location, group, first row) -> state."""

    @property
    def cut(self) -> dict[Place, list[Unit]]:
        """The pieces of each group that is cut."""
        found: dict[Place, list[Unit]] = {}
        for unit in self.units:
            if unit.piece or unit.until_row is not None:
                found.setdefault((unit.location, unit.group), []).append(unit)
        return found

    def begun(self, numbers: Numbers, targets: Sequence[Targets]) -> Any:
        """The states at which pieces begin, as rows for the tasks that go on from them."""
        import pyarrow as pa

        rows = []
        for unit in self.units:
            if unit.first_row:
                place, saved = numbers[unit.place], self.saved[unit.location, unit.group, unit.first_row]
                rows.append(state_row(targets[place].groups[unit.group], place, unit.group, saved))
        return pa.Table.from_pylist(rows, schema=of_rows())


def pieces_plan(units: Sequence[Unit], former: Former, tasks: int, cut_every: int = CUT_RECORDS) -> PiecesPlan:
    """Cuts the groups that are too large for one of so many tasks, where there are states.
    `cut_every`: see `states.distance`.
    """
    least = max(1, sum(unit.records for unit in units) // tasks)
    large = {(unit.location, unit.group) for unit in units if unit.records > least}
    states: dict[Place, dict[int, tuple[int, bytes]]] = {}
    for batch in former.cuts():
        for each in batch.to_pylist():
            if (place := (each["location"], each["group"])) in large:
                states.setdefault(place, {})[each["row"]] = each["records"], each["saved"]
    plan = PiecesPlan([], {})
    for unit in units:
        whole = attrs.evolve(unit, cut_every=distance(unit.records, cut_every))
        began, piece = 0, whole
        for row, (records, saved) in sorted(states.get((unit.location, unit.group), {}).items()):
            if records - began < least or unit.records - records < least // 2:
                continue
            plan.units.append(attrs.evolve(piece, until_row=row, records=records - began))
            plan.saved[unit.location, unit.group, row] = saved
            began, piece = records, attrs.evolve(whole, first_row=row, piece=piece.piece + 1)
        plan.units.append(attrs.evolve(piece, records=max(1, unit.records - began)))
    return plan


@attrs.frozen
class Ends:
    """`began` and `ended` of a piece, as `states.schema` has them."""

    began: str | None
    ended: str | None


@attrs.frozen
class Chain:
    """The answer to whether pieces follow each other. `rest`: groups to be verified as a whole.
    `reached`: of each of these, how many of its pieces have left states that hold. `sound`:
    (location, group, row) of the stored states that are those reached there.
    """

    rest: PiecesPlan = attrs.field(factory=lambda: PiecesPlan([], {}))
    reached: dict[Place, int] = attrs.field(factory=dict)
    sound: set[tuple[str, str, int]] = attrs.field(factory=set)
    wrong: list[WrongState] = attrs.field(factory=list)


def chained(plan: PiecesPlan, ends: Callable[[Unit], Ends], ended: Callable[[Unit], bytes | None]) -> Chain:
    """Returns whether each piece ended where the next one begins. `ended`: the state at its end."""
    chain = Chain()
    for (location, group), pieces in plan.cut.items():
        at = _breaks_at([ends(piece) for piece in pieces])
        chain.sound.update((location, group, piece.first_row) for piece in pieces[1 : None if at is None else at + 1])
        if at is None:
            continue
        piece, following, state = pieces[at], pieces[at + 1], ended(pieces[at])
        if state is None:  # it could not be read or compared to its end, and the rest may have more to say of that
            state, following = plan.saved.get((location, group, piece.first_row)), piece
        else:
            chain.wrong.append(WrongState(location, group, following.first_row, unpacked(state)[0].position))
            at += 1
        chain.reached[location, group] = at
        chain.rest.units.append(attrs.evolve(following, until_row=None, piece=0))
        if state is not None:
            chain.rest.saved[location, group, following.first_row] = state
    return chain


def _breaks_at(pieces: Sequence[Ends]) -> int | None:
    """The first piece that did not end where the next one begins."""
    return next((at for at, (one, other) in enumerate(pairwise(pieces)) if one.ended is None or one.ended != other.began), None)


def spark_verify_again(spark: Any, units: Sequence[Unit], former: Former, cut_every: int = CUT_RECORDS) -> VerifiedGroups:
    """Verifies every group from its beginning."""
    from pyspark.sql import functions as spark_functions

    plan = pieces_plan(units, former, TASKS_A_CORE * parallelism(spark), cut_every)
    files = strict_files_of(units)
    rows = kept(over_groups(spark, plan.units, verify_on, schema(), files, begun=plan.begun))
    found = {(row.location, row.group, row.piece): Ends(row.began, row.ended) for row in rows.drop("document", "saved", "cuts").collect()}

    def is_of(location: str, group: str) -> Any:
        return (rows.location == location) & (rows["group"] == group)

    def ended(unit: Unit) -> bytes | None:
        row = rows.where(is_of(unit.location, unit.group) & (rows.piece == unit.piece)).select("saved").collect()[0]
        return None if row.saved is None else bytes(row.saved)

    chain = chained(plan, lambda unit: found[unit.location, unit.group, unit.piece], ended)
    again = behind = spark_functions.lit(False)
    for place, pieces in chain.reached.items():
        again |= is_of(*place)
        behind |= is_of(*place) & (rows.piece >= pieces)
    cuts, answers, frames = rows.where(~behind), rows.where(rows.is_last & ~again), [rows]
    if chain.rest.units:
        frames.append(kept(over_groups(spark, chain.rest.units, verify_on, schema(), files, begun=chain.rest.begun)))
        cuts, answers = cuts.union(frames[-1]), answers.union(frames[-1])
    counts = {"went_on": 0, "began": len(units), "unchanged": 0, "pieces": len(plan.units), "wrong": [attrs.asdict(each) for each in chain.wrong]}
    return VerifiedGroups(rows=answers, cuts=cuts, keeps=lambda *place: place in chain.sound, counts=counts, frames=frames)
