"""Deploys of an application whose shape changes, and what surrounds it: members get other
processors, sources, states and numbers of partitions, one after the other, also under the epoch of
before by mistake; brokers forget committed offsets and delete records; other consumers commit with
the group's id; topics are made again; changelogs and sources lose their last records. Members
are killed at any time.

What must hold in the end: each processor has processed each record of the sources that it reads now
once (with at_least_once: at least once), and its states have counted every one since they were
added. Run `python -m tests.simulated.deploys` for more seeds.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import attrs
import click

from equipoise import Processor, Record, TaskContext
from equipoise.kafka.client import TopicPartition
from equipoise.testing import Group
from equipoise.testing.group import NAME
from equipoise.testing.simulated.kafka.partition_log import Batch, PartitionLog
from tests.support.cluster_faults import delete_topic, grow_topic, lose_tail

SOURCES = ("source", "second")
STATES = ("s1", "s2", "s3", "s4", "s5", "s6")
OUTPUT = "out"
PARTITIONS, GROWN = 2, 3
START_S = 20.0
PROCESSED_S = 180.0
"""Within this time after the last fault all records are processed."""
REFUSED_S = 60.0
"""Within this time a member with another topology has ended."""
MISTAKEN = "mistaken"
GUARANTEES = ("at_least_once", "exactly_once")


class Deploys(Group):
    """A group whose members are deployed again with other processors."""

    def __init__(self, processors: Sequence[Processor], *, partitions: int = 1, **options: Any) -> None:
        super().__init__(lambda record, context: None, state=STATES, outputs=OUTPUT, sources=SOURCES, partitions=partitions, **options)
        self._deployed = list(processors)

    def deploy(self, processors: Sequence[Processor], member: str = "m1", *, kills: bool = True) -> None:
        """Ends the member, and starts it with these under a new epoch."""
        if kills and self._seats[member].process is not None:
            self.crash(member)
        elif not kills:
            self.leave(member)
        self._deployed, self._epoch = list(processors), self._epoch + 1
        self.join(member)
        self.advance(30)

    def set_clock(self, member: str, ahead_ms: int) -> None:
        """Sets the clock of the member's machine: so far ahead of the brokers' clocks."""
        self._cluster.clocks_ms[member] = ahead_ms
        self._seats[member].machine.wall_offset_us = ahead_ms * 1_000

    def forget_offsets(self) -> None:
        """As brokers do after `offsets.retention.minutes`."""
        self._cluster.coordinators.offsets.pop(NAME, None)

    def make_again(self, topic: str, gone_s: float = 0.5) -> None:
        """Deletes a topic and creates it again, empty."""
        policy = "compact" if topic in STATES else "delete"
        delete_topic(self._cluster, topic)
        self.advance(gone_s)
        self._cluster.create_topic(topic, self._partitions, 1, {"cleanup.policy": policy})

    def write(self, count: int, topic: str = "source") -> None:
        for _ in range(count):
            self.send(b"v", key=b"k", topic=topic, partition=0)


@attrs.define
class Part:
    """A processor of the application. `lives`: how often it may process one record: once more each
    time it lost its positions.
    """

    name: str
    sources: list[str]
    states: list[str]
    lives: int = 1

    def processor(self) -> Processor:
        return Processor(self._handle, sources=tuple(self.sources), state=tuple(self.states), outputs=OUTPUT, name=self.name)

    def _handle(self, record: Record, context: TaskContext) -> None:
        counts = []
        for topic, state in sorted(context.states.items()):
            count = int(state.get(b"count") or 0) + 1
            state.put(b"count", b"%d" % count)
            state.put(b"of " + record.value, b"")
            counts.append(f"{topic}={count}/{sum(1 for _ in state.prefix(b'of '))}")
        context.send(OUTPUT, " ".join((self.name, record.value.decode(), *counts)).encode(), partition=context.task.partition)


class Mistaken(Part):
    """One that must not be let in."""

    def _handle(self, record: Record, context: TaskContext) -> None:
        context.send(OUTPUT, f"{MISTAKEN} {record.value.decode()}".encode(), partition=context.task.partition)


class DeployStorm:
    """One run. Everything that chance decides follows from `seed`. `problems`: what does not hold;
    `trace`: what was done.
    """

    def __init__(self, seed: int, guarantee: str) -> None:
        self.seed, self.steps = seed, 0
        self._random = Random(f"deploys {seed}")
        self._guarantee = guarantee
        first = Part("first", ["source"], self._random.choice(([], ["s1"])))
        self._parts = [first]
        self._away: list[Part] = []
        """Parts that were removed, and keep their positions."""
        self._new_states = [each for each in STATES if each not in first.states]
        self._names = ["second", "third"]
        self._records: dict[str, list[str]] = {topic: [] for topic in SOURCES}
        """Those of the present topic of each name."""
        self._made_again: Counter[str] = Counter()
        self._cut: Counter[str] = Counter()
        """How often a changelog has lost its last records."""
        self._written = 0
        self.trace: list[str] = []
        self.problems: list[str] = []
        self._group = Deploys([first.processor()], partitions=PARTITIONS, guarantee=guarantee, seed=seed)

    def run(self, changes: int) -> None:
        """Makes so many changes, and compares."""
        group = self._group
        with group:
            group.join("m1", "m2")
            group.advance(START_S)
            for _ in range(changes):
                self._write()
                group.advance(self._random.choice((0.2, 3.0, 15.0)))
                self._kill_one()
                change = self._random.choice(self._changes())
                self.trace.append(f"{group.now_s:.1f} {change.__name__.strip('_')}")
                change()
                self._write()
                self._kill_one()
            self._calm()
            self._compare()
            self.steps = group._scheduler.steps

    # What happens

    def _write(self) -> None:
        for _ in range(self._random.choice((0, 1, 4, 20))):
            topic = self._random.choice(SOURCES)
            value = f"r{self._written}"
            self._written += 1
            self._records[topic].append(value)
            self._group.send(value.encode(), topic=topic, partition=self._random.randrange(self._group._partitions))

    def _kill_one(self) -> None:
        name = self._random.choice(("m1", "m2"))
        if self._random.random() < 0.4 and self._group._seats[name].process is not None:
            self._group.crash(name)
            self._group.advance(self._random.choice((0.1, 2.0, 15.0)))
            self._group.join(name)

    def _changes(self) -> list[Callable[[], None]]:
        can: list[Callable[[], None]] = [
            self._forget_offsets,
            self._foreign_commit,
            self._make_source_again,
            self._restart,
            self._other_order,
            self._other_sources,
            self._forget_epoch,
            self._delete_records,
            self._lose_records,
        ]
        if self._new_states:
            can += [self._add_state]
        if any(len(part.states) > 1 for part in self._parts):
            can += [self._drop_state, self._make_state_again]
        if any(len(part.states) == 1 for part in self._parts):
            can += [self._lose_state, *[self._lose_tail] * 3]  # few of them leave a copy that only epochs tell from the changelog
        if self._names or self._away:
            can += [self._add_part]
        if len(self._parts) > 1:
            can += [self._remove_part]
        if self._group._partitions < GROWN:
            can += [self._grow]
        return can

    def _deploy(self) -> None:
        """Members get the present shape one after the other."""
        group = self._group
        group._deployed, group._epoch = [part.processor() for part in self._parts], group._epoch + 1
        self.trace.append("  " + "; ".join(f"{part.name}: {','.join(part.sources)} -> {','.join(part.states)}" for part in self._parts))
        self._restart()

    def _restart(self) -> None:
        group = self._group
        for name in self._random.sample(["m1", "m2"], 2):
            if group._seats[name].process is not None and self._random.random() < 0.5:
                group.leave(name)
            elif group._seats[name].process is not None:
                group.crash(name)
            group.advance(self._random.choice((0.1, 2.0)))
            group.join(name)
            group.advance(self._random.choice((0.5, 5.0, 20.0)))

    def _forget_epoch(self) -> None:
        """A member gets another shape under the same epoch: it ends, and names what differs."""
        group, name = self._group, self._random.choice(("m1", "m2"))
        shape = [Mistaken(part.name, list(part.sources), list(part.states)) for part in self._parts]
        changed = self._random.choice(shape)
        match self._random.choice(("sources", "state", "part")):
            case "sources":
                changed.sources = ["second"] if "source" in changed.sources else ["source"]
            case "state":
                changed.states = changed.states[1:] or [STATES[-1]]
            case "part":
                shape.append(Mistaken("other", ["source"], []))
        right, group._deployed = group._deployed, [part.processor() for part in shape]
        if group._seats[name].process is not None:
            group.crash(name)
        group.join(name)
        end_s = group.now_s + REFUSED_S
        while group._seats[name].process is not None and group.now_s < end_s:
            group.advance(1)
        if "topology_epoch" not in str(group._seats[name].error):
            self.problems.append(f"{name} has another topology under the same epoch, and its error is {group._seats[name].error!r}")
        group._deployed = right
        if group._seats[name].process is not None:
            group.crash(name)
        group.join(name)

    def _delete_records(self) -> None:
        """As brokers do by retention: what is processed, or also what is not."""
        topic = self._random.choice(SOURCES)
        if self._random.random() < 0.5:
            self._settle()
        away = self._random.random() < 0.5
        if away:
            self._stop_all()
            self._write()
        self._records[topic] = []
        for partition in range(self._group._partitions):
            self._group._cluster.delete_records(TopicPartition(topic, partition), self._group._log(topic, partition).end)
        if away:
            self._group.join("m1", "m2")

    def _forget_offsets(self) -> None:
        self._group.forget_offsets()
        self._restart()

    def _foreign_commit(self) -> None:
        """A console consumer with the group's id commits where nobody has read to. Before a source
        has a position of its own, that would count.
        """
        self._settle()
        offsets = self._group._cluster.coordinators.offsets.setdefault(NAME, {})
        for topic in sorted({topic for part in self._parts for topic in part.sources}):
            for partition in range(self._group._partitions):
                offsets[TopicPartition(topic, partition)] = self._random.randrange(self._group._log(topic, partition).end + 1)
        self._restart()

    def _make_source_again(self) -> None:
        topic = self._random.choice(SOURCES)
        away = self._random.random() < 0.5
        if away:
            self._stop_all()
        self._records[topic] = []
        self._group.make_again(topic)
        for name in ("m1", "m2"):
            if "does not exist" in str(self._group._seats[name].error):  # it was about to start
                self._group.join(name)
        for _ in range(self._random.choice((1, 30))):
            self._write()
        if away:
            self._group.join("m1", "m2")

    def _stop_all(self) -> None:
        for name in ("m1", "m2"):
            if self._group._seats[name].process is not None:
                self._group.crash(name)

    def _make_state_again(self) -> None:
        """One of several: another has the positions. Members are away, as an operator would do."""
        part = self._random.choice([part for part in self._parts if len(part.states) > 1])
        self._lose(part, self._random.choice(part.states))

    def _lose_state(self) -> None:
        """The only one: the task begins again."""
        part = self._random.choice([part for part in self._parts if len(part.states) == 1])
        part.lives += 1
        self._lose(part, part.states[0])

    def _lose(self, part: Part, topic: str) -> None:
        self._settle()  # a commit between the two would be lost
        self._stop_all()
        self._made_again[topic] += 1
        self._group.make_again(topic)
        if self._random.random() < 0.5:
            log = self._group._cluster.topics[topic]
            for each in log.partitions:
                self._group._cluster.append(each, Batch(-1, -1, -1, False, [(b"other", b"0", (), 0)] * 100, 100))
        self._group.join("m1", "m2")

    def _lose_tail(self) -> None:
        """An unclean election loses the last commits to the only changelog of a task, with its
        positions: their records are processed again, and the new commits get their offsets. Copies
        of the lost ones are on all disks.
        """
        part = self._random.choice([part for part in self._parts if len(part.states) == 1])
        (topic,) = part.states
        stays, comes = self._random.sample(["m1", "m2"], 2)
        for name in (stays, comes) if self._random.random() < 0.5 else (comes,):
            if self._group._seats[name].process is not None:
                self._group.crash(name)
        part.lives += 1
        self._cut[topic] += 1
        for partition in range(self._group._partitions):
            log = self._group._log(topic, partition)
            lose_tail(self._group._cluster, TopicPartition(topic, partition), log.end - self._random.choice(_ends_of_commits(log)[-3:]))
        if self._group._seats[stays].process is None:
            self._group.join(stays)
        for _ in range(3):
            self._write()
            self._group.advance(5)
        self._group.join(comes)
        self._group.advance(self._random.choice((0.5, 20.0)))
        self._group.crash(stays)
        self._write()
        self._group.join(stays)

    def _lose_records(self) -> None:
        """An unclean election loses the last records of a source, processed or not, while members
        run or are away. Often as many come as were lost.
        """
        topic = self._random.choice(SOURCES)
        place = TopicPartition(topic, self._random.randrange(self._group._partitions))
        if self._random.random() < 0.8:
            self._settle()
        away = self._random.random() < 0.6
        if away:
            self._stop_all()
        log, count = self._group._log(*place), self._random.choice((1, 2, 5))
        lost = [each.value.decode() for each in log.records[-count:] if each.value is not None]
        self._records[topic] = [each for each in self._records[topic] if each not in lost]
        lose_tail(self._group._cluster, place, count)
        for _ in range(self._random.choice((0, len(lost), len(lost), 8))):
            value = f"r{self._written}"
            self._written += 1
            self._records[topic].append(value)
            self._group.send(value.encode(), topic=topic, partition=place.partition)
        if away:
            self._group.join("m1", "m2")

    def _other_order(self) -> None:
        self._random.shuffle(self._parts)
        self._deploy()

    def _other_sources(self) -> None:
        part = self._random.choice(self._parts)
        part.sources = self._random.choice([["source"], ["second"], ["source", "second"], ["second", "source"]])
        self._deploy()

    def _add_state(self) -> None:
        part = self._random.choice(self._parts)
        part.states = [*part.states, self._new_states.pop(0)]
        self._deploy()

    def _drop_state(self) -> None:
        part = self._random.choice([part for part in self._parts if len(part.states) > 1])
        part.states.remove(self._random.choice(part.states))
        self._deploy()

    def _add_part(self) -> None:
        if self._away and self._random.random() < 0.5:
            part = self._away.pop()
        elif self._names:
            states = [self._new_states.pop(0)] if self._new_states and self._random.random() < 0.5 else []
            part = Part(self._names.pop(0), self._random.sample(SOURCES, self._random.randrange(1, 3)), states)
        else:
            part = self._away.pop()
        self._parts.insert(self._random.randrange(len(self._parts) + 1), part)
        self._deploy()

    def _remove_part(self) -> None:
        self._away.append(self._parts.pop(self._random.randrange(len(self._parts))))
        self._deploy()

    def _grow(self) -> None:
        """Sometimes members are only started again first, and leave the new partitions unread."""
        for topic in (*SOURCES, *STATES, OUTPUT):
            grow_topic(self._group._cluster, topic, GROWN)
        self._group._partitions = GROWN
        if self._random.random() < 0.5:
            self._restart()
            self._write()
        self._deploy()

    # What must hold

    def _calm(self) -> None:
        for name in ("m1", "m2"):
            error = self._group._seats[name].error
            if error is not None:
                self.problems.append(f"{name} ended: {error}")
        self._settle()
        if missing := self._missing():
            self.problems.append(f"not processed: {missing[:5]}, {len(missing)} in all")

    def _settle(self) -> None:
        end_s = self._group.now_s + PROCESSED_S
        while self._missing() and self._group.now_s < end_s:
            self._group.advance(1)
        self._group.advance(2)

    def _processed(self) -> list[tuple[str, str, list[str], int]]:
        """Name, record, counts and partition of each output, in the order of its partition."""
        outputs = [(each.value.decode().split(), each.partition or 0) for each in self._group.outputs(OUTPUT)]
        return [(words[0], words[1], words[2:], partition) for words, partition in outputs]

    def _missing(self) -> list[tuple[str, str]]:
        processed = {(name, record) for name, record, _, _ in self._processed()}
        return [
            (part.name, record)
            for part in self._parts
            for topic in part.sources
            for record in self._records[topic]
            if (part.name, record) not in processed
        ]

    def _compare(self) -> None:
        lives = {part.name: part.lives for part in (*self._parts, *self._away)}
        processed = self._processed()
        if mistaken := [record for name, record, *_ in processed if name == MISTAKEN]:
            self.problems.append(f"a member that must not be let in has processed {mistaken[:5]}")
        if self._guarantee == "at_least_once":
            return
        for (name, record), times in Counter((name, record) for name, record, _, _ in processed if name != MISTAKEN).items():
            if times > lives[name]:
                self.problems.append(f"{name} has processed {record} {times} times")
        last: dict[tuple[str, int], int] = {}
        begun: Counter[tuple[str, int]] = Counter()
        went_back: Counter[tuple[str, int]] = Counter()
        for name, record, counts, partition in processed:
            for each in counts:
                state, _, numbers = each.partition("=")
                place, (count, different) = (state, partition), map(int, numbers.split("/"))
                if count != different:
                    self.problems.append(f"{name}, record {record}: {state}/{partition} counts {count}, of {different} records")
                if count == 1:
                    begun[place] += 1
                elif count <= last.get(place, 0) and went_back[place] < self._cut[state]:
                    went_back[place] += 1
                elif count != last.get(place, 0) + 1:
                    self.problems.append(f"{name}, record {record}: {state}/{partition} counts {count} after {last.get(place, 0)}")
                last[place] = count
        for (state, partition), times in begun.items():
            if times > 1 + self._made_again[state] + self._cut[state]:
                self.problems.append(f"{state}/{partition} has begun {times} times")


def _ends_of_commits(log: PartitionLog) -> list[int]:
    """Offsets before which no transaction is open."""
    ends, is_open = [log.start], set[int]()
    for index, record in enumerate(log.records):
        if record.batch.marker is not None:
            is_open.discard(record.batch.producer_id)
        elif record.batch.transactional:
            is_open.add(record.batch.producer_id)
        is_last = index + 1 == len(log.records) or log.records[index + 1].batch is not record.batch
        if is_last and not is_open:
            ends.append(record.offset + 1)
    return ends


def run_deploys(seed: int, changes: int = 6) -> DeployStorm:
    """Even seeds run with at_least_once, odd ones with exactly_once."""
    storm, level = DeployStorm(seed, GUARANTEES[seed % 2]), logging.root.manager.disable
    if not logging.getLogger("equipoise").isEnabledFor(logging.DEBUG):
        logging.disable(logging.CRITICAL)
    try:
        storm.run(changes)
    except Exception as error:  # noqa: BLE001  # the other seeds go on
        storm.problems.append(repr(error))
    finally:
        logging.disable(level)
    return storm


@click.command()
@click.option("--seeds", default="1..20", show_default=True, help="A..B, or one seed.")
@click.option("--changes", default=6, show_default=True, help="Of one seed.")
@click.option("-v", "--verbose", is_flag=True, help="Print what was done.")
def main(seeds: str, changes: int, verbose: bool) -> None:
    """Storms of deploys. Exit code 1: something does not hold."""
    if verbose:
        logging.basicConfig(level=logging.DEBUG, format="%(name)s %(message)s", stream=sys.stderr)
    first, _, last = seeds.partition("..")
    failed = []
    for seed in range(int(first), int(last or first) + 1):
        began_s = time.perf_counter()
        storm = run_deploys(seed, changes)
        if storm.problems or verbose:
            click.echo("\n".join((*storm.trace, *storm.problems[:10])))
        failed += [seed] if storm.problems else []
        click.echo(f"seed {seed}: {'holds' if not storm.problems else f'{len(storm.problems)} PROBLEMS'}; {time.perf_counter() - began_s:.1f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
