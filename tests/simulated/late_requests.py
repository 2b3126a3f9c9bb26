"""Producers' requests in any order: late, again, with gaps, from producers that are fenced. It runs
on the simulated brokers and on a real one; the answers must be the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any, Protocol

import attrs

from equipoise.kafka.client import TopicPartition

SETTLE_S = 0.1


@attrs.frozen
class Sent:
    """A batch of a producer. `transactional_id` "": it belongs to no transaction."""

    place: TopicPartition
    transactional_id: str
    producer_id: int
    epoch: int
    sequence: int
    count: int


class Requests(Protocol):
    """Answers are error names; "": there was none."""

    async def init(self, transactional_id: str, timeout_ms: int = 60_000) -> tuple[str, int, int]:
        """With producer id and epoch."""
        ...

    async def add(self, transactional_id: str, producer_id: int, epoch: int, place: TopicPartition) -> str: ...
    async def end(self, transactional_id: str, producer_id: int, epoch: int, commit: bool) -> str: ...
    async def commit_offset(self, transactional_id: str, producer_id: int, epoch: int, place: TopicPartition, offset: int) -> str:
        """Adds the group to the transaction, and commits an offset in it."""
        ...

    async def produce(self, sent: Sent) -> str | int:
        """The offset, if there was no error."""
        ...

    async def ends(self, places: list[TopicPartition]) -> list[tuple[int, int]]:
        """High watermarks and last stable offsets."""
        ...

    async def create_again(self, topic: str) -> None: ...


@attrs.define
class _Producer:
    transactional_id: str
    producer_id: int
    epoch: int
    sequences: dict[TopicPartition, int] = attrs.field(factory=dict)


class LateRequests:
    """Plays one seed with the topic `topic` of two partitions."""

    def __init__(self, requests: Requests, seed: int, topic: str) -> None:
        self._requests = requests
        self._random = Random(seed)
        self._topic = topic
        self._places = [TopicPartition(topic, index) for index in range(2)]
        self._producers: list[_Producer] = []
        self._sent: list[Sent] = []
        self.seen: list[str] = []

    async def play(self, steps: int) -> list[str]:
        operations: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self._init, 3),
            (self._add, 6),
            (self._produce, 12),
            (self._produce_again, 6),
            (self._end, 5),
            (self._commit_offset, 2),
            (self._again, 1),
        ]
        await self._init()
        for _ in range(steps):
            (operation,) = self._random.choices([each for each, _ in operations], [weight for _, weight in operations])
            await operation()
        return self.seen

    def _producer(self) -> _Producer:
        """One of the last, most often: a former one is fenced."""
        return self._producers[-1 - min(int(self._random.expovariate(0.7)), len(self._producers) - 1)]

    async def _init(self) -> None:
        transactional_id = self._random.choice(["", "s", "t"])
        error, producer_id, epoch = await self._until_settled(lambda: self._requests.init(transactional_id), lambda answer: str(answer[0]))
        self._producers.append(_Producer(transactional_id, producer_id, epoch))
        self.seen.append(f"init {transactional_id}: {error} {epoch}")
        await self._note_ends()

    async def _until_settled(self, ask: Callable[[], Awaitable[Any]], error: Callable[[Any], str]) -> Any:
        """The answer when the markers of a former transaction are written."""
        while True:
            answer = await ask()
            if error(answer) != "ConcurrentTransactions":
                return answer
            await asyncio.sleep(SETTLE_S)

    async def _add(self) -> None:
        each, place = self._producer(), self._random.choice(self._places)
        if each.transactional_id:
            answer = await self._until_settled(lambda: self._requests.add(each.transactional_id, each.producer_id, each.epoch, place), str)
            self.seen.append(f"add {place[1]} to {each.transactional_id} {each.epoch}: {answer}")

    async def _produce(self) -> None:
        each, place = self._producer(), self._random.choice(self._places)
        sequence = each.sequences.get(place, 0)
        if self._random.random() < 0.15:
            sequence = max(0, sequence + self._random.randrange(-3, 4))
        count = self._random.randrange(1, 4)
        await self._send(Sent(place, each.transactional_id, each.producer_id, each.epoch, sequence, count), each)

    async def _send(self, sent: Sent, producer: _Producer | None = None) -> None:
        answer = await self._requests.produce(sent)
        if producer is not None and isinstance(answer, int):
            producer.sequences[sent.place] = sent.sequence + sent.count
        self._sent.append(sent)
        number = next(number for number, each in enumerate(self._producers) if each.producer_id == sent.producer_id)
        what = f"{sent.transactional_id or number} {sent.epoch} {sent.sequence}+{sent.count}"
        self.seen.append(f"produce to {sent.place[1]} by {what}: {answer}")

    async def _produce_again(self) -> None:
        if self._sent:
            await self._send(self._sent[-1 - min(int(self._random.expovariate(0.2)), len(self._sent) - 1)])

    async def _end(self) -> None:
        each, commit = self._producer(), self._random.random() < 0.6
        if each.transactional_id:
            answer = await self._until_settled(lambda: self._requests.end(each.transactional_id, each.producer_id, each.epoch, commit), str)
            self.seen.append(f"end {each.transactional_id} {each.epoch} {commit}: {answer}")
            await self._note_ends()

    async def _commit_offset(self) -> None:
        each, place = self._producer(), self._random.choice(self._places)
        if each.transactional_id:
            ask = self._requests.commit_offset
            offset = self._random.randrange(100)
            answer = await self._until_settled(lambda: ask(each.transactional_id, each.producer_id, each.epoch, place, offset), str)
            self.seen.append(f"commit offset in {each.transactional_id} {each.epoch}: {answer}")

    async def _again(self) -> None:
        """The topic is created again; no transaction is open."""
        for transactional_id in ("s", "t"):
            ask = partial(self._requests.init, transactional_id)
            _, producer_id, epoch = await self._until_settled(ask, lambda answer: str(answer[0]))
            self._producers.append(_Producer(transactional_id, producer_id, epoch))
        await asyncio.sleep(SETTLE_S)
        await self._requests.create_again(self._topic)
        self.seen.append("created again")

    async def _note_ends(self) -> None:
        await asyncio.sleep(SETTLE_S)
        self.seen.append(f"ends: {await self._requests.ends(self._places)}")


async def expired_transaction(requests: Requests, topic: str) -> list[Any]:
    """What a producer sees whose transaction was open too long."""
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    _, producer_id, epoch = await requests.init("s", 1_000)
    sent = Sent(first, "s", producer_id, epoch, 0, 2)
    seen: list[Any] = [await requests.add("s", producer_id, epoch, first), await requests.produce(sent), await requests.ends([first])]
    # On a busy broker the last stable offset rises before the high watermark does.
    while min((await requests.ends([first]))[0]) <= sent.count:  # noqa: ASYNC110  # only an answer says so
        await asyncio.sleep(SETTLE_S)
    await asyncio.sleep(4 * SETTLE_S)  # the coordinator hears of its marker
    seen.append(await requests.ends([first]))
    seen += [await requests.produce(late) for late in (sent, attrs.evolve(sent, sequence=2), attrs.evolve(sent, place=second))]
    seen += [await requests.add("s", producer_id, epoch, first), await requests.end("s", producer_id, epoch, True)]
    error, next_id, next_epoch = await requests.init("s", 1_000)
    return [*seen, error, next_id == producer_id, next_epoch - epoch]
