from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from equipoise.kafka.group_client import BUCKETS, ahead, bucket, fewest_buckets, seat_bucket

IDS = st.lists(st.uuids(version=4).map(lambda each: f"client-{each}"), min_size=1, max_size=40, unique=True)


def id_in(wanted: int) -> str:
    """A member id in a bucket of a table of BUCKETS."""
    return next(each for number in range(100_000) if bucket(each := f"seat-{uuid.UUID(int=number)}") == wanted)


@given(IDS)
def test_seat_bucket_is_the_first_one(others: list[str]) -> None:
    seat = id_in(seat_bucket(others, counts=False))
    assert ahead(seat, others) == {each for each in others if bucket(each, fewest_buckets(len(others) + 1)) == 0}


@given(IDS)
def test_seat_bucket_is_behind_the_first_member_where_the_leader_counts(others: list[str]) -> None:
    buckets = fewest_buckets(len(others) + 1)
    first = min(bucket(each, buckets) for each in others)
    seat = id_in(seat_bucket(others, counts=True))
    assert ahead(seat, others), "the seat is not the first"
    assert all(bucket(each, buckets) <= first + 1 for each in ahead(seat, others)), "nobody else is before it"


def test_seat_bucket_of_an_empty_group_is_the_first_one() -> None:
    assert seat_bucket([], counts=True) == 0


def test_fewest_buckets_grow_with_the_members() -> None:
    assert [fewest_buckets(count) for count in (1, 12, 13, 24, 25, 48, 49)] == [16, 16, 32, 32, 64, 64, 2 * BUCKETS]
