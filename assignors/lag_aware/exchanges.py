"""Exchanges of partitions between two members of an even deal that bring their lags nearer to each
other, each worth its moves.

An exchange gives a partition of the member that is further behind to one that is less so, and takes
one in return, or none, so that each topic and the totals stay as even as they are. It *gains* the
records by which the lag of the one further behind of the two falls, and it *pays* when that is at
least `price` for each partition that moves. A gain is at most half the difference of the two lags.

The member furthest behind is looked at first, and its exchange with the most gain less price is
made; then all again, until none pays. Each exchange lowers the larger lag of two members and leaves
the others as they are, so the lags, sorted from the largest down, only fall, and the search ends.
When it has ended, nothing pays: with the same lags, a second search finds nothing.

Before: m1 has the lags 100, 60 and 1, m2 has 30, 3 and 2; the price is 10. After: 60 and 2 have
changed places, and 161 and 35 are 103 and 93.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence, Set

import attrs

from equipoise.assignors.lag_aware.dealing import subscriptions
from equipoise.assignors.lag_aware.dealt_topics import Topic
from equipoise.events.java_order import text_key
from equipoise.events.tasks import TaskId

MOST_STEPS = 2_000_000
"""Partitions and members looked at for one plan, about 2 s of work. Beyond that what was found so
far is all.
"""

Offer = tuple[int, int, TaskId]
"""Lag of a partition, index of its topic, its task; in rising order."""


@attrs.frozen
class Exchange:
    """`giver` passes `given` on to `taker` and gets `taken`; None: nothing."""

    giver: str
    taker: str
    given: TaskId
    taken: TaskId | None = None

    @property
    def moves(self) -> tuple[tuple[TaskId, str], ...]:
        """The partitions that move, with their new owners."""
        given = (self.given, self.taker)
        return (given,) if self.taken is None else (given, (self.taken, self.giver))


class Budget:
    """Counts the steps of a search, so that it ends in time."""

    def __init__(self) -> None:
        self._left = MOST_STEPS

    @property
    def is_spent(self) -> bool:
        return self._left < 0

    def spend(self, steps: int) -> None:
        self._left -= steps


class Exchanges:
    """Owners of the partitions of even topics, changed in place.

    `owner`: of each partition of the topics, one of its subscribers. `unknown`: partitions whose
    lag is not known; members that have any take no part. `price`: records that each move must gain,
    at least 1.
    """

    def __init__(self, topics: Sequence[Topic], owner: Mapping[TaskId, str], unknown: Set[TaskId], price: int, budget: Budget) -> None:
        self.owner = {task: owner[task] for topic in topics for task in topic.lags}
        self._price = price
        self._lag_of = {task: lag for topic in topics for task, lag in topic.lags.items()}
        self._place = {task: place for place, topic in enumerate(topics) for task in topic.lags}
        self._subscription = {name: number for number, names in enumerate(subscriptions(topics).values()) for name in names}
        self._held: dict[str, dict[int, list[Offer]]] = {name: {} for name in self._subscription}
        """Member -> each topic that it subscribes to -> its partitions, in rising order of lags."""
        for place, topic in enumerate(topics):
            for name in topic.pool.members:
                self._held[name][place] = []
        for task, lag in sorted(self._lag_of.items(), key=lambda item: (item[1], item[0])):
            self._held[self.owner[task]][self._place[task]].append((lag, self._place[task], task))
        self.lag = {name: sum(lag for offers in held.values() for lag, *_ in offers) for name, held in self._held.items()}
        """Member -> records that its partitions are behind."""
        self._total = {name: sum(map(len, held.values())) for name, held in self._held.items()}
        self._silent = {self.owner[task] for task in self.owner if task in unknown}
        self._version = dict.fromkeys(self._held, 0)
        """Member -> number of its exchanges so far."""
        self._content: dict[str, tuple[int, Sequence[tuple[int, int]]]] = {}
        self._nothing_pays: dict[tuple[str, str], tuple[int, int]] = {}
        """Pairs between which nothing pays, with their versions then."""
        self._budget = budget

    def find(self) -> list[Exchange]:
        """Makes every exchange that pays, and returns them in order."""
        found = []
        while (exchange := self._next()) is not None:
            self._make(exchange)
            found.append(exchange)
        return found

    def repeat(self, exchange: Exchange) -> bool:
        """Makes an exchange that was found earlier, if it is still possible and pays. Returns
        whether.
        """
        giver, taker, given, taken = exchange.giver, exchange.taker, exchange.given, exchange.taken
        if not self._may(giver, taker) or self.owner.get(given) != giver or (taken is not None and self.owner.get(taken) != taker):
            return False
        place, back = self._place[given], None if taken is None else self._place[taken]
        if place not in self._held[taker] or (back is not None and back not in self._held[giver]):
            return False
        if back is None and not (self._has_more(giver, taker, place) and self._total[giver] > self._total[taker]):
            return False
        if back not in (None, place) and not (self._has_more(giver, taker, place) and self._has_more(taker, giver, back)):
            return False
        moved = self._lag_of[given] - (0 if taken is None else self._lag_of[taken])
        if self._worth(self.lag[giver] - self.lag[taker], moved, len(exchange.moves)) < 0:
            return False
        self._make(exchange)
        return True

    def _may(self, giver: str, taker: str) -> bool:
        return giver != taker and {giver, taker} <= self._held.keys() - self._silent

    def _has_more(self, name: str, other: str, place: int | None) -> bool:
        """Returns whether it has more partitions of the topic than the other one, so that one may
        go there.
        """
        return place is not None and len(self._held[name][place]) > len(self._held[other][place])

    def _worth(self, gap: int, moved: int, moves: int) -> int:
        """Gain less price, for two members whose lags differ by `gap`; below 0: it does not pay.
        `moved`: records by which the lag of the giver falls.
        """
        return min(moved, gap - moved) - moves * self._price

    def _next(self) -> Exchange | None:
        """The best exchange of the member furthest behind that has one; None: nothing pays."""
        order = sorted(self.lag.keys() - self._silent, key=lambda name: (self.lag[name], self._contents(name), text_key(name)))
        self._budget.spend(len(order))
        for giver in reversed(order):
            best: tuple[int, Exchange] | None = None
            for taker in order:
                most = (self.lag[giver] - self.lag[taker]) // 2 - self._price
                if most < 0 or (best is not None and most <= best[0]) or self._budget.is_spent:
                    break
                found = self._between(giver, taker)
                if found is not None and (best is None or found[0] > best[0]):
                    best = found
            if best is not None:
                return best[1]
        return None

    def _contents(self, name: str) -> tuple[int, Sequence[tuple[int, int]]]:
        """Equal for members that nothing tells apart but their names."""
        if name not in self._content:
            held = [(place, lag) for offers in self._held[name].values() for lag, place, _ in offers]
            self._content[name] = self._subscription[name], held
        return self._content[name]

    def _between(self, giver: str, taker: str) -> tuple[int, Exchange] | None:
        """Returns what the best exchange of the two is worth, and the exchange; None: none pays."""
        versions = self._version[giver], self._version[taker]
        self._budget.spend(1)
        if self._nothing_pays.get((giver, taker)) == versions:
            return None
        gap, mine, other = self.lag[giver] - self.lag[taker], self._held[giver], self._held[taker]
        shared = [place for place in mine if place in other]
        more = [offer for place in shared if self._has_more(giver, taker, place) for offer in mine[place]]
        fewer = [offer for place in shared if self._has_more(taker, giver, place) for offer in other[place]]
        best: tuple[int, Exchange] | None = None
        if more and self._total[giver] > self._total[taker]:
            self._budget.spend(len(more))
            given = min(more, key=lambda offer: (-self._worth(gap, offer[0], 1), offer))
            best = self._worth(gap, given[0], 1), Exchange(giver, taker, given[2])
        pair: tuple[int, Offer, Offer] | None = None
        for place in shared:
            pair = self._better(gap, mine[place], other[place], pair)
        pair = self._better(gap, sorted(more), sorted(fewer), pair)
        if pair is not None and (best is None or pair[0] - 2 * self._price > best[0]):
            best = pair[0] - 2 * self._price, Exchange(giver, taker, pair[1][2], pair[2][2])
        if best is None or best[0] < 0:
            self._nothing_pays[giver, taker] = versions
            return None
        return best

    def _better(self, gap: int, gives: list[Offer], takes: list[Offer], best: tuple[int, Offer, Offer] | None) -> tuple[int, Offer, Offer] | None:
        """The gain of the best pair, of these and `best`, and the pair. Both lists are in rising
        order, so what fits best to the next of one is not before what fits to the last.
        """
        most, half, after = 0 if best is None else best[0], gap // 2, 0
        for place in range(bisect_left(gives, (most,)), len(gives)):
            offer = gives[place]
            while after < len(takes) and takes[after][0] < offer[0] - half:
                after += 1
            for back in takes[max(after - 1, 0) : after + 1]:
                moved = offer[0] - back[0]
                gain = min(moved, gap - moved)
                if gain > most or (best is not None and gain == most and (offer[:2], back[:2]) < (best[1][:2], best[2][:2])):
                    most, best = gain, (gain, offer, back)
        self._budget.spend(len(gives) + after)
        return best

    def _make(self, exchange: Exchange) -> None:
        for task, name in exchange.moves:
            before, offer = self.owner[task], (self._lag_of[task], self._place[task], task)
            self._held[before][offer[1]].remove(offer)
            into = self._held[name][offer[1]]
            into.insert(bisect_left(into, offer), offer)
            self.owner[task] = name
            for each, sign in ((before, -1), (name, 1)):
                self.lag[each] += sign * offer[0]
                self._total[each] += sign
        for each in (exchange.giver, exchange.taker):
            self._version[each] += 1
            self._content.pop(each, None)
