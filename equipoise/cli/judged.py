"""Changes that commands write down before they are made, for the leader to judge."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from equipoise.cli.screen import Part, Screen
from equipoise.events.errors import EquipoiseError, InputError
from equipoise.events.facts import ChangePlanned, GroupConfigured
from equipoise.hosting.live_settings import LiveSettings
from equipoise.replay.prediction.change_wish import ChangeWish
from equipoise.replay.wording import planned_text

if TYPE_CHECKING:
    from equipoise.operations.group_settings import Preview, SettingChange
    from equipoise.replay.prediction.habits import Habits
    from equipoise.replay.prediction.planned_change import PlannedChange
    from equipoise.replay.prediction.predict import Prediction
    from equipoise.statemachine.state import GroupState

EXIT_NOT_PLANNED = 1
LATELY_FACTS = 20_000
"""Of the partition, read before a change that nobody asked to judge: it is not to take long."""


def settings_document(group: str, outcome: str, config: GroupConfigured, changes: list[SettingChange], **others: Any) -> dict[str, Any]:
    """Returns the answer of `configure`, JSON-ready."""
    from equipoise.replay.wording import setting_values

    none = dict.fromkeys(("offset", "rejection", "way_back", "planned_movements", "predicted", "change_id"))
    shown = {**none, "moves": [], "meanwhile": [], **others}
    return {
        "group": group,
        "outcome": outcome,
        "settings": {name: list(value) if isinstance(value, tuple) else value for name, value in setting_values(config).items()},
        "changes": [attrs.asdict(each) for each in changes],
        **shown,
    }


async def preview_of(
    settings: LiveSettings, group: str, changed: Callable[[GroupConfigured], GroupConfigured]
) -> tuple[GroupConfigured, GroupConfigured, Preview, GroupState]:
    """Returns the configuration of a live group, the changed one, what would happen at once, and
    the group's state.
    """
    from equipoise.operations.group_settings import preview
    from equipoise.operations.live_group import AnsweredFact

    async with AnsweredFact(settings, group) as live:
        before = await live.configuration()
        after = changed(before)
        machine = await live.machine()
        return before, after, preview(machine, after), machine.state


async def unasked_problem(settings: LiveSettings, state: GroupState) -> str:
    """Returns why a change is not written down unless somebody asks for it; "": it is. It must not
    end the watch over another change, and every worker has to be known to read it.
    """
    from equipoise.operations.worker_builds import check_workers_read

    if state.change is not None:
        return f"{state.change.planned.change_id} is not over, and what this costs counts there"
    if state.config is None or state.config.led_by != "equipoise":
        return "something else leads the group"
    try:
        return await check_workers_read(settings)
    except InputError as error:
        return str(error)


class Judging:
    """Planned changes of a live group. `runs`: simulated ones that predict what a change costs; 0:
    nothing is predicted.
    """

    def __init__(self, screen: Screen, settings: LiveSettings, group: str, runs: int) -> None:
        self._screen, self._settings, self._group, self._runs = screen, settings, group, runs

    def planned(self, changed: Any, wish: ChangeWish) -> tuple[ChangePlanned, GroupConfigured] | None:
        """Returns what is written down before a change of settings, and the settings that it was
        made from; None: they are already those. Raises InputError for a change that would be
        rejected.
        """
        from equipoise.replay.known_changes import settings_text
        from equipoise.replay.prediction.planned_change import Configure

        before, after, found, state = asyncio.run(preview_of(self._settings, self._group, changed))
        if before == after:
            return None
        if found.rejection is not None:
            raise InputError(f"{self._group}: the change would be rejected, so there is nothing to judge: {found.rejection}")
        self._check_workers()
        predicted = self._predict(state, Configure(config=after.content))
        return wish.planned("configure", settings_text(before, after), state.last_offset, predicted, before.made_from), before

    def plan(self, text: str, wish: ChangeWish, timeout_s: float) -> int:
        """Writes a change down that the user makes next, and returns the exit code. Raises
        InputError for a change that the group cannot have.
        """
        from equipoise.cli.predicted import parse_change
        from equipoise.replay.prediction.planned_change import JUDGED_AS, Configure, Kill, check_change

        state = asyncio.run(self._state())
        assert state.config is not None, "a group that a worker leads is configured"
        change = parse_change(text, state.config)
        if isinstance(change, Configure) or type(change) not in JUDGED_AS:
            raise InputError(f"--plan {text}: name join=N, restart, leave=M1,M2 or kill=M1,M2; settings are changed with --set")
        check_change(change, state.members)
        self._check_workers()
        predicted = self._predict(state, change)
        name = "kill" if isinstance(change, Kill) else ""
        planned = wish.planned(JUDGED_AS[type(change)], change.text(), state.last_offset, predicted, state.config_number, name)
        return asyncio.run(self._write_down(planned, timeout_s))

    def unasked(self, state: GroupState, change: PlannedChange) -> ChangePlanned | None:
        """Returns what is written down before a change that nobody asked to judge; None, with a
        remark: nothing is.
        """
        from equipoise.replay.prediction.planned_change import JUDGED_AS

        problem = asyncio.run(unasked_problem(self._settings, state))
        if problem:
            self._screen.remark(f"not judged: {problem}")
            return None
        predicted = self._predict(state, change, reads_log=False)
        return ChangeWish().planned(JUDGED_AS[type(change)], change.text(), state.last_offset, predicted, state.config_number)

    def _check_workers(self) -> None:
        """Raises InputError when a worker cannot read a planned change."""
        from equipoise.operations.worker_builds import check_workers_read

        unknown = asyncio.run(check_workers_read(self._settings))
        if unknown:
            self._screen.remark(f"whether every worker reads planned changes is not known: {unknown}")

    async def _state(self) -> GroupState:
        from equipoise.operations.live_group import AnsweredFact

        async with AnsweredFact(self._settings, self._group) as live:
            await live.configuration()
            return (await live.machine()).state

    async def _write_down(self, planned: ChangePlanned, timeout_s: float) -> int:
        from equipoise.operations.live_group import AnsweredFact

        async with AnsweredFact(self._settings, self._group) as live:
            config = await live.configuration()
            await live.say(planned)
            is_answered = await live.is_answered_within(timeout_s)
            rejection = live.rejection() if is_answered else None
        outcome = "rejected" if rejection is not None else "planned" if is_answered else "no answer"
        document = settings_document(self._group, outcome, config, [], offset=live.offset, rejection=rejection, change_id=planned.change_id)
        said = {"planned": f"{planned.change_id} is judged from when you begin", "no answer": f"no worker answered within {timeout_s:g} s"}
        self._screen.answer(document, f"{self._group}: {said.get(outcome, f'rejected: {rejection}')}", planned_text(planned))
        return 0 if outcome == "planned" else EXIT_NOT_PLANNED

    def _predict(self, state: GroupState, change: PlannedChange, *, reads_log: bool = True) -> Prediction | None:
        """Returns what the change will cost, by the group's log, or, unless `reads_log`, by the
        last facts in it; None, with a remark, where that cannot be told.
        """
        from equipoise.cli.predicted import predicted

        if not self._runs:
            return None
        try:
            habits = self._habits(state, 0 if reads_log else max(0, state.last_offset - LATELY_FACTS))
            return predicted(self._screen, state, habits, change, "the change", runs=self._runs, connection=self._settings)
        except EquipoiseError as error:
            self._screen.remark(f"not predicted: {error}")
            return None

    def predicted_dry(self, state: GroupState, after: GroupConfigured) -> tuple[dict[str, Any] | None, list[Part]]:
        """Returns what a change of settings will cost, as a document and as parts."""
        from equipoise.cli.predicted import predict_dry
        from equipoise.replay.prediction.planned_change import Configure

        if not self._runs:
            return None, []
        change = Configure(config=after)
        return predict_dry(self._screen, state, self._habits(state, 0), change, "the change", runs=self._runs, connection=self._settings)

    def _habits(self, state: GroupState, from_offset: int) -> Habits | None:
        """Returns the group's habits by its log from this offset on; None: it cannot be read."""
        from equipoise.log.kafka.log import KafkaLog, Place
        from equipoise.replay.prediction.habits import HabitsReader
        from equipoise.replay.prediction.reading import tapped

        habits = HabitsReader(group=self._group, state=state)
        try:
            with KafkaLog(f"kafka://{self._settings.bootstrap}/{self._settings.prefix}", Place(self._settings, self._settings.topics, None)) as log:
                deque(tapped(log.read(from_offset, self._group), habits.take), maxlen=0)
        except EquipoiseError as error:
            self._screen.remark(f"predicted by what members measured last: {error}")
            return None
        return habits.habits()
