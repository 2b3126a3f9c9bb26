"""Tells what would have avoided an incident, in the words of the client that the group uses."""

from __future__ import annotations

import re

from equipoise.replay.importers.groups.observed import GroupKind, kind_is_classic
from equipoise.replay.incident.causes import Cause
from equipoise.replay.incident.coordinator_history import GroupHistory
from equipoise.replay.incident.named_causes import THREAD_DIED
from equipoise.replay.incident.values import Incident

_MANY = 20
"""As many rebalances that a member asked for, one after the other, are a loop."""
_STOPS = (Cause.EXPIRED, Cause.LEFT, Cause.GONE, Cause.RESTARTED, Cause.STATIC_BACK, Cause.POLL_TIMEOUT)
_IDS = (
    ("streams", re.compile(r"-StreamThread-[0-9]+")),
    ("connect", re.compile(r"connect(?:or-consumer)?-")),
    ("librdkafka", re.compile(r"rdkafka\b|confluent-kafka")),
    ("aiokafka", re.compile("aiokafka-")),
    ("kafka-python", re.compile("kafka-python-")),
    ("faust", re.compile("faust-")),
    ("franz-go", re.compile("kgo$")),
    ("sarama", re.compile("sarama$")),
    ("java", re.compile(r"consumer-.*-[0-9]+$|consumer-[0-9]+$")),
)
_SETTINGS: dict[str, dict[str, str]] = {
    "java": {"poll": "max.poll.interval.ms", "records": "max.poll.records", "session": "session.timeout.ms", "instance": "group.instance.id"},
    "librdkafka": {"poll": "max.poll.interval.ms", "records": "", "session": "session.timeout.ms", "instance": "group.instance.id"},
    "aiokafka": {"poll": "max_poll_interval_ms", "records": "max_poll_records", "session": "session_timeout_ms", "instance": "group_instance_id"},
    "kafka-python": {"poll": "max_poll_interval_ms", "records": "max_poll_records", "session": "session_timeout_ms", "instance": "group_instance_id"},
    "faust": {
        "poll": "broker_max_poll_interval",
        "records": "broker_max_poll_records",
        "session": "broker_session_timeout",
        "instance": "consumer_group_instance_id",
    },
    "franz-go": {
        "poll": "kgo.RebalanceTimeout",
        "records": "the batches of PollRecords",
        "session": "kgo.SessionTimeout",
        "instance": "kgo.InstanceID",
    },
    "sarama": {
        "poll": "Consumer.Group.Rebalance.Timeout",
        "records": "",
        "session": "Consumer.Group.Session.Timeout",
        "instance": "Consumer.Group.InstanceId",
    },
    "connect": {"poll": "rebalance.timeout.ms", "records": "consumer.override.max.poll.records", "session": "session.timeout.ms", "instance": ""},
    "streams": {
        "poll": "main.consumer.max.poll.interval.ms",
        "records": "main.consumer.max.poll.records",
        "session": "main.consumer.session.timeout.ms",
        "instance": "group.instance.id",
    },
}
"""Client -> its names of what is advised; "": it has none."""


def language_of(history: GroupHistory) -> str:
    """The client that a group uses, by its logs or by the client ids that clients choose."""
    if history.language:
        return history.language
    if history.states and history.states[-1].group.kind is GroupKind.CONNECT:
        return "connect"
    ids = {member.client_id for state in history.states[-3:] for member in state.group.members.values()}
    return next((language for language, form in _IDS if any(form.search(each) for each in ids)), "")


def advice_of(history: GroupHistory, kind: GroupKind, incident: Incident, *, is_rolling: bool) -> list[str]:
    """Returns what would have avoided it, the best first."""
    found = []
    cause, chain = incident.cause, incident.chain
    language = language_of(history)
    names = _SETTINGS.get(language, _SETTINGS["java"])
    is_sink = any(history.group == f"connect-{name}" for name in history.sinks) or (history.group.startswith("connect-") and language == "connect")
    if any(each.detail.startswith(THREAD_DIED) for each in chain):
        found.append(
            "handle the exception, or set processing.exception.handler (deserialization.exception.handler) to go on after such a record:"
            " a thread in its place meets the same record again"
        )
    if cause is Cause.POLL_TIMEOUT:
        found.append(_of_poll(language, names))
    if cause is Cause.LATE:
        found.append(
            f"a rebalance lasts until the slowest member polls: {_of_poll(language, names)};"
            " an incremental assignor (cooperative-sticky) lets the others read meanwhile"
        )
    if cause is Cause.TWICE:
        found.append(f"give each process a {names['instance'] or 'group.instance.id'} of its own: two processes with the same one put each other out")
    if cause is Cause.TOO_SLOW:
        found.append(
            "a member must give up partitions within its rebalance timeout (max.poll.interval.ms): shorten what onPartitionsRevoked and one batch do"
        )
    if cause is Cause.COORDINATOR:
        found.append("look at the broker that coordinates the group: it was restarted, lost its session, or could not be reached")
    takes_instances = kind not in (GroupKind.STREAMS, GroupKind.CONNECT) and not is_sink  # all tasks of a sink would have the same
    back = is_rolling or (any(set(incident.members) & set(each.joined) for each in chain) and cause in _STOPS)
    if incident.loop is not None and cause in (Cause.EXPIRED, Cause.RESTARTED, Cause.LEFT, Cause.GONE):
        found.append(f"find out why {_who(incident)} again and again: exit codes, memory limits and liveness probes")
    elif back and takes_instances and cause is not Cause.POLL_TIMEOUT:
        instance = names["instance"] or "group.instance.id"
        found.append(f"set {instance}, and {names['session']} above the time of a restart: a member that is back in time begins no rebalance")
        if kind is GroupKind.CLASSIC_CONSUMER:
            found.append("lead the group with `equipoise lead --hold`: partitions wait for a member that will be back")
    elif cause is Cause.EXPIRED:
        session = names["session"] if kind_is_classic(kind) else "the brokers' session timeout"
        found.append(f"lower {session}: work stands still until the session is over")
    if kind is GroupKind.CLASSIC_STREAMS and any(each.moved or each.unowned for each in chain):
        found.append("let equipoise decide the rounds (docs/streams.md): copies are made first, and tasks move when they are ready")
    if kind is GroupKind.STREAMS and (back or incident.restores):
        found.append("keep copies, so that a task need not be restored: set the group's streams.num.standby.replicas (kafka-configs)")
    was_delayed = any(each.unowned or each.cause is Cause.DELAY_OVER or "scheduled.rebalance" in each.detail for each in chain)
    if kind is GroupKind.CONNECT and cause in _STOPS and was_delayed:
        found.append(
            "set scheduled.rebalance.max.delay.ms a little above the time of a restart: what a worker had waits so long, whether it is back or not"
        )
    if any(each.is_stuck for each in incident.restores):
        tasks = ", ".join(f"{each.task} at {each.member}" for each in incident.restores if each.is_stuck)
        found.append(f"look at these processes: the restore of their task does not end, or the task hangs: {tasks}")
    if sum(each.cause is Cause.PROBING and not (each.moved or each.unowned) for each in chain) > 1:
        found.append("raise acceptable.recovery.lag, or probing.rebalance.interval.ms: copies do not get ready between two probes")
    if sum(each.cause is Cause.ASKED for each in chain) >= _MANY:
        found.append("members ask again and again: look for two assignors or subscriptions that never agree, and for clients that need an upgrade")
    if cause is Cause.OUTSIDE:
        found.append("look for a process that was removed from the group and works on, or one that has partitions by hand under this group id")
    if cause is Cause.EXPIRED and incident.is_static:
        found.append("static members (group.instance.id) do not leave: set session.timeout.ms as long as a restart takes, and remove one for good")
    if cause is Cause.UNCOMMITTED:
        found.append("commit (or set enable.auto.commit): without a commit a restart reads again, or skips, and no tool knows the lag")
    if cause is Cause.NOTHING:
        who = f"at {', '.join(incident.whose)}" if incident.whose else "at the process that has these partitions"
        found.append(f"look {who}: it is a member and polls, but commits nothing")
    return found


def _of_poll(language: str, names: dict[str, str]) -> str:
    """Returns what helps against a poll interval that is too short for the work of one batch."""
    if language in ("java", "connect", "streams", "aiokafka", "kafka-python", "faust"):
        return f"lower {names['records']}, or raise {names['poll']} above the longest time that a batch takes"
    if language == "librdkafka":
        return (
            "raise max.poll.interval.ms above the longest time between two calls of poll() or consume(),"
            " or hand records to other threads and go on polling"
        )
    if not language:
        return (
            "raise max.poll.interval.ms above the longest time that a batch takes, or make batches smaller"
            " (max.poll.records, where the client has it)"
        )
    return f"raise {names['poll']} above the longest time that a batch takes, or end it earlier when a session is over"


def _who(incident: Incident) -> str:
    names = incident.members[:3]
    return f"{', '.join(names) or 'a member'} {'stop' if len(names) > 1 else 'stops'}"
