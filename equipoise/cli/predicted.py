"""The cost of a change of a running group, for `equipoise what-if --change` and dry runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from equipoise.cli.params import read
from equipoise.cli.screen import Line, Part, Screen, Table, bold
from equipoise.events.errors import EquipoiseError, FieldError, InputError
from equipoise.events.records import Entry
from equipoise.events.settings import GroupSettings
from equipoise.hosting.changed_settings import setting_value
from equipoise.log import Log
from equipoise.replay.wording import counted

if TYPE_CHECKING:
    from equipoise.events.facts import GroupConfigured
    from equipoise.kafka.connection import Connection
    from equipoise.operations.follower import KnownGroup
    from equipoise.replay.prediction.habits import Habits
    from equipoise.replay.prediction.planned_change import PlannedChange
    from equipoise.replay.prediction.predict import PredictedInterval, Prediction
    from equipoise.replay.prediction.present import PresentGroup
    from equipoise.statemachine.state import GroupState

BYTES = "bytes read"
FORMS = "join=N, leave=M1,M2, kill=M1,M2, restart, restart=SECONDS or NAME=VALUE of a setting"


def parse_change(text: str, config: GroupConfigured) -> PlannedChange:
    """Returns the change that `text` names. Raises InputError for any other text."""
    from equipoise.replay.prediction.planned_change import Configure, Join, Kill, Leave, RestartAll

    name, equals, value = text.partition("=")
    if name in ("join", "restart"):
        if name == "restart" and not equals:
            return RestartAll()
        if not value.isascii() or not value.isdigit() or (name == "join" and int(value) < 1):
            least = "from 1 on" if name == "join" else "of seconds"
            raise InputError(f"--change {text}: {name}= needs a whole number {least}; write {FORMS}")
        return Join(members=int(value)) if name == "join" else RestartAll(away_ms=int(value) * 1_000)
    if name in ("leave", "kill"):
        members = tuple(sorted({each for each in value.split(",") if each}))
        if not members:
            raise InputError(f"--change {text}: names no member; write {FORMS}")
        return Leave(members=members) if name == "leave" else Kill(members=members)
    if not equals or name not in attrs.fields_dict(GroupSettings):
        raise InputError(f"--change {text}: write {FORMS} (docs/tuning.md lists them)")
    try:
        knobs = attrs.evolve(config.knobs, **{name: setting_value(name, value, option="--change")})
    except FieldError as error:
        raise InputError(f"--change {text}: {error.name}: {error.problem}") from None
    return Configure(config=attrs.evolve(config, knobs=knobs))


def predict_changes(screen: Screen, log: Log, groups: Sequence[str], texts: Sequence[str], *, runs: int, restore_speed: int | None) -> int:
    """Answers with the costs of each change of the groups at the end of the log. Returns 1 when one
    of several groups cannot be answered, else 0. Raises InputError for a change that the only one
    cannot have.
    """
    documents: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    parts: list[Part] = []
    for group in groups:
        try:
            found = _predict_group(screen, log, group, texts, runs, restore_speed)
        except EquipoiseError as error:
            if len(groups) == 1:
                raise
            failed.append({"group": group, "error": str(error)})
            continue
        documents += [{"group": group, "name": text, "predicted": each.as_json()} for text, each in found]
        parts += [*([""] if parts else []), *prediction_parts(group, found)]
    parts += [not_answered(each) for each in failed]
    screen.answer({"runs": runs, "predictions": documents, "failed": failed}, *parts)
    return 1 if failed else 0


def not_answered(failed: Mapping[str, str]) -> str:
    """Returns a sentence on one of several groups."""
    return f"{failed['group']} could not be answered: {failed['error']}"


def _predict_group(screen: Screen, log: Log, group: str, texts: Sequence[str], runs: int, restore_speed: int | None) -> list[tuple[str, Prediction]]:
    """Returns the costs of each change of one group. Raises InputError for one that it cannot have."""
    from equipoise.log.kafka.log import KafkaLog
    from equipoise.replay.prediction.planned_change import check_change
    from equipoise.replay.prediction.predict import predict  # loads the solver
    from equipoise.replay.prediction.reading import read_present

    entries, known = read_to_end(screen, log, group)
    state = None if known is None else known.lead.machine.state
    present, habits = read_present(entries, group=group, restore_records_per_s=restore_speed, state=state)
    changes = [(text, parse_change(text, present.config)) for text in texts]
    record_bytes = _record_bytes(screen, log.connection if isinstance(log, KafkaLog) else None, present)
    for _, change in changes:
        check_change(change, {each.member_id for each in present.members})
    found: list[tuple[str, Prediction]] = []
    for text, change in changes:
        with screen.progress(f"{group}: {text}, {counted(runs, 'run')}") as advance:
            answer = predict(present, habits, change, runs=runs, processes=os.cpu_count() or 1, progress=lambda done, of: advance(1))
        found.append((text, answer.in_bytes(record_bytes)))
    return found


def read_to_end(screen: Screen, log: Log, group: str) -> tuple[Iterator[Entry], KnownGroup | None]:
    """Returns the group's records, and what a worker's checkpoint tells of its state at their end,
    so that nobody need fold the log; None: nothing.
    """
    known = known_live(log, group)
    if known is not None and known.lead.halted is not None:
        known = None
    return read(screen, log, f"reading {group}", group, alone=known is not None), known


def known_live(log: Log, group: str | None) -> KnownGroup | None:
    """Returns what is known of a group of a log in Kafka, up to the last fact that is decided on;
    None: the log is another one, or this user cannot read what that needs. `group`: None: the only
    one of the log.
    """
    from equipoise.log.kafka.envelope import partition_of
    from equipoise.log.kafka.log import KafkaLog
    from equipoise.operations.follower import known_at_end

    if not isinstance(log, KafkaLog):
        return None
    names = sorted(log.group_names()) if group is None else [group]
    if len(names) != 1 or partition_of(names[0], log.opened.partitions) not in log.partitions():
        return None
    return known_at_end(log.connection, log.topics, names[0])


def predict_dry(
    screen: Screen,
    state: GroupState,
    habits: Habits | None,
    change: PlannedChange,
    what: str,
    *,
    runs: int,
    connection: Connection | None = None,
) -> tuple[dict[str, Any] | None, list[Part]]:
    """Returns the prediction of a change that a dry run shows, as a document and as parts; with the
    reason instead where nothing can be said. `habits` None: only what members measured last.
    `connection`: to the brokers of its changelogs; None: none is known.
    """
    try:
        found = predicted(screen, state, habits, change, what, runs=runs, connection=connection)
    except EquipoiseError as error:
        return None, [f"not predicted: {error}"]
    return found.as_json(), prediction_parts(state.group, [(what, found)])


def predicted(
    screen: Screen, state: GroupState, habits: Habits | None, change: PlannedChange, what: str, *, runs: int, connection: Connection | None
) -> Prediction:
    """Returns the prediction of a change of a group in this state. Raises InputError where nothing
    can be said.
    """
    from equipoise.replay.prediction.habits import habits_of
    from equipoise.replay.prediction.predict import predict
    from equipoise.replay.prediction.present import present_of

    present = present_of(state)
    with screen.progress(f"{what}: {counted(runs, 'simulated run')}") as advance:
        return predict(
            present,
            habits_of(present.restore_records_per_s) if habits is None else habits.or_measured(present.restore_records_per_s),
            change,
            runs=runs,
            processes=os.cpu_count() or 1,
            progress=lambda done, of: advance(1),
        ).in_bytes(_record_bytes(screen, connection, present))


def _record_bytes(screen: Screen, connection: Connection | None, present: PresentGroup) -> float | None:
    """Returns the mean size of a record of the group's changelogs; None, with a remark where
    brokers were asked: nobody says.
    """
    from aiokafka.errors import KafkaError

    from equipoise.kafka.record_sizes import mean_record_bytes

    topics = {topic for part in present.topology.subtopologies for topic in part.changelog_topics}
    if connection is None or not topics:
        return None
    try:
        found = asyncio.run(mean_record_bytes(connection, topics))
    except (KafkaError, InputError, NotImplementedError, OSError) as error:
        screen.remark(f"bytes read are not told: {error}")
        return None
    if found is None:
        screen.remark("bytes read are not told: the changelogs are empty, or the user lacks Describe on Cluster")
    return found


def prediction_parts(group: str, found: Sequence[tuple[str, Prediction]]) -> list[Part]:
    """The table of predictions, and what each depends on most."""
    from equipoise.replay.prediction.predict import INPUTS, METRICS

    first = found[0][1]
    table = Table(
        columns=("change", *METRICS.values(), *([BYTES] if first.bytes_read is not None else [])),
        rows=[(text, *(interval_text(value) for value in (*each.intervals.values(), each.bytes_read) if value is not None)) for text, each in found],
        title=f"median of {counted(first.runs, 'run')}, and between which 95 % of them lie",
    )
    parts: list[Part] = [Line(bold(group), f"  restores: {first.restore_basis}"), table]
    for text, each in found:
        depends: dict[str, list[str]] = {}
        for name, cause in each.sensitive_to.items():
            depends.setdefault(INPUTS[cause], []).append(METRICS[name])
        parts += [f"{text}: {', '.join(metrics)} depend{'s' if len(metrics) == 1 else ''} most on {cause}" for cause, metrics in depends.items()]
        if each.as_now < 1:
            parts.append(f"{text}: the runs begin with {each.as_now:.0%} of the tasks where they are now")
    return parts


def interval_text(interval: PredictedInterval) -> str:
    """``8 (6 to 11)``; ``8`` where all runs agree."""
    middle, low, high = (_amount(each) for each in (interval.median, interval.low_95, interval.high_95))
    return middle if low == middle == high else f"{middle} ({low} to {high})"


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"
