"""The reasons that brokers give for rebalances, and clients for joining and leaving."""

from __future__ import annotations

import enum
import functools
import re


class Why(enum.Enum):
    """Says why a broker began a rebalance."""

    ADDED = "a member joined"
    LEFT = "a member left"
    EXPIRED = "the session of a member was over"
    POLL_TIMEOUT = "a member did not poll"
    STATIC = "a static member is back"
    UPDATED = "a member joined again"
    LEADER = "the leader joined again"
    NOT_SYNCED = "members joined, and did not ask for their assignment"
    METADATA = "topics or partitions changed"
    FOLLOW_UP = "revoked work is given out"
    PROBING = "Kafka Streams looks whether copies are ready"
    SUBSCRIBED = "the subscription changed"
    DELAY = "Kafka Connect's delay is over"
    CONNECTORS = "connectors or tasks changed"
    UNKNOWN = "the line does not say"


_MEMBER = r"(?P<member>[^\s;()]+)"
_REASONS: tuple[tuple[Why, re.Pattern[str]], ...] = tuple(
    (why, re.compile(expression, re.IGNORECASE))
    for why, expression in (
        (Why.ADDED, rf"adding new member {_MEMBER}(?: with group ?instance ?(?:id)? ?(?P<instance>[^\s;]+))?"),
        (Why.LEFT, rf"removing member {_MEMBER} on LeaveGroup"),
        (Why.LEFT, rf"explicit `?LeaveGroup`? request for \({_MEMBER}\)"),
        (Why.EXPIRED, rf"removing member {_MEMBER} on heartbeat expiration"),
        (Why.NOT_SYNCED, r"removing (?P<members>.*?) on pending sync request expiration"),
        (Why.STATIC, rf"updating metadata for static member {_MEMBER} with instance id (?P<instance>[^\s;]+)"),
        (Why.STATIC, rf"group's selectedProtocol will change because static member {_MEMBER} with instance id (?P<instance>[^\s;]+)"),
        (Why.LEADER, rf"leader {_MEMBER} re-joining group"),
        (Why.UPDATED, rf"updating metadata for member {_MEMBER}"),
        (Why.UPDATED, rf"member {_MEMBER} (?:is )?joining group"),
        (Why.UNKNOWN, r"."),
    )
)
_CLIENTS: tuple[tuple[Why, tuple[str, ...]], ...] = (
    (Why.POLL_TIMEOUT, ("poll timeout has expired", "max.poll.interval", "poll interval exceeded", "poll timeout expired")),
    (Why.FOLLOW_UP, ("need to revoke partitions", "revoked partitions", "unassignment done", "ready to migrate", "assigned partitions")),
    (Why.METADATA, ("cached metadata has changed", "metadata for subscribed topic", "partitions changed", "metadata change")),
    (Why.SUBSCRIBED, ("subscription has changed", "subscription modified", "applying next subscription")),
    (Why.PROBING, ("followup rebalance scheduled", "probing rebalance")),
)


@functools.lru_cache(maxsize=4_096)
def classify(text: str) -> tuple[Why, str, str, str]:
    """Returns, of a broker's reason: why, the member, its instance id, and the client's own reason."""
    told, _, client = text.partition("; client reason: ")
    for why, expression in _REASONS:
        match = expression.search(told)
        if match is not None:
            read = match.groupdict(default="")
            own = of_client(client)
            joined_again = why in (Why.LEADER, Why.UPDATED)
            instance = re.sub(r"^(?:Some\(|Optional\[)|[)\]]$", "", read.get("instance", "") or "")
            chosen = own if own is not None and (joined_again or (why is Why.LEFT and own is Why.POLL_TIMEOUT)) else why
            return chosen, read.get("member", ""), "" if instance in ("None", "null") else instance, client.strip(" .")
    return Why.UNKNOWN, "", "", client.strip(" .")


def of_client(text: str) -> Why | None:
    """Returns what a client gives as its reason; None: nothing that is known."""
    low = text.lower()
    return next((why for why, words in _CLIENTS if any(word in low for word in words)), None)
