"""A model of the assignor inside the brokers (``java/broker-assignor``): the same answer for the
same group. It says beforehand what a plan will do, and Java is compared with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import attrs

from equipoise.lead.broker_seat.broker_plan import MARK, BrokerPlan, in_order, made_for, newest

Place = tuple[int, int]
"""Position of a topic, and a partition."""
_HELD = -1


@attrs.frozen(kw_only=True)
class BrokerMember:
    """A member as a broker hands it to an assignor. `rack`: its rack id, or the plan that it
    carries; empty: none. `topics`: ids that it subscribes to. `held`: what it is assigned now.
    """

    member_id: str
    rack: str = ""
    topics: Set[bytes] = frozenset()
    held: Mapping[bytes, Set[int]] = attrs.field(factory=dict)

    @property
    def carries(self) -> bool:
        """Returns whether it is a member that carries plans, and reads nothing."""
        return self.rack.startswith(MARK)


@attrs.frozen(kw_only=True)
class BrokerTopic:
    """`partitions`: how many; 0: the topic does not exist. `racks`: partition -> racks of its
    replicas.
    """

    partitions: int
    racks: Mapping[int, Set[str]] = attrs.field(factory=dict)


def listed(members: Sequence[BrokerMember], topics: Mapping[bytes, BrokerTopic]) -> tuple[list[str], list[bytes]]:
    """Members and topics in the order of a plan's positions."""
    consumers = [each for each in members if not each.carries]
    read = {topic for each in consumers for topic in each.topics if topic in topics and topics[topic].partitions > 0}
    return in_order(each.member_id for each in consumers), sorted(read)


def assign(members: Sequence[BrokerMember], topics: Mapping[bytes, BrokerTopic]) -> dict[str, dict[bytes, set[int]]]:
    """Member id -> topic -> the partitions that it is assigned."""
    consumers, read = listed(members, topics)
    carriers = in_order(each.member_id for each in members if each.carries)
    known = {each.member_id: each for each in members}
    ours = {topic for name in carriers for topic in known[name].topics if topic in topics and topics[topic].partitions > 0}
    placing = _Placing([known[name] for name in (*consumers, *carriers)], [*read, *sorted(ours - set(read))], topics, len(consumers), len(read))
    plan = newest(known[name].rack for name in carriers)
    if plan is not None and plan.made_for == made_for(consumers, read):
        placing.apply(plan)
    if plan is None or not plan.holds:
        placing.fill()
    if not carriers:
        placing.balance()
    return placing.answer()


class _Placing:
    """Owners of partitions, by positions. `consumers`, `read`: how many members and topics a
    plan can name.
    """

    def __init__(self, members: list[BrokerMember], order: list[bytes], topics: Mapping[bytes, BrokerTopic], consumers: int, read: int) -> None:
        self.members, self.order, self.consumers, self.read = members, order, consumers, read
        self.topics = [topics[topic] for topic in order]
        self.owner: dict[Place, int] = {}
        self.load = [0] * len(members)
        self.readers = [
            [at for at, each in enumerate(members) if topic in each.topics and (at < consumers or index >= read)] for index, topic in enumerate(order)
        ]
        self.position = {topic: at for at, topic in enumerate(order)}
        for at, member in enumerate(members):
            for topic, partitions in member.held.items():
                index = self.position.get(topic)
                if index is None or at not in self.readers[index]:
                    continue
                for partition in partitions:
                    if 0 <= partition < self.topics[index].partitions and (index, partition) not in self.owner:
                        self._give((index, partition), at)

    def _give(self, place: Place, to: int) -> None:
        before = self.owner.get(place, _HELD)
        if before != _HELD:
            self.load[before] -= 1
        if to != _HELD:
            self.load[to] += 1
        self.owner[place] = to

    def apply(self, plan: BrokerPlan) -> None:
        """Carries out all of a plan, or nothing."""
        wanted: dict[Place, int] = {}
        for each in plan.entries:
            if each.kind not in ("move", "hold") or each.topic >= self.read or each.last >= self.topics[each.topic].partitions:
                return
            if each.kind == "move" and (each.member >= self.consumers or each.member not in self.readers[each.topic]):
                return
            places = [(each.topic, partition) for partition in range(each.first, each.last + 1)]
            if not wanted.keys().isdisjoint(places):
                return
            wanted.update(dict.fromkeys(places, each.member if each.kind == "move" else _HELD))
        for place, to in wanted.items():
            self._give(place, to)

    def fill(self) -> None:
        """Gives what nobody has to the reader with the fewest partitions, then one near by, then
        the first.
        """
        for place in self._places():
            if place not in self.owner:
                self._give(place, self._best(place))

    def balance(self) -> None:
        """Moves partitions until no reader of a topic has two more than another."""
        for place in self._places():
            if place in self.owner:
                fewest = min(self.load[at] for at in self.readers[place[0]])
                if self.load[self.owner[place]] > fewest + 1:
                    self._give(place, self._best(place))

    def _places(self) -> list[Place]:
        return [(index, partition) for index, topic in enumerate(self.topics) for partition in range(topic.partitions)]

    def _best(self, place: Place) -> int:
        racks = self.topics[place[0]].racks.get(place[1], frozenset())
        return min(self.readers[place[0]], key=lambda at: (self.load[at], not (at < self.consumers and self.members[at].rack in racks), at))

    def answer(self) -> dict[str, dict[bytes, set[int]]]:
        found: dict[str, dict[bytes, set[int]]] = {each.member_id: {} for each in self.members}
        for (index, partition), at in self.owner.items():
            if at != _HELD:
                found[self.members[at].member_id].setdefault(self.order[index], set()).add(partition)
        return found
