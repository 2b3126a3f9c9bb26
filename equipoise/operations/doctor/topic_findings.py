"""Findings about topics: those of the log, and those of the application."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from equipoise.kafka.asking import TopicFound
from equipoise.log.kafka.log_topics import MADE_WITH, MUST_BE, Topics
from equipoise.operations.doctor.access import Application
from equipoise.operations.doctor.finding import Finding, fine, problem, unknown, warning
from equipoise.replay.trouble import misfits, unread
from equipoise.replay.wording import counted, span_text
from equipoise.statemachine.state import GroupPhase, GroupState

LEAST_MESSAGE_BYTES = 1_048_588
"""An event has at most 1,000,000 bytes (docs/protocol.md#l8), beside its key and headers. This is
Kafka's default.
"""
DELETIONS_KEPT_MS = 86_400_000
"""Kafka's default of delete.retention.ms."""
Settings = Mapping[str, Mapping[str, str]]
Found = Mapping[str, TopicFound]


def is_allowed(topic: TopicFound, operation: str, *, has_settings: bool) -> bool | None:
    """Returns whether the user has the right to a topic; None: that cannot be seen. `has_settings`:
    the user has read its settings. A broker says nothing of a topic that the user may not describe.
    """
    if topic.is_hidden:
        return {"DescribeConfigs": has_settings, "Create": None}.get(operation, False)
    return None if topic.allowed is None else operation in topic.allowed


def of_log(topics: Topics, found: Found, settings: Settings, brokers: int, bootstrap: str) -> Iterable[Finding]:
    """The four topics of the log."""
    names = {what: topics.name_of(what) for what in MUST_BE}
    missing = [name for name in names.values() if not found[name].is_hidden and not found[name].partitions]
    if missing:
        yield problem("topics", f"{', '.join(missing)}: not there", "start a worker, which makes them")
    partitions = len(found[names["facts"]].partitions)
    seen = [(what, name) for what, name in names.items() if found[name].partitions]
    findings: list[Finding] = []
    for what, name in seen:
        has = len(found[name].partitions)
        if what in ("decisions", "checkpoints") and has < partitions:
            give = f"kafka-topics.sh --bootstrap-server {bootstrap} --alter --topic {name} --partitions {partitions}"
            findings.append(problem("topics", f"{name} has {counted(has, 'partition')}, and {names['facts']} {partitions}", give))
        findings += _replicas("topics", name, found[name], settings.get(name), brokers, bootstrap)
        if name in settings:
            findings += _settings(name, {**MUST_BE[what]}, settings[name], bootstrap)
            findings += _retention(what, name, settings[name], bootstrap)
    yield from findings
    hidden = [name for _, name in seen if name not in settings]
    if hidden:
        yield unknown("topics", f"settings of {', '.join(hidden)}: this user may not read them", "run the doctor as the worker's user")
    if seen and not findings and not missing and len(hidden) < len(seen):
        yield fine("topics", f"{', '.join(name for _, name in seen)}: {counted(partitions, 'partition')}, settings as they must be")


def _settings(name: str, must: Mapping[str, str], has: Mapping[str, str], bootstrap: str) -> Iterable[Finding]:
    for key, value in must.items():
        if has.get(key) != value:
            yield problem("topics", f"{name} has {key}={has.get(key)}, and a worker refuses it", _set(bootstrap, name, key, value))
    if int(has.get("max.message.bytes", LEAST_MESSAGE_BYTES)) < LEAST_MESSAGE_BYTES:
        why = f"{name} has max.message.bytes={has['max.message.bytes']}: large events do not fit"
        yield problem("topics", why, _set(bootstrap, name, "max.message.bytes", str(LEAST_MESSAGE_BYTES)))


def _retention(what: str, name: str, has: Mapping[str, str], bootstrap: str) -> Iterable[Finding]:
    for key, value in MADE_WITH[what].items():
        if value == "-1" and has.get(key) != value:
            why = f"{name} has {key}={has.get(key)}: readers stop where records were deleted, unless an archive has them"
            yield warning("topics", why, f"{_set(bootstrap, name, key, value)}; or run equipoise archive --follow")


def _replicas(check: str, name: str, topic: TopicFound, has: Mapping[str, str] | None, brokers: int, bootstrap: str) -> Iterable[Finding]:
    replicas = min(len(each) for each, _ in topic.partitions)
    behind = [number for number, (each, insync) in enumerate(topic.partitions) if len(insync) < len(each)]
    if behind:
        some = ", ".join(map(str, behind[:10]))
        yield warning(check, f"{name}: replicas of partitions {some} are not in sync", "start the broker that is away, or wait for it")
    if replicas < min(3, brokers):
        why = f"{name} has {counted(replicas, 'replica')} on {counted(brokers, 'broker')}"
        yield warning(check, why, "give it three: kafka-reassign-partitions.sh")
    least = int(has.get("min.insync.replicas", 1)) if has is not None else None
    if least is not None and replicas >= 3 and least < 2:
        why = f"{name} has min.insync.replicas={least}: an acknowledged record may be lost with one broker"
        yield warning(check, why, _set(bootstrap, name, "min.insync.replicas", "2"))
    if least is not None and replicas > 1 and least >= replicas:
        why = f"{name} has min.insync.replicas={least} of {replicas} replicas: nothing can be written while one broker is away"
        yield warning(check, why, _set(bootstrap, name, "min.insync.replicas", str(replicas - 1)))


def of_application(application: Application, found: Found, settings: Settings, brokers: int, bootstrap: str) -> Iterable[Finding]:
    """Sources, changelogs and outputs of a group."""
    wrong: list[Finding] = []
    every = list(dict.fromkeys((*application.sources, *application.changelogs, *application.outputs)))
    for name in every:
        check = "changelogs" if name in application.changelogs else "topics"
        if found[name].is_hidden:
            continue  # a finding about rights names it
        if not found[name].partitions:
            wrong.append(problem(check, f"{name}, of group {application.group}, is not there", "make it, or give the member create_topics=True"))
            continue
        wrong += _replicas(check, name, found[name], settings.get(name), brokers, bootstrap)
    for name in application.changelogs:
        policy = settings.get(name, {}).get("cleanup.policy")
        if policy is not None and policy != "compact":
            why = f"{name} has cleanup.policy={policy}: state in it would be lost after its retention, and members refuse it"
            wrong.append(problem("changelogs", why, _set(bootstrap, name, "cleanup.policy", "compact")))
    yield from wrong
    unseen = [name for name in application.changelogs if name not in settings]
    hidden = [name for name in unseen if found[name].partitions]
    if hidden:
        yield unknown("changelogs", f"settings of {', '.join(hidden)}: this user may not read them", "run the doctor as the members' user")
    elif application.changelogs and not unseen and not any(each.check == "changelogs" for each in wrong):
        kept = min((int(settings[name].get("delete.retention.ms", DELETIONS_KEPT_MS)) for name in application.changelogs), default=DELETIONS_KEPT_MS)
        away = f"a copy that was away for about {span_text(kept)} is restored from scratch"
        yield fine("changelogs", f"group {application.group}: {', '.join(application.changelogs)}: compacted; {away}")


def of_topology(state: GroupState, found: Found) -> Iterable[Finding]:
    """Yields what members, source topics and the topology of a group have that does not fit each
    other.
    """
    if state.phase in (GroupPhase.UNCONFIGURED, GroupPhase.SHADOWING):
        return
    seen = {name: range(len(topic.partitions)) for name, topic in found.items()}
    fix = "give every topic of these tasks as many partitions, and deploy with a higher topology_epoch (docs/restarts.md#add-partitions)"
    for each in unread(state, seen):
        yield problem("topics", f"group {state.group}: {each.text}", fix)
    for each in misfits(state):
        yield problem("topics", f"group {state.group}: {each.text}", "deploy the same build everywhere, with a higher topology_epoch than before")


def _set(bootstrap: str, name: str, key: str, value: str) -> str:
    return f"kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics --entity-name {name} --add-config {key}={value}"
