"""The topic of bases: what is found in it, whatever compaction, damage and other writers leave."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import attrs
import msgpack
import pytest

from equipoise.events.errors import DamagedError, GapError, RepeatError
from equipoise.events.facts import LogOpened, ProbingTick
from equipoise.log.kafka import bases_topic as module
from equipoise.log.kafka.bases_topic import Base, Bases, archive_record, beginning, halted_record, opening_record, opening_row, state_records
from equipoise.log.kafka.envelope import pack_fact
from equipoise.log.rows import BaseRow, Order

OPENED = LogOpened(log_id="log-1", partitions=2)
Pair = tuple[bytes, bytes | None]


def state(group: str, offset: int) -> bytes:
    return f"state of {group} at {offset}".encode()


def base(position: int, groups: dict[str, int], *, previous: str = "", decisions: int | None = None, log_id: str = "log-1", form: int = 4) -> Base:
    places = {group: (offset, offset * 2, form, hashlib.sha256(state(group, offset)).hexdigest()) for group, offset in groups.items()}
    return Base(
        log_id=log_id,
        position=position,
        append_ms=position * 1_000,
        facts_offset=min(groups.values()) + 1,
        decisions_offset=position if decisions is None else decisions,
        interval_bytes=100,
        previous=previous,
        groups=places,
    )


def records(each: Base) -> list[Pair]:
    states = [record for group, place in each.groups.items() for record in state_records("log-1", group, place[0], place[2], state(group, place[0]))]
    return [*states, *each.records()]


def found(pairs: Iterable[Pair], *, keep_states: bool = True) -> Bases:
    bases = Bases("log-1", keep_states=keep_states)
    for key, value in pairs:
        bases.take(key, value)
    return bases


FIRST = base(10, {"a": 8, "b": 9})
SECOND = base(20, {"a": 18, "b": 19}, previous=FIRST.sha256)
THIRD = base(30, {"a": 28, "b": 29}, previous=SECOND.sha256)
ALL = [opening_record(5, OPENED), *records(FIRST), *records(SECOND), *records(THIRD)]


@pytest.mark.parametrize("keep_states", [True, False])
def test_bases_are_found_by_position_and_chain(keep_states: bool) -> None:
    bases = found(ALL, keep_states=keep_states)
    assert bases.stored == [FIRST, SECOND, THIRD]
    assert (bases.broken_chain(), [bases.damage(each) for each in bases.stored]) == ("", ["", "", ""])
    assert bases.opened is not None
    assert bases.opened == opening_row(*opening_record(5, OPENED))


def test_states_and_bases_in_several_parts_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 7)
    pairs = [*records(FIRST)]
    assert len(pairs) > 20
    bases = found(pairs)
    assert (bases.stored, bases.damage(FIRST)) == ([FIRST], "")
    assert bases.state("b", FIRST.groups["b"]) == state("b", 9)
    for cut in range(len(pairs)):
        part = found(pairs[:cut] + pairs[cut + 1 :])
        assert not part.stored or part.damage(FIRST)


def test_state_with_another_hash_makes_its_base_unusable() -> None:
    (key, _), *_ = state_records("log-1", "a", 18, 4, state("a", 18))
    wrong = next(iter(state_records("log-1", "a", 18, 4, b"something else")))[1]
    bases = found([*ALL, (key, wrong)])
    assert bases.damage(SECOND) == "the state of group 'a' after the fact at 18 is missing or damaged"
    assert bases.first(9, 0) == FIRST
    assert bases.first(10, 0) == THIRD
    assert [each.group for each in bases.rows(THIRD)] == ["a", "b"]


@pytest.mark.parametrize(
    ("facts", "decisions", "expected"),
    [
        (0, 0, FIRST),
        (9, 10, FIRST),
        (10, 0, SECOND),
        (0, 11, SECOND),
        (19, 20, SECOND),
        (20, 20, THIRD),
        (29, 30, THIRD),
        (30, 0, None),
        (0, 31, None),
    ],
)
def test_reading_begins_at_the_oldest_base_whose_records_are_there(facts: int, decisions: int, expected: Base | None) -> None:
    bases = found(ALL)
    assert bases.first(facts, decisions) == expected
    if expected is None:
        with pytest.raises(DamagedError, match="its newest base is at offset 30: records behind every base were deleted"):
            beginning(bases, facts, decisions, "t.facts/0")
    else:
        assert beginning(bases, facts, decisions, "t.facts/0") == expected


def test_log_without_a_base_says_so() -> None:
    with pytest.raises(DamagedError, match="it has no base"):
        beginning(found([]), 5, 0, "t.facts/0")
    only = found(records(FIRST))  # LogOpened is missing
    with pytest.raises(DamagedError, match="its newest base is at offset 10"):
        beginning(only, 5, 0, "t.facts/0")


def test_build_begins_at_the_newest_base_in_a_form_that_it_reads() -> None:
    newer = base(40, {"a": 38, "b": 39}, previous=THIRD.sha256, form=5)
    bases = found([*ALL, *records(newer)])
    assert bases.last(0, 0, reads=lambda form: form <= 4) == THIRD
    assert bases.last(0, 0, reads=lambda form: True) == newer
    assert bases.last(30, 0, reads=lambda form: form <= 4) is None
    assert bases.first(0, 0) == FIRST


def test_chain_that_is_broken_is_named() -> None:
    other = base(25, {"a": 22, "b": 23}, previous="0" * 64)
    assert found([*ALL, *records(other)]).broken_chain() == "the base at offset 25 does not name one before it"
    beside = base(31, {"a": 28, "b": 29}, previous=SECOND.sha256, decisions=29)  # of a worker that was paused
    assert found([*ALL, *records(beside)]).broken_chain() == ""
    assert found([*records(SECOND), *records(THIRD)]).broken_chain() == ""  # the oldest one that is left


def test_tombstones_take_a_base_and_the_states_that_only_it_names() -> None:
    halted = base(30, {"a": 28, "b": 9}, previous=SECOND.sha256)  # b has halted behind its first state
    bases = found([*records(FIRST), *records(SECOND), *records(halted)])
    gone = bases.keys_of(FIRST) + bases.keys_of(SECOND) + bases.states_before(halted)
    assert len(gone) == 5
    for key in gone:
        bases.take(key, None)
    assert (bases.stored, bases.damage(halted)) == ([halted], "")
    assert bases.states_before(halted) == []


def test_states_of_a_round_under_way_are_kept() -> None:
    bases = found([*ALL, *state_records("log-1", "a", 35, 4, b"x")])
    assert {msgpack.unpackb(key)[2] for key in bases.states_before(THIRD)} == {8, 9, 18, 19}


def test_positions_of_archives_are_the_last_ones() -> None:
    pairs = [archive_record("log-1", "nightly", 5, 1), archive_record("log-1", "nightly", 9, 2), archive_record("log-1", "other", 3, 3)]
    assert found(pairs).archives == {"nightly": (9, 2), "other": (3, 3)}
    assert found([*pairs, (pairs[0][0], None)]).archives == {"other": (3, 3)}


def test_groups_that_have_halted_are_known_until_they_are_led_again() -> None:
    pairs = [halted_record("log-1", "a", 7), halted_record("log-1", "b", 5), halted_record("log-2", "c", 4)]
    assert found(pairs).halted == {"a": 7, "b": 5}
    assert found([*pairs, halted_record("log-1", "b", None)]).halted == {"a": 7}


def test_records_of_another_log_and_other_bytes_are_ignored() -> None:
    other = base(15, {"a": 12}, log_id="log-2")
    strange: list[Pair] = [
        (b"", b""),
        (b"\xc1", b"x"),
        (msgpack.packb(["base", -1, "x", 0]), b"x"),
        (msgpack.packb(["base", 10, FIRST.sha256, 1]), msgpack.packb([1])),
        (msgpack.packb(["state", "a", 1]), b"x"),
        (msgpack.packb(["opened"]), msgpack.packb([5, pack_fact(ProbingTick())])),
        (msgpack.packb(["opened"]), b"x"),
        (msgpack.packb(["archive", 1]), b"x"),
        archive_record("log-2", "nightly", 5, 1),
        *records(other),
        *((key, msgpack.packb(["log-1", 1, b"not a base"])) for key, _ in FIRST.records()),
    ]
    bases = found(strange)
    assert (bases.stored, bases.archives, bases.opened) == ([], {}, None)
    assert found([*strange, *ALL]).stored == [FIRST, SECOND, THIRD]


def test_base_with_other_content_under_its_key_is_ignored() -> None:
    (key, value), *_ = FIRST.records()
    wrong = attrs.evolve(FIRST, facts_offset=1)
    assert found([(key, next(iter(wrong.records()))[1])]).stored == []
    assert found([(key, value)]).stored == [FIRST]


# ----------------------------------------------------------------------------------------- the rows


def ordered() -> Order:
    order = Order()
    row = opening_row(*opening_record(5, OPENED))
    assert row is not None
    order.take(row)
    return order


def test_order_goes_on_at_the_first_fact_behind_the_base() -> None:
    order = ordered()
    order.take(BaseRow.of("a", 18, 36, 10, 7, b"s"))
    order.take(BaseRow.of("b", 9, 4, 10, 7, b"s"))
    assert (order.position, order.begins_offset, order.numbers) == (10, 10, {"a": 36, "b": 4})


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([BaseRow.of("a", 8, 1, 10, 7, b"s")] * 2, RepeatError),
        ([BaseRow.of("a", 8, 1, 10, 7, b"s"), BaseRow.of("b", 8, 1, 11, 7, b"s")], DamagedError),
        ([BaseRow.of("", 8, 1, 10, 7, b"s")], DamagedError),
        ([BaseRow.of("a", 8, 1, 0, 7, b"s")], DamagedError),
        ([attrs.evolve(BaseRow.of("a", 8, 1, 10, 7, b"s"), checksum=1)], DamagedError),
        ([attrs.evolve(BaseRow.of("a", 8, 1, 10, 7, b"s"), offset=9)], DamagedError),
    ],
)
def test_order_refuses_rows_of_a_base_that_do_not_belong_together(rows: list[BaseRow], kind: type[Exception]) -> None:
    order = ordered()
    for row in rows[:-1]:
        order.take(row)
    with pytest.raises(kind):
        order.take(rows[-1])


def test_order_that_is_behind_the_base_of_its_source_has_a_gap() -> None:
    order = ordered()
    order.position = 5
    with pytest.raises(GapError, match="begins at the base at offset 10"):
        order.take(BaseRow.of("a", 8, 1, 10, 7, b"s"))
    with pytest.raises(RepeatError):
        Order().take(BaseRow.of("a", 8, 1, 10, 7, b"s"))
