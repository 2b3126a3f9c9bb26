"""`equipoise configure`: shows or changes the settings of a running group."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import click

from equipoise.cli.command import command
from equipoise.cli.judged import Judging, preview_of, settings_document
from equipoise.cli.params import Number, WholeNumber, check_live_settings
from equipoise.cli.screen import Line, Part, Screen, Table, bold
from equipoise.cli.settings_options import settings_options
from equipoise.events.facts import ChangePlanned, GroupConfigured
from equipoise.events.settings import GroupSettings
from equipoise.hosting.changed_settings import with_settings
from equipoise.hosting.live_settings import LiveSettings
from equipoise.replay.prediction.change_wish import ChangeWish
from equipoise.replay.wording import counted, day_text, planned_text

if TYPE_CHECKING:
    from equipoise.operations.group_settings import OtherChange, Preview, SettingChange
    from equipoise.statemachine.state import GroupState

EXIT_NOT_IN_FORCE = 1


@command("configure", short_help="Show or change the settings of a running group.")
@click.option("--group", required=True, metavar="GROUP", help="Group to show or change.")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Set a setting, as max_warmups=4; may be repeated.")
@click.option("--default", "defaults", multiple=True, metavar="NAME", help="Set a setting back to its default; may be repeated.")
@click.option("--assignor", metavar="NAME[@VERSION]", help="Use another assignor or behaviour version. Default version: the latest.")
@click.option("--led-by", type=click.Choice(["equipoise", "external"]), help="Which leader decides; external: equipoise only proposes.")
@click.option("--deal", "deals", is_flag=True, help="Instead of a change: assign the partitions of a lag_aware group again, by their present lag.")
@click.option("--rebase", is_flag=True, help="When somebody else changes the settings meanwhile, make this change to theirs.")
@click.option("--dry-run", is_flag=True, help="Change nothing: show what would move, and predict what that costs.")
@click.option("--judge", is_flag=True, help="Predict what the change costs, and have the leader judge it (`equipoise timeline --changes`).")
@click.option("--or-undo", is_flag=True, help="As --judge; when it costs too much, the settings of before come back.")
@click.option("--at-most", "at_most_task_s", type=Number(min=0), metavar="TASK_SECONDS", help="As --judge; more time without an owner is too much.")
@click.option("--plan", "plan", metavar="CHANGE", help="Have one judged that you make next: join=N, restart, leave=M1,M2, kill=M1,M2.")
@click.option("--why", default="", metavar="TEXT", help="With any of these: the reason, for the log.")
@click.option(
    "--runs", type=WholeNumber(0, 10_000), default=40, show_default=True, help="With any of these: simulated runs that predict the cost; 0: none."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=Number(min=0),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="Time to wait for a worker's answer.",
)
@settings_options(LiveSettings)
def configure(
    screen: Screen,
    settings: LiveSettings,
    group: str,
    changes: tuple[str, ...],
    defaults: tuple[str, ...],
    assignor: str | None,
    led_by: str | None,
    deals: bool,
    rebase: bool,
    dry_run: bool,
    judge: bool,
    or_undo: bool,
    at_most_task_s: float | None,
    plan: str | None,
    why: str,
    runs: int,
    timeout_s: float,
) -> int:
    """Without a change, show the settings in force. With changes, append them to the log as one
    fact and wait until a worker answers; no member restarts. Exit code 1: they are rejected, and
    the earlier settings stay in force, or no worker answered. The command prints how to undo the
    change.

    When somebody else changes the settings meanwhile, the change is rejected, and the command shows
    theirs. With --rebase it makes the change again, to their settings.

    A group that has no configuration, or whose log has lost it, gets the default one, with the
    changes: `--assignor high_availability` is that alone. Its members join again by themselves.

    --dry-run shows which tasks would move, and predicts what that will cost (docs/change.md).

    --judge writes down what the change is expected to cost before it is made, and the leader judges
    it afterwards; --or-undo also undoes it (docs/change.md).

    --deal assigns the partitions of a `lag_aware` group again, by lag, which the group does by
    itself only where its option deal_after_ms is set.

    \b
    Examples:
      equipoise configure --group orders
      equipoise configure --group orders --set max_warmups=4 --set num_standbys=1 --dry-run
      equipoise configure --group orders --assignor learner --default probing_interval_ms
      equipoise configure --group orders --set max_warmups=4 --or-undo --why "slow restarts"
      equipoise configure --group orders --plan join=2
      equipoise configure --group orders --deal --dry-run
    """
    run = _Configure(screen, settings, group)
    judges = judge or or_undo or at_most_task_s is not None
    if dry_run and (judges or plan is not None):
        raise click.UsageError("--dry-run: changes nothing, so there is nothing to judge; leave out one of them")
    if why and not (judges or plan is not None):
        raise click.UsageError("--why: goes with --judge, --or-undo, --at-most or --plan")
    wish, judging = ChangeWish(why=why, or_undo=or_undo, at_most_task_s=at_most_task_s), Judging(screen, settings, group, runs)
    asked = bool(changes or defaults or assignor or led_by)
    if plan is not None:
        if asked or deals or or_undo:
            raise click.UsageError("--plan: for a change that you make yourself, which cannot be undone; leave out the others")
        return judging.plan(plan, wish, timeout_s)
    if deals:
        from equipoise.cli.deal import deal

        if asked or judges:
            raise click.UsageError("--deal: changes no setting; leave out the changes")
        return asyncio.run(deal(screen, settings, group, dry_run=dry_run, timeout_s=timeout_s))
    if (dry_run or judges) and not asked:
        raise click.UsageError(f"{'--dry-run' if dry_run else '--judge'}: say what to change, as --set max_warmups=4, or --deal")
    if not asked:
        return asyncio.run(run.show())

    def changed(before: GroupConfigured) -> GroupConfigured:
        from equipoise.operations.group_settings import check_configuration, with_assignor, with_defaults

        config = before if assignor is None else with_assignor(before, assignor)
        settings = with_settings(with_defaults(config.knobs, defaults), changes)
        config = attrs.evolve(config, knobs=settings, led_by=led_by or config.led_by)
        check_configuration(config)
        check_live_settings(settings, before.knobs)
        return config

    if dry_run:
        before, after, found, state = asyncio.run(run.preview(changed))
        return run.answer_preview(before, after, found, partial(judging.predicted_dry, state, after))
    code = None
    while code is None:
        planned = judging.planned(changed, wish) if judges else None
        code = asyncio.run(run.change(changed, timeout_s, planned, rebases=rebase))
    return code


class _Configure:
    """One run on a live group."""

    def __init__(self, screen: Screen, settings: LiveSettings, group: str) -> None:
        self._screen, self._settings, self._group = screen, settings, group

    async def show(self) -> int:
        from equipoise.operations.live_group import AnsweredFact
        from equipoise.replay.wording import setting_values

        async with AnsweredFact(self._settings, self._group) as live:
            config = await live.configuration()
        defaults = setting_values(GroupConfigured(knobs=GroupSettings()))
        rows: list[tuple[str, str, str]] = []
        for name, value in setting_values(config).items():
            default = defaults.get(name)
            is_setting = name not in ("assignor", "solver", "led_by")
            rows.append((name, _shown(value), _shown(default) if is_setting and value != default else ""))
        table = Table(columns=("setting", "value", "default, if different"), rows=rows)
        self._screen.answer(settings_document(self._group, "shown", config, []), Line(bold(self._group)), table)
        return 0

    async def preview(self, changed: Any) -> tuple[GroupConfigured, GroupConfigured, Preview, GroupState]:
        return await preview_of(self._settings, self._group, changed)

    def answer_preview(
        self, before: GroupConfigured, after: GroupConfigured, found: Preview, predict: Callable[[], tuple[dict[str, Any] | None, list[Part]]]
    ) -> int:
        """Shows what would change and move, and what that will cost, as `predict` says it."""
        from equipoise.operations.group_settings import changes_between

        changes = changes_between(before, after)
        parts: list[Part] = [Line(bold(self._group), "  this run changes nothing"), *_change_parts(changes)]
        if found.rejection is not None:
            parts.append(f"it would be rejected: {found.rejection}")
        elif not found.moves:
            parts.append("no task would move now")
        else:
            rows = [(str(move.task), move.source, move.destination, move.state, move.reason) for move in found.moves]
            parts.append(Table(columns=("task", "from", "to", "state", "reason"), rows=rows, title=f"{counted(len(rows), 'movement')} would begin"))
        if found.rejection is None and found.planned_movements:
            parts.append(f"{counted(found.planned_movements, 'movement')} until the new target is reached")
        predicted, said = predict() if found.rejection is None and changes else (None, [])
        document = settings_document(
            self._group,
            "dry run",
            before,
            changes,
            rejection=found.rejection,
            moves=[_move(each) for each in found.moves],
            planned_movements=found.planned_movements,
            predicted=predicted,
        )
        self._screen.answer(document, *parts, *said)
        return EXIT_NOT_IN_FORCE if found.rejection is not None else 0

    async def change(
        self, changed: Any, timeout_s: float, planned: tuple[ChangePlanned, GroupConfigured] | None = None, *, rebases: bool = False
    ) -> int | None:
        """Changes the settings, and returns the exit code; None, if it `rebases`: somebody else has
        changed them meanwhile, so it is to be made again. `planned`: is written down before, and
        was made from these settings; None: nothing is.
        """
        from equipoise.operations.group_settings import changes_between, way_back
        from equipoise.operations.live_group import AnsweredFact

        change_id = "" if planned is None else planned[0].change_id
        async with AnsweredFact(self._settings, self._group) as live:
            before = await live.configuration(or_default=True) if planned is None else planned[1]
            is_first = (await live.state()).config is None
            after = attrs.evolve(changed(before), change_id=change_id, by=_operator())
            changes = changes_between(before, after)
            if not changes and not is_first:
                unchanged = settings_document(self._group, "unchanged", before, [])
                self._screen.answer(unchanged, f"{self._group}: the settings are already these; nothing was appended")
                return 0
            if planned is not None:
                await live.append(planned[0])
                self._screen.remark(f"{change_id}: {planned_text(planned[0])}")
            await live.say(after)
            if not self._screen.json and changes:
                self._screen.answer(None, Line(bold(self._group)), *_change_parts(changes))
            self._screen.remark(f"appended at offset {live.offset}; waiting for a worker to answer")
            answered = await live.is_answered_within(timeout_s)
            if not answered:
                self._screen.answer(
                    settings_document(self._group, "no answer", before, changes, offset=live.offset),
                    f"{self._group}: no worker answered within {timeout_s:g} s; the change is in the log, and the next worker applies it",
                )
                return EXIT_NOT_IN_FORCE
            rejection = live.rejection()
            meanwhile = await live.changed_since(before) if live.is_outdated else []
            in_force = await live.configuration(or_default=True)
        said = [f"meanwhile {meanwhile_text(each)}" for each in meanwhile]
        if live.is_outdated and rebases:
            self._screen.remark("; ".join([*said, "the change is made again, to these settings"]))
            return None
        if rejection is not None:
            others = [attrs.asdict(each) for each in meanwhile]
            document = settings_document(self._group, "rejected", in_force, changes, offset=live.offset, rejection=rejection, meanwhile=others)
            fix = ["to make your change to these settings, run it again; --rebase does that by itself"] * live.is_outdated
            stay = "other" if live.is_outdated else "the earlier"
            self._screen.answer(document, f"{self._group}: rejected; {stay} settings stay in force: {rejection}", *said, *fix)
            return EXIT_NOT_IN_FORCE
        back = None if is_first else way_back(self._group, before, after)
        judged = [] if planned is None else [f"{change_id} is judged when the group is at rest: `equipoise timeline --changes` shows it"]
        document = settings_document(self._group, "in force", after, changes, offset=live.offset, way_back=back, change_id=change_id or None)
        self._screen.answer(document, f"{self._group}: in force", *([] if back is None else [f"to undo: {back}"]), *judged)
        return 0


def _shown(value: Any) -> str:
    from equipoise.replay.wording import setting_text

    return "-" if value is None else setting_text(value)


def _operator() -> str:
    """Returns who runs this command, for others who read the log; empty: not known."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError, ImportError):  # a user without a name
        return ""


def meanwhile_text(other: OtherChange) -> str:
    """Returns what somebody else has changed, when, and where in the log."""
    changes = ", ".join(f"{each.name} {_shown(each.before)} -> {_shown(each.after)}" for each in other.changes) or "nothing that differs now"
    when = "" if other.at_ms is None else f" at {day_text(other.at_ms)} (offset {other.offset}{f', {other.change_id}' if other.change_id else ''})"
    return f"{other.by or 'somebody'} changed {changes}{when}"


def _change_parts(changes: list[SettingChange]) -> list[Part]:
    if not changes:
        return ["the settings are already these"]
    return [Table(columns=("setting", "before", "after"), rows=[(each.name, _shown(each.before), _shown(each.after)) for each in changes])]


def _move(move: Any) -> dict[str, Any]:
    return {"task": str(move.task), "source": move.source, "destination": move.destination, "state": move.state, "reason": move.reason}
