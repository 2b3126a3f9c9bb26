"""Requests and answers have the bytes of aiokafka's own, in each version."""

from __future__ import annotations

import struct
from io import BytesIO
from typing import Any

import pytest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.types import Array, Bytes, Int8, Int16, Int32, Int64, Schema, String
from hypothesis import given
from hypothesis import strategies as st

from equipoise.kafka.aiokafka_structs import quick

VERSIONS = [*FetchRequest._CLASSES, *ProduceRequest._CLASSES]
BITS = {Int8: 8, Int16: 16, Int32: 32, Int64: 64}


def values(field: Any) -> st.SearchStrategy[Any]:
    if isinstance(field, Schema):
        return st.tuples(*map(values, field.fields))
    if type(field) is Array:
        return st.none() | st.lists(values(field.array_of), max_size=3)
    if type(field) is String:
        return st.none() | st.text(max_size=5)
    if field is Bytes:
        return st.none() | st.binary(max_size=5)
    bits = BITS[field]
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@given(version=st.sampled_from(VERSIONS), data=st.data())
def test_bytes_are_those_of_aiokafka(version: Any, data: st.DataObject) -> None:
    asked = data.draw(values(version.SCHEMA))
    assert quick(version)(*asked).encode() == version(*asked).encode()
    answer = version.RESPONSE_TYPE(*data.draw(values(version.RESPONSE_TYPE.SCHEMA)))
    stream = BytesIO(answer.encode() + b"more")
    assert quick(version).RESPONSE_TYPE.decode(stream) == answer
    assert stream.read() == b"more"


@given(version=st.sampled_from(VERSIONS), data=st.data())
def test_answer_that_was_cut_off_is_refused(version: Any, data: st.DataObject) -> None:
    whole = version.RESPONSE_TYPE(*data.draw(values(version.RESPONSE_TYPE.SCHEMA))).encode()
    cut = BytesIO(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises((ValueError, struct.error)):
        quick(version).RESPONSE_TYPE.decode(cut)


def test_request_needs_a_value_for_each_field_of_a_partition() -> None:
    version = ProduceRequest._CLASSES[-1]
    with pytest.raises(ValueError, match="1 values for"):
        quick(version)(None, -1, 100, [("orders", [(0,)])]).encode()
