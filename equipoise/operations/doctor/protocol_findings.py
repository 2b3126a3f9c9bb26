"""Findings about groups that brokers assign (KIP-848, KIP-1071): whether they do, and with which
assignors. A broker makes its assignors when it starts, and ends if one is not there, so one that is
named in the settings of a running broker is loaded. Its version no broker tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from equipoise.lead.broker_seat.ways import CLASS, SETTING, STREAMS_CLASS, STREAMS_SETTING
from equipoise.lead.migrating.verdict import POLICY, PROTOCOLS
from equipoise.operations.doctor.finding import Finding, fine, unknown, warning

DEFAULT_POLICY = "bidirectional"
_RIGHT = "give the user DescribeConfigs on Cluster, or compare them as an administrator"


@attrs.frozen(kw_only=True)
class GroupProtocols:
    """A broker. `consumer`, `streams`: whether it assigns groups of KIP-848 and KIP-1071.
    `settings`: None: the user may not read them.
    """

    node_id: int
    consumer: bool
    streams: bool
    settings: Mapping[str, str] | None

    def assignors(self) -> list[str]:
        """Names of its assignors of KIP-848, in its order."""
        return [each.strip() for each in ((self.settings or {}).get(SETTING) or "").split(",")]


def of_protocols(brokers: Sequence[GroupProtocols]) -> Iterable[Finding]:
    """Yields nothing where there are no brokers."""
    if not brokers:
        return
    with_it = [each for each in brokers if each.consumer]
    if not with_it:
        yield fine("groups", "brokers assign no groups (KIP-848, from Kafka 4.0 on): `equipoise lead` leads classic ones from their leader's seat")
        return
    if len(with_it) < len(brokers):
        text = f"groups of KIP-848 are assigned by {_named(with_it)}, and not by {_named(each for each in brokers if not each.consumer)}"
        yield warning("groups", f"{text}: a group ends there with its coordinator", f"give all of them one version, and `consumer` in {PROTOCOLS}")
    unread = [each for each in with_it if each.settings is None]
    if unread:
        yield unknown("groups", f"{SETTING} and {POLICY} of {_named(unread)}: this user may not read them", _RIGHT)
    else:
        yield _of_assignors(with_it)
        yield _of_policy(with_it)
    with_streams = [each for each in brokers if each.streams]
    if with_streams:
        yield _of_streams(with_streams)


def _of_assignors(brokers: Sequence[GroupProtocols]) -> Finding:
    with_jar, without = [each for each in brokers if CLASS in each.assignors()], [each for each in brokers if CLASS not in each.assignors()]
    if not with_jar:
        text = f"groups of KIP-848 are assigned by {', '.join(brokers[0].assignors())}"
        return fine("groups", f"{text}; for `equipoise lead` the brokers need equipoise's assignor (docs/seat.md)")
    if without:
        text = f"{CLASS} is named in {SETTING} of {_named(with_jar)}, and not of {_named(without)}: no group is led from inside them until all do"
        return warning("groups", text, "put the jar into libs/ of these, name it, and restart them")
    first = [each for each in with_jar if each.assignors()[0] == CLASS]
    if first:
        text = f"{CLASS} is the first one in {SETTING} of {_named(first)}: it assigns groups that nobody leads, too"
        return warning("groups", text, "name it behind uniform and range")
    return fine("groups", f"equipoise's assignor is loaded in {_named(with_jar)}; the first one is {with_jar[0].assignors()[0]}")


def _of_streams(brokers: Sequence[GroupProtocols]) -> Finding:
    text = f"groups of Kafka Streams (KIP-1071) are assigned by {_named(brokers)}"
    named = {each.node_id: STREAMS_CLASS in ((each.settings or {}).get(STREAMS_SETTING) or "") for each in brokers}
    if not any(named.values()):
        return fine("groups", text)
    if all(named.values()):
        return fine("groups", f"{text}; equipoise's assignor is loaded in all of them")
    without = _named(each for each in brokers if not named[each.node_id])
    with_it = _named(each for each in brokers if named[each.node_id])
    text = f"{text}; {STREAMS_CLASS} is named in {STREAMS_SETTING} of {with_it}, and not of {without}"
    return warning("groups", text, "name it on every broker, and restart them")


def _of_policy(brokers: Sequence[GroupProtocols]) -> Finding:
    policies = {each.node_id: (each.settings or {}).get(POLICY, DEFAULT_POLICY).lower() for each in brokers}
    if len(set(policies.values())) > 1:
        said = ", ".join(f"{policy} on broker {node}" for node, policy in sorted(policies.items()))
        return warning("groups", f"{POLICY} is {said}: whether a classic group is taken over depends on its coordinator", f"set {POLICY} alike")
    policy = next(iter(policies.values()))
    takes = {"bidirectional": "take classic groups over and give them back", "upgrade": "take classic groups over, and give none back"}
    return fine("groups", f"{POLICY}={policy}: brokers {takes.get(policy, 'take no classic group over')} (docs/migrate.md)")


def _named(brokers: Iterable[GroupProtocols]) -> str:
    nodes = [str(each.node_id) for each in brokers]
    return f"broker{'s' if len(nodes) > 1 else ''} {', '.join(nodes)}"
