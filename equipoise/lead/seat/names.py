"""Names of members over their restarts.

A broker gives each process that joins another member id. The log knows members by names that last:
the group.instance.id, or else the client.id, numbered where several processes share one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping

import attrs

from equipoise.events.facts import GroupRejoined
from equipoise.events.fields import MOST_NAME_BYTES, is_hidden
from equipoise.kafka.group_client import CLIENT_ID

_GIVEN_ID = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
"""What brokers append to the client.id to make a member id."""
_NUMBER_BYTES = 10
MOST_KEY_CHARS = 300
"""Of the key of a client. Brokers take longer ids, which are shortened: a generation of a thousand
members has to fit into one event.
"""
_KEPT_CHARS = 200


@attrs.frozen
class SeatClient:
    """A process in the group. `key`: its group.instance.id, or else its member id; equal as long as
    it is the same member for the broker. `base`: its group.instance.id or client.id.
    """

    key: str
    base: str


def client_of(member_id: str, instance_id: str | None) -> SeatClient:
    """The client behind a member id that the broker gave."""
    return SeatClient(_key(instance_id or member_id), readable(instance_id or _GIVEN_ID.sub("", member_id)) or "client")


def is_seat_id(member_id: str) -> bool:
    """Returns whether a broker has given the id to a seat."""
    return _GIVEN_ID.sub("", member_id) == CLIENT_ID


def clients_of(members: Iterable[tuple[str, str | None]]) -> dict[str, SeatClient]:
    """Member id -> its client, of all members of a generation. `members`: member id and
    group.instance.id. No two have the same key, also where a client has taken the member id of
    another one for its group.instance.id.
    """
    found: dict[str, SeatClient] = {}
    used: set[str] = set()
    for member_id, instance_id in sorted(members, key=lambda each: (each[1] is not None, each[0])):
        client = client_of(member_id, instance_id)
        if client.key in used:
            client = attrs.evolve(client, key=_key(f"{client.key} {member_id}"))
        used.add(client.key)
        found[member_id] = client
    return found


def _key(text: str) -> str:
    """`text` itself, or what stands for one that is too long: its begin, a checksum of all of it,
    and what the broker has appended.
    """
    if len(text) <= MOST_KEY_CHARS:
        return text
    given = _GIVEN_ID.search(text)
    checksum = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]
    return f"{text[:_KEPT_CHARS]}~{checksum}{given.group() if given else ''}"


def readable(text: str) -> str:
    """`text` as a name can be: without characters that are not shown, and not too long."""
    shown = "".join("?" if is_hidden(char) else char for char in text)
    return shown.encode()[: MOST_NAME_BYTES - _NUMBER_BYTES].decode(errors="ignore")


class Names:
    """Name and incarnation of each client, as told in the last generation."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[str, int]] = {}
        self._newest: dict[str, int] = {}

    def learn(self, fact: GroupRejoined) -> None:
        """Takes over the names of a generation in the log."""
        self._of = {each.client: (each.member_id, each.incarnation) for each in fact.members}
        for each in fact.members:
            self._newest[each.member_id] = max(each.incarnation, self._newest.get(each.member_id, 0))

    def give(self, clients: Iterable[SeatClient], now_ms: int, waited_for: Collection[str]) -> dict[str, tuple[str, int]]:
        """Key of each client -> name and incarnation. A new client gets the name of a member that
        is gone and had the same id, of those that are waited for first.
        """
        found: dict[str, tuple[str, int]] = {}
        ordered = sorted(clients, key=lambda client: client.key)
        for client in ordered:
            if client.key in self._of:
                found[client.key] = self._of[client.key]
        used = {name for name, _ in found.values()}
        for client in ordered:
            if client.key in found:
                continue
            name = self._free(client.base, used, waited_for)
            used.add(name)
            incarnation = max(now_ms, self._newest.get(name, 0) + 1)
            self._newest[name] = incarnation
            found[client.key] = name, incarnation
        self._of = found
        return found

    def _free(self, base: str, used: Collection[str], waited_for: Collection[str]) -> str:
        names = [base, *(f"{base}/{number}" for number in range(2, len(used) + len(waited_for) + 3))]
        free = [name for name in names if name not in used]
        return next((name for name in free if name in waited_for), free[0])

    def present(self) -> Mapping[str, tuple[str, int]]:
        """Key -> name and incarnation, of the last generation."""
        return self._of


def is_static(key: str) -> bool:
    """Returns whether a client's key is a group.instance.id: the broker itself waits for such a
    member.
    """
    return _GIVEN_ID.search(key) is None
