"""One client of a group, as its log tells of it."""

from __future__ import annotations

import attrs

from equipoise.replay.importers.evidence.files import client_of
from equipoise.replay.importers.groups.observed import ClusterMember
from equipoise.replay.incident.causes import Cause
from equipoise.replay.incident.coordinator_outages import Outage
from equipoise.replay.incident.named_causes import observed
from equipoise.replay.incident.rebalances import name_of


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


@attrs.define(kw_only=True)
class ClientProcess:
    """Says what one client's lines have said so far."""

    name: str
    member: str = ""
    instance: str = ""
    number: int = -1
    began_ms: int = -1
    """Of the round that it is in; -1: it is in none."""
    causes: list[tuple[Cause, str]] = attrs.field(factory=list)
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
        return all(cause is Cause.UNSEEN for cause, _ in self.causes)

    @property
    def is_only_away(self) -> bool:
        """Returns whether all that its round began with is that its coordinator was away."""
        causes = {cause for cause, _ in self.causes}
        return Cause.COORDINATOR in causes and causes <= {Cause.COORDINATOR, Cause.UNSEEN}

    @property
    def is_out(self) -> bool:
        """Returns whether it is out: it left, was put out, or lost its coordinator."""
        return any(cause in (Cause.LEFT, Cause.POLL_TIMEOUT, Cause.EXPIRED, Cause.TWICE, Cause.COORDINATOR) for cause, _ in self.causes)

    @property
    def has_left(self) -> bool:
        """Returns whether it has closed, as far as is known."""
        causes = {cause for cause, _ in self.causes}
        return Cause.LEFT in causes and not causes & {Cause.POLL_TIMEOUT, Cause.EXPIRED, Cause.TWICE}
