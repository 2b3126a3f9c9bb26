"""Drives a whole application in a test, without Kafka, and compares two versions of one."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Unpack

import attrs

from equipoise.events.errors import InputError
from equipoise.kafka.client import Record
from equipoise.member.options import MemberKeywords
from equipoise.member.tasks.context import Callback, State
from equipoise.member.tasks.processing import Processor
from equipoise.streams.stream_time import stream_time_ms
from equipoise.testing.driver import SentRecord, TaskDriver

LOOPS = 10_000
"""Records between processors for one record that was given: then they are taken to go in a circle.
"""


class ApplicationDriver:
    """One task of each processor. What one sends to a topic that another one reads is handled by
    that, at once. The arguments are those of `TaskDriver`.

    ::

        driver = ApplicationDriver(CHAIN, key_serde=StringSerde(), value_serde=JsonSerde())
        *_, counted = await driver.send({"page": "/"}, key="ann", timestamp_ms=5_000)
        assert counted.topic == "views"

    Raises InputError when there is no processor.
    """

    def __init__(self, processors: Sequence[Processor], *, on_assigned: Callback | None = None, **options: Unpack[MemberKeywords]) -> None:
        if not processors:
            raise InputError("ApplicationDriver.processors: there is none; give it those that Member gets")
        self.drivers = [
            TaskDriver(
                each.handler,
                batch_handler=each.batch_handler,
                sources=each.inputs,
                state=each.state,
                subtopology=number,
                on_assigned=on_assigned,
                **options,
            )
            for number, each in enumerate(processors)
        ]
        """One for each processor."""

    @property
    def stream_time_ms(self) -> int:
        """Returns the highest stream time of the tasks, in ms since 1970; 0: nothing was handled."""
        return max(stream_time_ms(each.context) for each in self.drivers)

    @property
    def dropped(self) -> Mapping[tuple[str, str], int]:
        """Returns how many records were dropped by all processors, as `TaskDriver.dropped`."""
        return sum((Counter(each.dropped) for each in self.drivers), Counter())

    def state(self, topic: str) -> State:
        """The state with this changelog. Raises InputError when there is none."""
        for each in self.drivers:
            if topic in each.states:
                return each.states[topic]
        known = ", ".join(chain.from_iterable(each.states for each in self.drivers))
        raise InputError(f"state: no processor has a state {topic}; there are: {known or 'none'}")

    async def send(
        self, value: Any, *, key: Any = None, topic: str | None = None, headers: Iterable[tuple[str, bytes]] = (), timestamp_ms: int | None = None
    ) -> list[SentRecord]:
        """Gives the application one record of `topic` (None: the first source). Returns all that
        was sent for it, in order, also between processors. Raises as `TaskDriver.send`, and
        InputError when no processor reads `topic`, or they send to each other without end.
        """
        first = self.drivers[0]
        source = next(iter(first._sources)) if topic is None else topic
        readers = [each for each in self.drivers if source in each._sources]
        if not readers:
            known = ", ".join(dict.fromkeys(chain.from_iterable(each._sources for each in self.drivers)))
            raise InputError(f"send: {source} is no source of this application; there are: {known}")
        return await self._pass_on([(each, each._consumed(value, key, source, headers, timestamp_ms, None)) for each in readers])

    async def advance(self, seconds: float) -> list[SentRecord]:
        """Lets this time pass for all tasks. Returns all that was sent, those of a processor after
        those of the ones before it. Raises as `TaskDriver.advance`.
        """
        found: list[SentRecord] = []
        for each in self.drivers:
            found += await each.advance(seconds)
            found += await self._pass_on(self._given(each))
        return found

    async def _pass_on(self, given: Iterable[tuple[TaskDriver, Record]]) -> list[SentRecord]:
        waiting, found = deque(given), []
        passed = 0
        while waiting:
            driver, record = waiting.popleft()
            found += await driver._handle([record])
            waiting.extend(self._given(driver))
            passed += 1
            if passed > LOOPS:
                raise InputError(f"send: more than {LOOPS:,} records came of one: processors send to each other in a circle")
        return found

    def _given(self, sender: TaskDriver) -> list[tuple[TaskDriver, Record]]:
        """Returns the records that the last call has sent, for each processor that reads them."""
        found = []
        for topic, _, (key, value, headers, timestamp_ms) in sender.last_sent:
            for reader in self.drivers:
                if topic in reader._sources:
                    at_ms = sender.now_ms if timestamp_ms is None else timestamp_ms
                    found.append((reader, Record(key, value, topic, 0, reader._next_offset(topic), at_ms, tuple(headers))))
        return found


@attrs.frozen
class VersionDifference:
    """Names what two versions of an application have not made equally of the same records.
    `topic`: an output, and `before` and `after` are the values that each sent with the key, in
    order; or a changelog, and they are the values of the key in its state (None: it has none).
    """

    topic: str
    key: Any
    before: Any
    after: Any


async def differences(
    before: Sequence[Processor],
    after: Sequence[Processor],
    records: Iterable[SentRecord],
    *,
    advance_s: float = 0.0,
    **options: Unpack[MemberKeywords],
) -> list[VersionDifference]:
    """Gives the same records to two versions of an application, and lets `advance_s` pass. Returns
    what differs in what they have sent and in the state that handlers put, by topic and key; []:
    nothing. `options`: as of `TaskDriver`. Records of sources that one version does not read are
    left out there. Raises what handlers raise with `ErrorPolicy.stop`.
    """
    given = list(records)
    made = [await _made_of(each, given, advance_s, options) for each in (before, after)]
    topics = dict.fromkeys(chain.from_iterable(each.keys() for each in made))
    found = []
    for topic in topics:
        one, other = (each.get(topic, {}) for each in made)
        found += [VersionDifference(topic, *each) for each in _unequal(one, other)]
    return found


def _unequal(one: dict[str, tuple[Any, Any]], other: dict[str, tuple[Any, Any]]) -> list[tuple[Any, Any, Any]]:
    nothing = (None, None)
    keys = {name: found[0] for each in (other, one) for name, found in each.items()}
    pairs = [(keys[name], one.get(name, nothing)[1], other.get(name, nothing)[1]) for name in sorted(keys)]
    return [(key, before, after) for key, before, after in pairs if before != after]


async def _made_of(
    processors: Sequence[Processor], records: Iterable[SentRecord], advance_s: float, options: Any
) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Topic -> key as text -> key, and values sent or the value in the state."""
    driver = ApplicationDriver(processors, **options)
    read = set(chain.from_iterable(each._sources for each in driver.drivers))
    sent: list[SentRecord] = []
    for each in records:
        if each.topic in read:
            sent += await driver.send(each.value, key=each.key, topic=each.topic, headers=each.headers, timestamp_ms=each.timestamp_ms)
    sent += await driver.advance(advance_s)
    outputs: dict[str, dict[str, tuple[Any, list[Any]]]] = defaultdict(dict)
    for each in sent:
        outputs[each.topic].setdefault(repr(each.key), (each.key, []))[1].append(each.value)
    states = {topic: {repr(key): (key, value) for key, value in state.items()} for each in driver.drivers for topic, state in each.states.items()}
    return {**outputs, **states}
