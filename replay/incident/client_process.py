"""One client of a group, as its log tells of it, and what clients tell beside their rebalances."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from equipoise.replay.importers.evidence.files import client_of
from equipoise.replay.importers.groups.observed import ClusterMember
from equipoise.replay.incident.causes import Cause, Rebalance
from equipoise.replay.incident.coordinator_outages import Outage
from equipoise.replay.incident.named_causes import MOST_PLACES, NamedCause, observed, strongest
from equipoise.replay.incident.rebalances import name_of

PUT_OUT = (Cause.POLL_TIMEOUT, Cause.EXPIRED, Cause.TWICE)


@attrs.frozen(kw_only=True)
class Departure:
    """Says what a client said when it left, or was put out: `cause`, of which process, where."""

    at_ms: int
    cause: Cause
    client: str
    member: str
    place: str
    detail: str = ""
    number: int = -1
    """The generation that it had been in."""
    heard_ms: int = -1
    """When it was a member for the last time, as far as it says; -1: it does not."""


@attrs.frozen
class GivenUp:
    """A client gave up a partition, in this generation."""

    at_ms: int
    number: int


@attrs.frozen
class DealtWork:
    """A leader's assignment: member id -> its partitions."""

    at_ms: int
    number: int
    work: Mapping[str, tuple[str, ...]]
    place: str


@attrs.frozen
class Reconciled:
    """A client of KIP-848 gave up and took over work."""

    begin_ms: int
    took_ms: int
    who: str
    place: str


@attrs.frozen
class EmptyState:
    """A process of Kafka Streams found its state directory empty. `file`: its log."""

    at_ms: int
    file: str
    place: str


@attrs.frozen
class Delay:
    """Workers of Kafka Connect wait so long with work that was lost."""

    ms: int
    place: str


@attrs.frozen
class Noted:
    """A note that is told as it was said. `what`: whose it is, or the name of a setting."""

    what: str
    value: str
    place: str


@attrs.define(kw_only=True)
class ClientProcess:
    """Says what one client's lines have said so far."""

    name: str
    member: str = ""
    instance: str = ""
    number: int = -1
    began_ms: int = -1
    """Of the round that it is in; -1: it is in none."""
    causes: list[NamedCause] = attrs.field(factory=list)
    places: list[str] = attrs.field(factory=list)
    has_joined: bool = False
    is_fresh: bool = False
    """It was seen to look for its coordinator before it joined: else a log may begin anywhere."""
    before: int = -1
    """The generation of its last round."""
    left_ms: int = -1
    works: set[str] = attrs.field(factory=set)
    coordinator: str = ""
    reconciling_ms: int = -1
    has_epochs: bool = False
    """It is a member of KIP-848, and may have an epoch again that it had."""
    heard_ms: int = -1
    """When it was a member for the last time."""
    asked_ms: int = -1
    """When it asked to join the round that it is in."""
    away_ms: int = -1
    """Since when it cannot reach its coordinator; -1: it can."""
    until_ms: int = -1
    """When it last said so."""
    away: Outage | None = None
    """The last time that it could not, once that was over."""
    away_places: list[str] = attrs.field(factory=list)
    has_stood: bool = False
    """It stood still, and has not joined again."""
    lost: set[str] = attrs.field(factory=set)
    """What it had, and others were given since it last spoke."""
    lost_ms: int = -1
    lost_place: str = ""
    is_back: bool = False
    """A process of this name had left before."""
    is_file: bool = False
    """Its lines do not name it, so it has the name of its file."""

    @property
    def observed(self) -> ClusterMember:
        return observed(self.member, self.instance, "" if self.is_file and client_of(self.member) else self.name)

    @property
    def shown(self) -> str:
        return name_of(self.observed)

    @property
    def is_unseen(self) -> bool:
        return self.has_only(Cause.UNSEEN)

    @property
    def is_only_away(self) -> bool:
        """Returns whether all that its round began with is that its coordinator was away."""
        return self.has(Cause.COORDINATOR) and self.has_only(Cause.COORDINATOR, Cause.UNSEEN)

    @property
    def is_out(self) -> bool:
        """Returns whether it is out: it left, was put out, or lost its coordinator."""
        return self.has(Cause.LEFT, Cause.COORDINATOR, *PUT_OUT)

    @property
    def has_left(self) -> bool:
        """Returns whether it has closed, as far as is known."""
        return self.has(Cause.LEFT) and not self.has(*PUT_OUT)

    def has(self, *causes: Cause) -> bool:
        """Returns whether its round began with one of these."""
        return any(each.cause in causes for each in self.causes)

    def has_only(self, *causes: Cause) -> bool:
        return all(each.cause in causes for each in self.causes)

    def begin(self, at_ms: int, place: str, reason: NamedCause) -> None:
        """It is in a round, with this reason among others."""
        if self.began_ms < 0:
            self.end_round()
            self.began_ms = at_ms
        if reason not in self.causes[-1:]:
            self.causes.append(reason)
        self.note(place)

    def note(self, place: str) -> None:
        if len(self.places) < MOST_PLACES:
            self.places.append(place)

    def end_round(self) -> None:
        """It is in no round any more."""
        self.began_ms, self.causes, self.places = -1, [], []

    def end(self) -> None:
        """It has ended; one of the same name may come."""
        self.is_back, self.works, self.left_ms = True, set(), -1

    def departure(self, at_ms: int, place: str, reason: NamedCause) -> Departure:
        return Departure(
            at_ms=at_ms,
            cause=reason.cause,
            client=self.shown,
            member=self.member,
            place=place,
            detail=reason.detail,
            number=self.number,
            heard_ms=self.heard_ms,
        )

    def rebalance(self, end_ms: int, *, is_over: bool) -> Rebalance:
        """Returns the round that it is in. `is_over`: it is in the group again, or else it is out."""
        reason, member = strongest(self.causes), name_of(self.observed)
        is_first = is_over and not self.has_joined and reason.cause is Cause.JOINED
        if is_over and reason.cause is Cause.EXPIRED and self.has_joined and self.number == self.before >= 0 and not self.has_epochs:
            reason = NamedCause(Cause.TWICE, "it was put out and is back in the same generation: another process has its group.instance.id")
        is_of_others = is_over and reason.cause in (Cause.UNSEEN, Cause.COORDINATOR, Cause.PARTITIONS, Cause.CONNECTORS)
        return Rebalance(
            number=max(0, self.number),
            begin_ms=self.began_ms,
            end_ms=max(end_ms, self.began_ms),
            cause=reason.cause,
            members=() if is_of_others else (member,),
            detail=reason.detail,
            places=tuple(dict.fromkeys(self.places)),
            joined=(member,) if is_first else (),
            gone=(member,) if not is_over and reason.cause in (Cause.LEFT, *PUT_OUT) else (),
        )
