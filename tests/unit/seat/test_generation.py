"""One generation, from what members said to what each is assigned, on a real log."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from random import Random

import attrs
import pytest

from equipoise.cli.lead import configuration
from equipoise.events.errors import InputError
from equipoise.hosting.runtime import DEPLOYED, Runtime
from equipoise.kafka.embedded_protocol import SeatSubscription, TopicPartition
from equipoise.lead.seat.generation import Answer, JoinedClient, SeatSettings, answer, without_doubles
from equipoise.lead.seat.log import SeatLog, assigned_changes
from equipoise.lead.seat.metadata import SeatTopicMetadata
from equipoise.lead.seat.names import client_of
from equipoise.log import open_log
from equipoise.replay.verification import Verdict, verify
from equipoise.testing.simulated.machines import Machine, SimulatedProcess
from equipoise.testing.simulated.virtual_loops import MS_US, Scheduler

PARTITIONS = 6
Held = frozenset[TopicPartition]


def places(*partitions: int) -> Held:
    return frozenset(("in", each) for each in partitions)


class Group:
    """A group of clients a, b, c, ..., which have what they were assigned last."""

    def __init__(self, folder: Path, *settings: str, hold_ms: int = 0, eager: bool = True, runtime: Runtime = DEPLOYED, **capacities: int) -> None:
        self.log = SeatLog(folder / "group.db", "orders", runtime)
        self.log.configure(configuration(settings))
        self.settings = SeatSettings(hold_ms=hold_ms, capacities=capacities)
        self.eager = eager
        self.has: dict[str, Held] = {}
        self.number = 0
        self.processes: dict[str, int] = {}

    def key(self, name: str) -> str:
        return f"{name}-{uuid.UUID(int=self.processes.get(name, 0))}"

    def joined(self, name: str) -> JoinedClient:
        held = self.has.get(self.key(name), frozenset())
        owned: Held = frozenset() if self.eager else held
        return JoinedClient(client=client_of(self.key(name), None), subscription=SeatSubscription(topics=("in",), owned=owned), held=held)

    def generation(
        self, *names: str, lags: dict[TopicPartition, int] | None = None, partitions: int = PARTITIONS, before: tuple[JoinedClient, ...] = ()
    ) -> Answer:
        self.number += 1
        joined = [self.joined(name) for name in names]
        metadata = SeatTopicMetadata(counts={"in": partitions}, racks={})
        protocol = "range" if self.eager else "cooperative-sticky"
        found = answer(
            self.log,
            self.settings,
            number=self.number,
            protocol=protocol,
            eager=self.eager,
            joined=joined,
            metadata=metadata,
            lags=lags or {},
            before=before,
        )
        self.has = {key: frozenset((topic, each) for topic, of in assigned.items() for each in of) for key, assigned in found.assigned.items()}
        return found

    def counts(self) -> list[int]:
        return sorted(map(len, self.has.values()))

    def of(self, name: str) -> Held:
        return self.has[self.key(name)]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    with open_log(tmp_path / "group.db") as log:
        assert verify(log.read()).verdict is Verdict.IDENTICAL


def test_options_of_an_assignor_are_settings(folder: Path) -> None:
    for written in ("options.cross_topic=true", "cross_topic=true"):
        config = configuration(("assignor=lag_aware", written, "max_warmups=1_000", "rack_aware_tags=zone,host"))
        assert (config.knobs.options, config.knobs.max_warmups, config.knobs.rack_aware_tags) == ({"cross_topic": True}, 1_000, ("zone", "host"))
    log = SeatLog(folder / "group.db", "orders")
    unsound = attrs.evolve(config, knobs=attrs.evolve(config.knobs, options={"cross_topic": 1}))
    with pytest.raises(InputError, match=r"^--set: the settings were refused: config\.options\.cross_topic: 1 is neither true nor false$"):
        log.configure(unsound)


def test_answer_eager_hands_over_in_one_generation_and_moves_the_fewest(folder: Path) -> None:
    group = Group(folder)
    group.generation("a", "b")
    before = dict(group.has)
    group.generation("a", "b", "c")
    assert group.counts() == [2, 2, 2]
    assert group.of("a") < before[group.key("a")]
    assert group.of("b") < before[group.key("b")]
    group.log.close()


def test_answer_cooperative_gives_nothing_that_another_still_reads(folder: Path) -> None:
    group = Group(folder, eager=False)
    group.generation("a", "b")
    group.generation("a", "b", "c")
    assert group.counts() == [0, 2, 2]
    group.generation("a", "b", "c")
    assert group.counts() == [2, 2, 2]
    group.log.close()


def test_answer_that_a_cooperative_member_was_never_told_holds_nothing_back(folder: Path) -> None:
    """The next member joined before the first one had its answer, so the first has nothing to give
    up, and would begin no generation.
    """
    group = Group(folder, eager=False)
    group.generation("a")
    group.has.clear()
    group.generation("a", "b", "c")
    assert group.counts() == [2, 2, 2]
    group.log.close()


@pytest.mark.parametrize("eager", [True, False])
def test_answer_hold_waits_and_gives_back(folder: Path, eager: bool) -> None:
    group = Group(folder, eager=eager, hold_ms=60_000)
    group.generation("a", "b", "c")
    before = group.of("b")
    assert group.generation("a", "c").waiting == ("b",)
    assert group.counts() == [2, 2]
    group.processes["b"] = 1
    assert group.generation("a", "b", "c").waiting == ()
    assert group.of("b") == before
    group.log.close()


def test_answer_without_hold_gives_what_is_free_to_the_others(folder: Path) -> None:
    group = Group(folder)
    group.generation("a", "b", "c")
    group.generation("a", "c")
    assert group.counts() == [3, 3]
    assert group.of("a") | group.of("c") == places(*range(PARTITIONS))
    group.log.close()


def test_answer_new_partitions_move_nothing_else(folder: Path) -> None:
    group = Group(folder)
    group.generation("a", "b")
    before = dict(group.has)
    group.generation("a", "b", partitions=10)
    assert group.counts() == [5, 5]
    assert group.of("a") > before[group.key("a")]
    group.log.close()


def test_answer_takes_over_what_another_leader_assigned(folder: Path) -> None:
    group = Group(folder)
    group.generation("a", "b")
    group.has = {group.key("a"): places(1, 3, 5), group.key("b"): places(0, 2, 4)}
    taken = dict(group.has)
    group.generation("a", "b")
    assert group.has == taken
    group.log.close()


@pytest.mark.parametrize("eager", [True, False])
def test_answer_waits_for_the_member_that_led_before_and_is_gone(folder: Path, eager: bool) -> None:
    group = Group(folder, eager=eager, hold_ms=60_000)
    group.has = {group.key("a"): places(1, 3, 5), group.key("b"): places(0, 2, 4)}
    before = group.joined("a"), group.joined("b")
    assert group.generation("b", before=before).waiting == ("a",)
    assert group.of("b") == places(0, 2, 4)
    group.processes["a"] = 1
    group.generation("a", "b")
    assert group.of("a") == places(1, 3, 5)
    group.log.close()


def test_answer_member_that_led_before_and_is_back_already_has_its_partitions(folder: Path) -> None:
    group = Group(folder, hold_ms=60_000)
    group.has = {group.key("a"): places(1, 3, 5), group.key("b"): places(0, 2, 4)}
    before = group.joined("a"), group.joined("b")
    group.processes["a"] = 1
    group.generation("a", "b", before=before)
    assert group.of("a") == places(1, 3, 5)
    group.log.close()


def test_answer_capacity_gives_more(folder: Path) -> None:
    group = Group(folder, a=2)
    group.generation("a", "b")
    assert (len(group.of("a")), len(group.of("b"))) == (4, 2)
    group.log.close()


def test_answer_lag_aware_deals_by_lags(folder: Path) -> None:
    group = Group(folder, "assignor=lag_aware")
    group.generation("a", "b", lags={("in", 3): 1_000, ("in", 4): 900, ("in", 5): 800, ("in", 0): 700})
    behind = {3: 1_000, 4: 900, 5: 800, 0: 700}
    assert sorted(sum(behind.get(partition, 0) for _, partition in group.of(name)) for name in "ab") == [1_700, 1_700]
    group.log.close()


def test_group_deals_by_itself_by_the_lags_of_the_moment(folder: Path) -> None:
    """Uneven at both looks: what moves begins a generation. By lags of the last generation alone
    nothing would, or something that is over.
    """
    time = Scheduler(seed=1)
    seat = SimulatedProcess(time, Machine("m", folder / "disk", Random(1)), "seat", ended=lambda error: None)
    group = Group(folder, "assignor=lag_aware", "deal_after_ms=60000", "probing_interval_ms=60_000", runtime=seat)
    group.generation("a", "b", lags={("in", number): 0 for number in range(6)})
    hot = sorted(group.of("a"))
    lags = {place: 100_000 if place in hot[:2] else 0 for place in [*hot, *group.of("b")]}
    decided = []
    for _ in range(2):
        assert not group.log.is_due()
        time.run(time.now_us + 60_001 * MS_US)
        assert group.log.is_due()
        decided.append(assigned_changes(group.log.tick(lags)))
    assert decided == [False, True]
    group.generation("a", "b", lags=lags)
    behind = [sum(lags[place] for place in group.of(name)) for name in "ab"]
    assert behind == [100_000, 100_000]
    assert group.counts() == [3, 3]
    group.log.close()
    time.dispose()


def test_log_is_taken_up_again_with_names_and_owners(folder: Path) -> None:
    group = Group(folder, hold_ms=60_000)
    group.generation("a", "b")
    before, names = dict(group.has), group.log.names.present()
    group.log.close()
    again = Group(folder, hold_ms=60_000)
    again.has, again.number = before, group.number
    assert again.log.names.present() == names
    again.generation("a", "b")
    assert again.has == before
    again.log.close()


def test_log_of_another_group_is_refused(folder: Path) -> None:
    Group(folder).log.close()
    with pytest.raises(InputError, match="is the log of group 'orders'"):
        SeatLog(folder / "group.db", "payments")


def test_log_that_another_seat_has_is_refused_until_that_ends(folder: Path) -> None:
    with SeatLog(folder / "group.db", "orders"), pytest.raises(InputError, match="another process leads group 'orders' with this log"):
        SeatLog(folder / "group.db", "orders")
    SeatLog(folder / "group.db", "orders").close()
    assert [each.name for each in folder.iterdir()] == ["group.db"]


def test_log_whose_folder_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing/group\.db: No such file or directory"):
        SeatLog(tmp_path / "missing" / "group.db", "orders")


def test_configuration_with_an_option_that_there_is_not_is_refused(folder: Path) -> None:
    with SeatLog(folder / "group.db", "orders") as log, pytest.raises(InputError, match="--set"):
        log.configure(configuration(("nonsense=1",)))


def test_without_doubles_newest_generation_has_it() -> None:
    def owning(generation: int, *partitions: int) -> SeatSubscription:
        return SeatSubscription(topics=("in",), owned=places(*partitions), generation=generation)

    owned = without_doubles({"a": owning(3, 0, 1), "b": owning(4, 1, 2), "c": owning(4, 2)})
    assert owned == {"a": places(0), "b": places(1), "c": frozenset()}
