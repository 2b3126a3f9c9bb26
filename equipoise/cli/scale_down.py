"""`equipoise scale-down`: picks the members that should leave. From a LOG it only names them; in a
running group it asks them to leave and follows until they are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import attrs
import click

from equipoise.cli.command import command
from equipoise.cli.params import AT_HELP, LOG, OFFSET, Moment, Number, WholeNumber, offset_of, read
from equipoise.cli.screen import HAS_RICH, Line, Part, Screen, Table, bold
from equipoise.cli.settings_options import settings_options
from equipoise.cli.visible import shortened, visible
from equipoise.events.errors import InputError
from equipoise.hosting.live_settings import LiveSettings
from equipoise.log import Log
from equipoise.replay.wording import counted, planned_text

if TYPE_CHECKING:
    from equipoise.assignors.scale_down import Keep, ScaleDown
    from equipoise.events.facts import ChangePlanned
    from equipoise.kafka.connection import Connection
    from equipoise.operations.leaving import LeavingMember, LeavingMembers
    from equipoise.replay.group_view import Drain
    from equipoise.replay.prediction.habits import Habits
    from equipoise.statemachine.state import GroupState

EXIT_NOT_DONE = 1
PATIENCE_S = 10.0
"""After this long without a decision the user is asked to check that a worker runs."""


class _KeepType(click.ParamType):
    """``4`` or ``80%``."""

    name = "keep"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Keep:
        from equipoise.assignors.scale_down import Keep

        try:
            return Keep.parse(str(value))
        except InputError as error:
            self.fail(str(error), param, ctx)


@command("scale-down", short_help="Drain the members that cost the least state, and follow.")
@click.argument("log", type=LOG, required=False)
@click.option("--keep", type=_KeepType(), metavar="N|N%", help="Members that stay: a number, as 4, or a share, rounded up, as 80%.")
@click.option("--group", metavar="GROUP", help="Group; with a LOG required only if it holds several.")
@click.option("--dry-run", is_flag=True, help="Name the members that would be asked, and ask none.")
@click.option("--yes", is_flag=True, help="Ask more than half of the members to leave without asking you first.")
@click.option("--follow", is_flag=True, help="Ask no more members; follow those that are already asked.")
@click.option("--cancel", is_flag=True, help="Withdraw every request of the group; members that are not released yet stay.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Number(min=0),
    metavar="SECONDS",
    help="Stop following after this time. Default: follow until all are gone.",
)
@click.option("--at", "at_offset", type=OFFSET, metavar="OFFSET|TIME", help=f"With a LOG: the group after this fact, {AT_HELP}")
@click.option("--runs", type=WholeNumber(0, 10_000), default=40, show_default=True, help="Simulated runs that predict the cost; 0: none.")
@settings_options(LiveSettings)
def scale_down(
    screen: Screen,
    settings: LiveSettings,
    log: Log | None,
    keep: Keep | None,
    group: str | None,
    dry_run: bool,
    yes: bool,
    follow: bool,
    cancel: bool,
    timeout_s: float | None,
    at_offset: int | Moment | None,
    runs: int,
) -> int:
    """Pick the members whose leaving makes the others restore the fewest records, evenly from the
    racks. In a running group (--group without LOG), ask them all at once, and follow until each is
    released and gone. Before more than half of the members go, it asks you; in a script, --yes
    answers. A released member's process ends by itself; make sure that nothing restarts it.

    Before, the change and its predicted cost are written to the log, and the leader judges it
    (docs/change.md), unless another change is not over yet.

    After an interrupt, or after --timeout (exit code 1), the request stays: --follow follows it
    again, --cancel withdraws it.

    With a LOG (a file, or kafka://host:port) it names the members that it would ask, and asks none.

    \b
    Examples:
      equipoise scale-down --group orders --keep 4 --dry-run
      equipoise scale-down --group orders --follow --timeout 600
      equipoise scale-down --group orders --cancel
      equipoise scale-down group.db --keep 80% --json | jq -r '.asked[].member'
    """
    asks = not (follow or cancel)
    if sum((dry_run, follow, cancel)) > 1:
        raise click.UsageError("--dry-run, --follow and --cancel: name one of them")
    if asks and keep is None:
        raise click.UsageError("--keep: say how many members stay, as --keep 4 or --keep 80%")
    if not asks and keep is not None:
        raise click.UsageError("--keep: asks members to leave; leave it out with --follow and --cancel")
    if log is not None:
        if keep is None or timeout_s is not None:
            raise click.UsageError("LOG: a log only names members; leave it out to ask a running group")
        document, parts = _picked(screen, log, keep, offset_of(log, at_offset, group), group, runs)
        screen.answer(document, *parts)
        return 0
    if group is None:
        raise InputError("--group: name the group; `equipoise status` lists them")
    if at_offset is not None:
        raise click.UsageError("--at: needs a LOG")
    run = _ScaleDown(screen, settings, group, runs)
    try:
        if keep is not None and not dry_run:
            run.write_down(keep, yes=yes)
        code = asyncio.run(run.run(keep, dry_run=dry_run, cancel=cancel, timeout_s=timeout_s))
        if dry_run:
            run.answer_dry_run()
        return code
    except KeyboardInterrupt:
        run.say_how_it_stands()
        raise


def _picked(screen: Screen, log: Log, keep: Keep, at_offset: int | None, group: str | None, runs: int) -> tuple[dict[str, Any], list[Part]]:
    """The members that would be asked, from a log."""
    from equipoise.operations.leaving import choose_members  # loads the solver
    from equipoise.replay.prediction.habits import HabitsReader
    from equipoise.replay.prediction.reading import tapped
    from equipoise.replay.replayer import Replayer

    replayer, habits = Replayer(group), HabitsReader(group=group)
    for _ in replayer.follow(tapped(read(screen, log, "folding", group), habits.take), until_offset=at_offset):
        pass
    state = replayer.machine.state
    found, drain = choose_members(state, keep)
    document = _document(found, drain, replayer.group, state.last_offset, keep)
    document["predicted"], parts = _predicted(screen, state, habits.habits(), found, runs)
    return document, [*scale_down_parts(found, drain, replayer.group), *parts]


def _predicted(
    screen: Screen, state: GroupState, habits: Habits | None, found: ScaleDown, runs: int, connection: Connection | None = None
) -> tuple[dict[str, Any] | None, list[Part]]:
    """Predicts what it will cost when those who are to be asked leave."""
    from equipoise.cli.predicted import predict_dry
    from equipoise.replay.prediction.planned_change import Leave

    if not found.asked or not runs:
        return None, []
    leave = Leave(members=tuple(sorted(each.member for each in found.asked)))
    return predict_dry(screen, state, habits, leave, "they leave", runs=runs, connection=connection)


def _document(found: ScaleDown, drain: Drain, group: str, offset: int, keep: Keep) -> dict[str, Any]:
    return {
        "group": group,
        "offset": offset,
        "percent": keep.percent,
        "keep": found.keep,
        "leaving": list(found.leaving),
        "asked": [attrs.asdict(each) for each in found.asked],
        "restore_records": found.restore_records,
        "drain": attrs.asdict(drain),
        "racks": {rack: {"members": size, "stay": stay} for rack, (size, stay) in found.racks.items()},
        "predicted": None,
    }


def scale_down_parts(found: ScaleDown, drain: Drain, group: str, *, asks: bool = False) -> list[Part]:
    """The members to ask, and what that costs."""
    racked = found.racks.keys() != {""}
    rows: list[list[str | int]] = [[each.member, *([each.rack] if racked else []), each.active, each.records] for each in found.asked]
    columns = ("ask", *(["rack"] if racked else []), "active tasks", "records to restore for it")
    already = f"; leaving already: {', '.join(found.leaving)}" if found.leaving else ""
    staying = f"{counted(found.keep, 'member')} stay{'s' if found.keep == 1 else ''}"
    head = Line(bold(group), f"  {staying}, {counted(found.restore_records, 'record')} to restore in all, those of standbys included{already}")
    if not rows:
        return [head, "no member has to leave"]
    parts: list[Part] = [head, f"to drain them: {drain.text()}", ""]
    parts += [
        Table(columns=columns, rows=rows, title=f"{counted(len(rows), 'member')} {'asked to leave' if asks else 'to ask; none is asked by this run'}")
    ]
    if racked:
        parts.append(f"racks: {', '.join(f'{rack or chr(45)} {stay} of {size} stay' for rack, (size, stay) in found.racks.items())}")
    return parts


class _ScaleDown:
    """One run on a live group."""

    def __init__(self, screen: Screen, settings: LiveSettings, group: str, runs: int) -> None:
        self._screen, self._settings, self._group, self._runs = screen, settings, group, runs
        self._dry: tuple[dict[str, Any], ScaleDown, Drain, GroupState] | None = None
        """A dry run's document, members, time and state."""
        self._pending: tuple[str, ...] = ()
        """Members that are asked and were not gone at the last look."""
        self._planned: ChangePlanned | None = None
        """Is written down before; None: nothing is."""
        self._chosen: tuple[str, ...] = ()
        """The members that are to leave."""

    def write_down(self, keep: Keep, *, yes: bool) -> None:
        """Chooses the members, and says what will be written down before they are asked. It is
        predicted while nothing is connected. Raises InputError when nobody answers yes.
        """
        from equipoise.cli.judged import Judging
        from equipoise.replay.prediction.planned_change import Leave

        found, drain, state = asyncio.run(self._pick(keep))
        if len(found.asked) > found.keep and not yes:
            self._confirm(found, drain)
        elif not self._screen.json:
            self._screen.answer(None, *scale_down_parts(found, drain, self._group, asks=True))
        self._chosen = tuple(sorted(each.member for each in found.asked))
        if self._chosen:
            self._planned = Judging(self._screen, self._settings, self._group, self._runs).unasked(state, Leave(members=self._chosen))
        if self._planned is not None:
            self._screen.remark(f"{self._planned.change_id}: {planned_text(self._planned)}")

    async def _pick(self, keep: Keep) -> tuple[ScaleDown, Drain, GroupState]:
        from equipoise.operations.leaving import LeavingMembers

        async with LeavingMembers(self._settings, self._group) as leaving:
            return *await leaving.pick(keep), await leaving.state()

    def answer_dry_run(self) -> None:
        """Answers a dry run, when the connection is closed: predictions take a while, in processes
        of their own.
        """
        assert self._dry is not None, "the run was dry"
        picked, found, drain, state = self._dry
        picked["predicted"], parts = _predicted(self._screen, state, None, found, self._runs, self._settings)
        self._screen.answer(picked, *scale_down_parts(found, drain, self._group), *parts)

    async def run(self, keep: Keep | None, *, dry_run: bool, cancel: bool, timeout_s: float | None) -> int:
        from equipoise.operations.leaving import LeavingMembers

        async with LeavingMembers(self._settings, self._group) as leaving:
            if cancel:
                return await self._cancel(leaving)
            if keep is None:
                leaving.follow(await leaving.asked())
                picked = None
            else:
                found, drain = await (leaving.pick(keep) if dry_run else leaving.ask(keep, self._planned, self._chosen))
                picked = _document(found, drain, self._group, (await leaving.state()).last_offset, keep)
                if dry_run:
                    self._dry = picked, found, drain, await leaving.state()
                    return 0
                if self._planned is not None and leaving.planned is None:
                    self._planned = None
                    self._screen.remark("not judged: the group, or its settings, have changed meanwhile")
            return await self._follow(leaving, picked, timeout_s)

    def _confirm(self, found: ScaleDown, drain: Drain) -> None:
        """Asks before more than half of the members go. Raises InputError when nobody answers yes."""
        going = f"{len(found.asked)} of {counted(found.keep + len(found.asked), 'member')} would leave, and do not come back by themselves"
        if self._screen.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise InputError(f"--keep: {going}; look with --dry-run, and add --yes if that is meant")
        self._screen.answer(None, *scale_down_parts(found, drain, self._group, asks=True))
        if not click.confirm(f"{going}. Ask them?"):
            raise InputError("--keep: nobody was asked")

    def _live_document(self, outcome: str, members: dict[str, str], picked: dict[str, Any] | None, began_s: float) -> dict[str, Any]:
        seconds = round(time.monotonic() - began_s, 1)
        return {
            "group": self._group,
            "outcome": outcome,
            "members": dict(sorted(members.items())),
            "seconds": seconds,
            "picked": picked,
            "change_id": None if self._planned is None else self._planned.change_id,
        }

    async def _cancel(self, leaving: LeavingMembers) -> int:
        began_s = time.monotonic()
        asked = await leaving.asked()
        staying = await leaving.withdraw()
        gone = [member for member in asked if member not in staying]
        said = f"{self._group}: {', '.join(staying)} {'stays' if len(staying) == 1 else 'stay'}" if staying else ""
        late = f"{self._group}: too late for {', '.join(gone)}: already released" if gone else ""
        members = {**dict.fromkeys(staying, "stays"), **dict.fromkeys(gone, "released")}
        parts = [part for part in (said, late) if part] or [f"{self._group}: no member is asked to leave"]
        self._screen.answer(self._live_document("taken back", members, None, began_s), *parts)
        return EXIT_NOT_DONE if gone else 0

    async def _follow(self, leaving: LeavingMembers, picked: dict[str, Any] | None, timeout_s: float | None) -> int:
        from equipoise.operations.leaving import LeaveStage

        began_s = time.monotonic()
        warned = False
        self._pending = leaving.members
        with self._display() as show:
            while True:
                going = await leaving.look()
                show(going)
                self._pending = tuple(each.member for each in going if not each.stage.is_out and each.stage is not LeaveStage.STAYS)
                passed_s = time.monotonic() - began_s
                if not self._pending or (timeout_s is not None and passed_s >= timeout_s):
                    break
                if passed_s >= PATIENCE_S and not warned:
                    warned = True
                    if not await leaving.is_answered():
                        self._screen.remark(f"no worker has answered for {PATIENCE_S:.0f} s; check that one runs for this log")
                await leaving.until_next_look()
        staying = [each.member for each in going if each.stage is LeaveStage.STAYS]
        outcome = "timeout" if self._pending else "taken back" if staying else "done"
        stages = {each.member: each.stage.value for each in going}
        died = [each.member for each in going if each.stage is LeaveStage.DIED]
        parts = [f"{self._group}: {self._outcome_text(outcome, staying, len(going), time.monotonic() - began_s)}"]
        parts += [f"{', '.join(died)} ended without leaving; it is asked again if it comes back within ten minutes"] if died else []
        self._screen.answer(self._live_document(outcome, stages, picked, began_s), *parts)
        if self._pending:
            self.say_how_it_stands()
        return 0 if outcome == "done" else EXIT_NOT_DONE

    def _outcome_text(self, outcome: str, staying: list[str], count: int, seconds: float) -> str:
        if outcome == "done":
            return f"{counted(count, 'member')} gone after {seconds:.0f} s" if count else "no member is asked to leave"
        if outcome == "timeout":
            return f"{counted(len(self._pending), 'member')} not gone after {seconds:.0f} s: {', '.join(self._pending)}"
        return f"the request was taken back for {', '.join(staying)}"

    def say_how_it_stands(self) -> None:
        """Prints, after an interrupt or a timeout, what continues, how to follow it and how to undo
        it.
        """
        if not self._pending:
            seen = f"this run saw no member asked to leave; check with `equipoise status --group {self._group}`"
            self._screen.line(f"{self._group}: {seen}", err=True)
            return
        again = f"equipoise scale-down --group {self._group}"
        self._screen.line(f"{self._group}: {', '.join(self._pending)} asked to leave; they go when they are released", err=True)
        self._screen.line(f"to follow: {again} --follow; to withdraw: {again} --cancel", err=True)

    @contextlib.contextmanager
    def _display(self) -> Iterator[Callable[[list[LeavingMember]], None]]:
        """On a terminal a table that is redrawn, else a line on stderr for each change of a member."""
        if self._screen.json or self._screen.quiet:
            yield lambda going: None
        elif HAS_RICH and sys.stderr.isatty():
            import rich.console
            import rich.live

            with rich.live.Live(console=rich.console.Console(stderr=True), auto_refresh=False, transient=True, redirect_stdout=False) as live:
                yield lambda going: live.update(_drawn(going), refresh=True)
        else:
            said: dict[str, str] = {}

            def lines(going: list[LeavingMember]) -> None:
                for each in going:
                    if said.get(each.member) != each.line():
                        said[each.member] = each.line()
                        self._screen.line(each.line(), err=True)

            yield lines


def _drawn(going: list[LeavingMember]) -> Any:
    import rich.box
    import rich.table
    import rich.text

    from equipoise.operations.leaving import LeaveStage

    columns = ("member", "", "tasks left", "copied elsewhere now", "records to restore for that", "time")
    table = rich.table.Table(*columns, box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for each in going:
        numbers = (each.tasks, each.warming, each.lag_records) if each.stage is LeaveStage.DRAINING else ()
        time = () if each.drain is None else (each.drain.text(),)
        table.add_row(rich.text.Text(shortened(visible(each.member))), each.stage.value, *(f"{number:,}" for number in numbers), *time)
    return table
