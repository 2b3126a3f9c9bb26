"""Findings about brokers: their number, versions, rights of the user, times, the clock."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata

from equipoise.kafka.asking import BrokerAddress
from equipoise.operations.doctor.access import Need
from equipoise.operations.doctor.finding import Finding, fine, problem, unknown, warning
from equipoise.replay.wording import counted

FETCH, METADATA, LEAVE_GROUP = 1, 3, 13
"""Keys of requests."""
MOST_ROUND_TRIP_S = 0.1
MOST_TRANSACTION_S = 1.0
MOST_CLOCK_DIFFERENCE_MS = 1_000
_LIBRARIES = ("equipoise", "aiokafka", "faust-streaming")


def refused(bootstrap: str, why: str) -> Finding:
    """No connection was made."""
    return problem("brokers", f"{bootstrap}: {why}", _connection_fix(why))


def _connection_fix(why: str) -> str:
    fixes = {
        "SaslAuthenticationFailed": "correct sasl_username and EQUIPOISE_SASL_PASSWORD, or make the user with kafka-configs.sh",
        "UnsupportedSaslMechanism": "set sasl_mechanism to one that the brokers have (sasl.enabled.mechanisms)",
        "Hostname mismatch": "reach the broker by a name of its certificate, or give the certificate this name (subjectAltName)",
        "certificate": "set ssl_ca_file to the certificate that signed the brokers'",
        "closed": "set security_protocol as the listener has it: SASL_SSL, SSL or SASL_PLAINTEXT",
        "ConnectionReset": "set security_protocol as the listener has it: it may be without TLS",
        "SSL": "set security_protocol as the listener has it: it may be without TLS",
        "gaierror": "correct the name in bootstrap, or the resolver of this machine",
    }
    return next((fix for word, fix in fixes.items() if word in why), "start the broker, correct bootstrap, or open the way to it (firewall)")


def of_brokers(brokers: Sequence[BrokerAddress], refusals: Mapping[int, str]) -> Iterable[Finding]:
    """`refusals`: broker -> why it cannot be reached as it advertises itself."""
    for broker in brokers:
        if broker.node_id in refusals:
            why = f"broker {broker.node_id} advertises {broker} and is not reached there: {refusals[broker.node_id]}"
            yield problem("brokers", why, "start it, or correct its advertised.listeners, so that every worker and member reaches it")
    there = [broker for broker in brokers if broker.node_id not in refusals]
    if len(brokers) < 3:
        text = f"{counted(len(brokers), 'broker')} ({', '.join(map(str, brokers))}): when one is away, nobody stands in for it"
        yield warning("brokers", text, "run three or more, with three replicas")
    elif there:
        yield fine("brokers", f"{len(there)} of {counted(len(brokers), 'broker')} answer: {', '.join(map(str, there))}")


def of_versions(requests: Mapping[int, tuple[int, int]]) -> Iterable[Finding]:
    """`requests`: key of a request -> its lowest and highest version, of the oldest broker."""
    libraries = ", ".join(f"{name} {metadata.version(name)}" for name in _LIBRARIES)
    ours = f"Python {platform.python_version()}, {libraries}"
    upgrade = "upgrade the brokers; equipoise is tested with 4.3"
    if requests.get(LEAVE_GROUP, (0, 0))[1] < 3:
        yield problem("versions", f"brokers before Kafka 2.4; {ours}", upgrade)
    elif requests.get(METADATA, (0, 0))[1] < 10:
        yield warning("versions", f"brokers before Kafka 2.8 give topics no ids: nobody notices a log that was made again; {ours}", upgrade)
    else:
        release = "4.0 or later" if requests.get(FETCH, (0, 0))[0] >= 4 else "2.8 to 3.9"
        yield fine("versions", f"brokers of Kafka {release}; {ours}")


def of_rights(bootstrap: str, user: str | None, needed: Sequence[tuple[Need, bool | None]]) -> Iterable[Finding]:
    """`needed`: with whether the user has it; None: that cannot be seen."""
    missing = [need for need, is_there in needed if is_there is False]
    unseen = [str(need.acl) for need, is_there in needed if is_there is None]
    for need in missing:
        without = f"{need.acl} is missing; without it: {need.without}"
        fix = need.acl.command(bootstrap, user)
        yield warning("rights", without, fix) if need.is_optional else problem("rights", without, fix)
    if unseen:
        yield unknown("rights", f"{', '.join(unseen)}: cannot be seen")
    if not missing:
        yield fine("rights", f"{user or 'this user'} has what it needs: {len(needed) - len(unseen)} ACLs, or it is a super user")


def of_times(round_trips_s: Sequence[float], transaction: float | str | None) -> Iterable[Finding]:
    """`transaction`: seconds; or why there was none; None: none was tried."""
    median_s = statistics.median(round_trips_s)
    text = f"a round trip to a leader takes {median_s * 1_000:.1f} ms (median of {len(round_trips_s)})"
    near = "run workers and members near the brokers, or look what keeps the brokers busy"
    yield fine("times", text) if median_s <= MOST_ROUND_TRIP_S else warning("times", f"{text}: each hand-over takes several", near)
    if isinstance(transaction, str):
        yield problem("times", f"a transaction fails: {transaction}", "see the rights above, and the state of __transaction_state")
    elif transaction is not None:
        text = f"a transaction takes {transaction * 1_000:.0f} ms"
        slow = transaction > MOST_TRANSACTION_S
        yield warning("times", f"{text}: each commit of exactly_once does", near) if slow else fine("times", text)


def of_clock(differences_ms: Sequence[float]) -> Finding:
    """`differences_ms`: of facts that came while the doctor waited: the broker's time of the append
    less ours of the arrival.
    """
    if not differences_ms:
        return unknown("clock", "no fact came meanwhile, by which clocks could be compared", "run it again while a member of the log runs")
    difference_ms = max(differences_ms)  # the one that was under way for the shortest time
    text = f"the brokers' clock is {abs(difference_ms):.0f} ms {'ahead of' if difference_ms > 0 else 'behind'} this machine's"
    if abs(difference_ms) <= MOST_CLOCK_DIFFERENCE_MS:
        return fine("clock", text)
    return warning("clock", f"{text}: times in logs cannot be compared, and a member that moves may have to join twice", "run NTP: chronyc tracking")
