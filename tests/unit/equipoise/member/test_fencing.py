"""Which records of a changelog count, and that every restore of it gives the same state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.events.errors import InputError
from equipoise.member.copies.fencing import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    FENCE_KEY,
    GIVEN_BACK,
    MOST_STALE_KEYS,
    SOURCES_KEY,
    ChangelogFence,
    ChangelogOwner,
    ChangelogRecord,
    FencedStore,
    claim,
    fence_value,
)
from equipoise.member.copies.origin import EPOCH_HEADER, LOG_HEADER, ORIGIN_HEADER, Origin, read_origin
from equipoise.member.copies.stores import PROGRESS_KEY, MemoryStore, OpenStore, RocksStore

BOTH_STORES = pytest.mark.parametrize("open_store", [MemoryStore, RocksStore])


def granted(token: int, log_id: str = "log1", task: str = "0_0", group: str = "g", epoch: int = 0) -> Origin:
    return Origin(epoch, log_id, group, task, token)


def fence(origin: Origin, guarantee: str = AT_LEAST_ONCE) -> ChangelogRecord:
    return ChangelogRecord(FENCE_KEY, guarantee.encode(), origin.headers)


def put(origin: Origin, value: bytes, key: bytes = b"k") -> ChangelogRecord:
    return ChangelogRecord(key, value, origin.headers)


def former(token: int, value: bytes, key: bytes = b"k", task: str = "0_0") -> ChangelogRecord:
    """A record of a build without epochs and fences."""
    return ChangelogRecord(key, value, ((ORIGIN_HEADER, f"g/{task}/{token}".encode()),))


def restored(records: list[ChangelogRecord]) -> tuple[dict[bytes, bytes], ChangelogFence]:
    """The application's values and the source offsets in a store made of `records`, and the fence
    after them.
    """
    fenced = FencedStore(MemoryStore(), "log/0")
    fenced.apply(records, offset=len(records))
    return {key: value for key, value in fenced.store.items() if key != FENCE_KEY}, fenced.fence


# ------------------------------------------------------------------------------------------ origins


def test_origin_round_trips_through_headers() -> None:
    for origin in (granted(17, epoch=3), granted(1), granted(2, group="a/b"), granted(2, group="", log_id="")):
        assert read_origin((("other", b"9"), *origin.headers)) == origin
    assert granted(17, epoch=3, log_id="ab", group="a/b").headers == ((ORIGIN_HEADER, b"a/b/0_0/17/3/ab"),)


def test_origins_of_former_builds_are_read() -> None:
    token, log = (ORIGIN_HEADER, b"a/b/c/0_0/17"), (LOG_HEADER, b"ab")
    assert read_origin((token, log, (EPOCH_HEADER, b"3"))) == granted(17, epoch=3, log_id="ab", group="a/b/c")
    assert read_origin((token, log)) == granted(17, log_id="ab", group="a/b/c")
    assert read_origin(((ORIGIN_HEADER, b"g/0_0/17"),)) == granted(17, log_id="")


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("x", b"g/0_0/1"),),
        ((ORIGIN_HEADER, b"g/0_0/"),),
        ((ORIGIN_HEADER, b"g/0_0/x"),),
        ((ORIGIN_HEADER, b"\xff"),),
        ((ORIGIN_HEADER, None),),
        ((ORIGIN_HEADER, b"g/0_0/1"), (EPOCH_HEADER, b"x")),
        ((ORIGIN_HEADER, b"g/0_0/1/x/ab"),),
    ],
)
def test_malformed_headers_name_no_origin(headers: tuple) -> None:
    assert read_origin(headers) is None


# ------------------------------------------------------------------------------ which records count


def test_record_after_a_later_owners_fence_is_dropped() -> None:
    first, second = granted(1, epoch=1), granted(2, epoch=1)
    values, after = restored([fence(first), put(first, b"1"), put(first, b"in time"), fence(second), put(first, b"late")])
    assert values == {b"k": b"in time"}
    assert (after.owner, after.dropped_records, after.stale_keys) == (ChangelogOwner(second, AT_LEAST_ONCE), 1, {b"k"})


def test_late_fence_is_dropped() -> None:
    first, second = granted(1, epoch=1), granted(2, epoch=1)
    values, after = restored([fence(second), put(second, b"2"), fence(first, EXACTLY_ONCE), put(second, b"3")])
    assert values == {b"k": b"3"}
    assert (after.owner, after.stale_keys) == (ChangelogOwner(second, AT_LEAST_ONCE), {FENCE_KEY})


@pytest.mark.parametrize(
    "before",
    [
        [],
        [fence(granted(2, epoch=1))],
        [fence(granted(2, epoch=1)), put(granted(1, epoch=1), b"late")],
        [fence(granted(3, epoch=1))],
        [former(1, b"1")],
    ],
    ids=["nothing", "its fence", "a stale key", "a later fence", "a former build"],
)
@pytest.mark.parametrize("changes", [{b"k": b"new", b"gone": None}, {FENCE_KEY: GIVEN_BACK, b"other": b"1"}], ids=["changes", "the last commit"])
@pytest.mark.parametrize("origin", [granted(2, epoch=1), granted(2)], ids=["an epoch", "none"])
def test_commit_is_applied_as_its_records_are(before: list[ChangelogRecord], changes: dict[bytes, bytes | None], origin: Origin) -> None:
    at_once, by_record = FencedStore(MemoryStore(), "log/0"), FencedStore(MemoryStore(), "log/0")
    for each in (at_once, by_record):
        each.apply(before, offset=len(before))
    at_once.apply_written(changes, origin.headers, offset=9)
    by_record.apply([ChangelogRecord(key, value, origin.headers) for key, value in changes.items()], offset=9)
    assert list(at_once.store.items()) == list(by_record.store.items())
    assert (at_once.fence.pack(), at_once.offset) == (by_record.fence.pack(), by_record.offset)


@pytest.mark.parametrize("other", [{"log_id": "log0"}, {"task": "1_0"}, {"group": "f"}])
def test_claim_by_another_writer_raises_the_epoch_whatever_its_token(other: dict[str, Any]) -> None:
    """A new log counts tokens from 1; so does a task that a new topology has renumbered."""
    records: list[ChangelogRecord] = []
    origins = []
    for grant, value in ((granted(50), b"a"), (granted(1, **other), b"b"), (granted(51), b"c"), (granted(2, **other), b"d")):
        origin = claim(restored(records)[1].owner, grant)
        origins.append(origin)
        records += [fence(origin), put(origin, value)]
        assert restored(records)[0] == {b"k": value}
    assert [origin.epoch for origin in origins] == [1, 2, 3, 4]
    for late in origins[:-1]:
        assert restored([*records, put(late, b"late"), fence(late), put(late, b"late")])[0] == {b"k": b"d"}


def test_grant_of_the_same_writer_keeps_the_epoch() -> None:
    first = claim(None, granted(3))
    assert first == granted(3, epoch=1)
    assert claim(ChangelogOwner(first), granted(9)) == granted(9, epoch=1)
    assert claim(ChangelogOwner(first), granted(1, log_id="log2")) == granted(1, log_id="log2", epoch=2)
    assert ChangelogOwner(granted(4, epoch=1)).outranks(granted(3))
    assert not ChangelogOwner(granted(3, epoch=1)).outranks(granted(3))
    assert not ChangelogOwner(granted(4, epoch=1)).outranks(granted(3, log_id="log2"))


def test_owner_names_the_transactional_id_that_it_may_have_left_open() -> None:
    grant = granted(1, epoch=1)

    def left_open(value: bytes) -> str:
        _, after = restored([ChangelogRecord(FENCE_KEY, value, grant.headers)])
        assert after.owner is not None
        assert ChangelogFence.unpack(after.pack()).owner == after.owner
        return after.owner.transactional_id

    assert left_open(fence_value("g/m1/7")) == "g/m1/7"
    assert left_open(EXACTLY_ONCE.encode()) == "g/0_0"  # of a former build
    for value in (fence_value(None), GIVEN_BACK, b"another", b"\xff"):
        assert left_open(value) == ""


def test_records_without_an_owner_count() -> None:
    owner = granted(2, epoch=1)
    values, after = restored([ChangelogRecord(b"a", b"1"), fence(owner), ChangelogRecord(b"b", b"2"), ChangelogRecord(b"a", None)])
    assert values == {b"b": b"2"}
    assert after.owner == ChangelogOwner(owner, AT_LEAST_ONCE)


def test_keys_whose_last_record_does_not_count_are_stale() -> None:
    first, second = granted(1, epoch=1), granted(2, epoch=1)
    fenced = FencedStore(MemoryStore(), "log/0")
    late = [put(first, b"late", key) for key in (b"a", b"b", b"c", SOURCES_KEY)]
    fenced.apply([fence(first), put(first, b"1", b"a"), put(first, b"2", b"b"), fence(second), *late], offset=7)
    assert fenced.stale_changes() == [(b"a", b"1"), (b"b", b"2"), (b"c", None)]
    fenced.apply([put(second, b"3", b"b"), ChangelogRecord(b"c", None, second.headers)], offset=9)
    assert fenced.stale_changes() == [(b"a", b"1")]
    fenced.apply([put(first, b"late", b"%d" % number) for number in range(MOST_STALE_KEYS + 5)], offset=10_100)
    assert len(fenced.fence.stale_keys) == MOST_STALE_KEYS


# ------------------------------------------------------------------- changelogs of the former build


def test_tokens_without_fences_compare_within_group_and_task() -> None:
    assert restored([former(3, b"a"), former(5, b"b"), former(3, b"late")])[0] == {b"k": b"b"}
    renumbered = [former(50, b"0"), former(4, b"1", task="1_0"), former(4, b"2", task="1_0"), former(3, b"late", task="1_0")]
    values, after = restored(renumbered)
    assert values == {b"k": b"2"}
    assert after.dropped_records == 1


def test_first_fence_takes_over_and_unfenced_writers_go_on_by_token() -> None:
    origin = claim(restored([former(5, b"a")])[1].owner, granted(6))
    assert origin == granted(6, epoch=1)
    records = [former(5, b"a"), fence(origin), former(5, b"late"), put(origin, b"b"), former(7, b"c"), put(origin, b"late"), former(7, b"d")]
    values, after = restored(records)
    assert values == {b"k": b"d"}
    assert after.owner is not None
    assert claim(after.owner, granted(8)) == granted(8, epoch=1)
    assert restored([*records, former(9, b"of another task", task="1_0")])[0] == {b"k": b"d"}


def test_source_positions_expire_once_the_former_build_wrote_without_them() -> None:
    at_least_once = [former(1, b"a"), former(1, b"10", SOURCES_KEY)]
    values, after = restored(at_least_once)
    assert values[SOURCES_KEY] == b"10"
    assert after.owner == ChangelogOwner(Origin(0, "", "g", "0_0", 1), AT_LEAST_ONCE)
    values, after = restored([*at_least_once, former(2, b"b")])
    assert values == {b"k": b"b"}
    assert after.owner is not None
    assert after.owner.guarantee == EXACTLY_ONCE
    first = granted(3, epoch=1)
    records = [fence(first, EXACTLY_ONCE), put(first, b"20", SOURCES_KEY), put(first, b"c"), former(4, b"d")]
    assert restored(records[:3])[0] == {b"k": b"c", SOURCES_KEY: b"20"}
    assert restored(records)[0] == {b"k": b"d"}


# ------------------------------------------------------------------------------------------- stores


@BOTH_STORES
def test_fence_state_is_stored_with_the_offset(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    first, second = granted(1, epoch=1), granted(2, epoch=1)
    FencedStore(store, "log/0").apply([fence(first), put(first, b"1"), fence(second, EXACTLY_ONCE), put(first, b"late")], offset=4)
    if store.lasting:
        store.close()
        store = open_store(tmp_path / "store")
    again = FencedStore(store, "log/0")
    assert (again.offset, again.fence.owner, again.stale_changes()) == (4, ChangelogOwner(second, EXACTLY_ONCE), [(b"k", b"1")])
    again.apply([put(first, b"late")], offset=5)
    assert store.get(b"k") == b"1"
    again.wipe()
    assert (again.offset, again.fence.owner, list(store.items())) == (0, None, [])
    store.close()


def test_store_of_the_former_build_is_restored_from_scratch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import rocksdict

    before = rocksdict.Rdict(str(tmp_path), rocksdict.Options(raw_mode=True))
    before[PROGRESS_KEY] = (17).to_bytes(8) + (3).to_bytes(8)  # offset and token
    before[b"k"] = b"1"
    before.close()
    store = RocksStore(tmp_path)
    assert (store.offset, list(store.items())) == (0, [])
    assert "was written by a build without fences: restoring it from the beginning" in caplog.text
    store.close()


@pytest.mark.parametrize("unreadable", [b"", b"x", b"\xc1", b"\x93\x02\xc0\x90", b"\x93\x01\x90\x90", b"\x93\x01\x07\x90"])
def test_unreadable_fence_state_restores_from_the_beginning(unreadable: bytes, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    store.apply({b"k": b"1", FENCE_KEY: unreadable}, offset=9)
    fenced = FencedStore(store, "log/0")
    assert (fenced.offset, list(store.items()), fenced.fence.owner) == (0, [], None)
    assert "changelog log/0: the local copy is of another build" in caplog.text


def test_record_without_a_key_is_error() -> None:
    with pytest.raises(InputError, match=r"changelog log/0, before offset 2: a record has no key; only members may write to a changelog"):
        FencedStore(MemoryStore(), "log/0").apply([ChangelogRecord(None, b"1")], offset=2)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------- any interleaving

KEYS = [b"a", b"b", SOURCES_KEY]
WRITERS = [("log1", "0_0"), ("log2", "0_0"), ("log1", "1_0")]


@st.composite
def changelogs(draw: st.DrawFn) -> list[ChangelogRecord]:
    """Owners take over one after the other, each from its restored state. Any of them may wake at
    any time and send its pending records, or the fence of an unused grant.
    """
    records: list[ChangelogRecord] = []
    tokens = dict.fromkeys(WRITERS, 0)
    origins: list[Origin] = []
    for _ in range(draw(st.integers(1, 6))):
        log_id, task = writer = draw(st.sampled_from(WRITERS))
        tokens[writer] += draw(st.integers(1, 2))
        origin = claim(restored(records)[1].owner, granted(tokens[writer], log_id, task))
        if draw(st.booleans()) and origins:  # paused before its fence, which comes late or never
            origins.append(origin)
            continue
        records.append(fence(origin, draw(st.sampled_from([AT_LEAST_ONCE, EXACTLY_ONCE]))))
        origins.append(origin)
        for _ in range(draw(st.integers(0, 5))):
            sender = draw(st.sampled_from([origin, *origins]))
            key = draw(st.sampled_from([*KEYS, FENCE_KEY] if sender != origin else KEYS))
            value = AT_LEAST_ONCE.encode() if key == FENCE_KEY else b"%d" % len(records)
            records.append(ChangelogRecord(key, None if key != FENCE_KEY and draw(st.integers(0, 4)) == 0 else value, sender.headers))
    return records


@given(records=changelogs(), cuts=st.lists(st.integers(0, 40), max_size=4))
def test_restore_resumed_at_any_offset_equals_a_whole_restore(records: list[ChangelogRecord], cuts: list[int]) -> None:
    whole = FencedStore(MemoryStore(), "log/0")
    whole.apply(records, offset=len(records))
    store = MemoryStore()
    for cut in [*sorted(min(cut, len(records)) for cut in cuts), len(records)]:
        FencedStore(store, "log/0").apply(records[store.offset : cut], offset=cut)  # reopened each time: only the store is kept
    assert list(store.items()) == list(whole.store.items())


@given(records=changelogs())
def test_origins_of_counted_records_never_fall(records: list[ChangelogRecord]) -> None:
    after = ChangelogFence()
    highest = None
    for record in records:
        dropped = after.dropped_records
        after.fold([record])
        origin = read_origin(record[2])
        assert origin is not None
        if after.dropped_records == dropped:
            assert highest is None or origin >= highest
            highest = origin
        else:
            assert highest is not None
            assert origin < highest


@settings(max_examples=300)
@given(records=changelogs(), data=st.data())
def test_compaction_changes_nothing_once_the_owner_has_written_stale_keys_once_more(records: list[ChangelogRecord], data: st.DataObject) -> None:
    fenced = FencedStore(MemoryStore(), "log/0")
    fenced.apply(records, offset=len(records))
    owner = fenced.fence.owner
    assert owner is not None
    its = owner.origin.headers
    again = [(FENCE_KEY, owner.guarantee.encode()), *fenced.stale_changes()]
    records = [*records, *(ChangelogRecord(key, value, its) for key, value in again)]
    if SOURCES_KEY in fenced.fence.stale_keys:
        records.append(ChangelogRecord(SOURCES_KEY, b"of this commit", its))
    whole, after = restored(records)
    assert after.stale_keys == set()
    last = {key: place for place, (key, _, _) in enumerate(records)}
    kept = [record for place, record in enumerate(records) if last[record[0]] == place or data.draw(st.booleans())]
    values, compacted = restored(kept)
    assert values == whole
    assert compacted.owner == after.owner
