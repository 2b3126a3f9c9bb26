"""Upcasters: bytes stored by past versions are read as today's events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import msgpack
import pytest
from hypothesis import given

from equipoise.events import codec, readable, upcasters
from equipoise.events.decisions import Checkpointed
from equipoise.events.errors import UnsoundError
from equipoise.events.facts import GroupConfigured, LagReported, Load, MemberJoined, PartitionsObserved, PresentMember, RoundAsked
from equipoise.events.settings import GroupSettings
from tests.strategies import instances

DATA = Path(__file__).parents[2] / "data" / "events"


def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / "past.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("line", lines(), ids=lambda line: f"{line['kind']}-{line['version']}")
def test_stored_bytes_of_past_versions_are_read_as_today(line: dict[str, Any]) -> None:
    today = codec.from_json(line["today"])
    code = codec.kind_of(today)
    assert codec.decode(code, line["version"], bytes.fromhex(line["payload"])) == today
    if code < codec.FIRST_DECISION_KIND:
        assert codec.decode_lenient(code, line["version"], bytes.fromhex(line["payload"])) == today


def test_bytes_of_every_past_version_are_kept() -> None:
    kept = {(line["kind"], line["version"]) for line in lines()}
    assert kept == {(codec.kind_name(code), version) for code, version in upcasters.PAST_SHAPES}


def test_upcasters_cover_every_past_version() -> None:
    due = {(code, version) for code, (newest, _) in codec.KINDS.items() for version in range(1, newest)}
    assert set(upcasters.PAST_SHAPES) == due


@given(instances(upcasters.GroupConfiguredV1))
def test_upcast_configuration_without_join_delay_decides_each_join_at_once(past: Any) -> None:
    form = codec.payload_from_json("GroupConfigured", 1, readable.write(past))
    event = codec.decode(codec.kind_of(GroupConfigured), 1, form[1])
    settings = GroupSettings(**attrs.asdict(past.knobs, recurse=False), join_delay_ms=0)
    assert event == GroupConfigured(**{**attrs.asdict(past, recurse=False), "knobs": settings})


@given(instances(upcasters.MemberJoinedV1))
def test_upcast_join_v1_gains_no_tags_or_lags(past: Any) -> None:
    code = codec.kind_of(MemberJoined)
    form = codec.payload_from_json("MemberJoined", 1, readable.write(past))
    event = codec.decode(code, 1, form[1])
    assert event == MemberJoined(**attrs.asdict(past), tags={}, lags={}, eager=False)


@given(instances(upcasters.MemberJoinedV2))
def test_upcast_join_v2_is_not_eager(past: Any) -> None:
    code = codec.kind_of(MemberJoined)
    form = codec.payload_from_json("MemberJoined", 2, readable.write(past))
    event = codec.decode(code, 2, form[1])
    assert event == MemberJoined(**attrs.asdict(past, recurse=False), eager=False)


@given(instances(upcasters.MemberJoinedV4))
def test_upcast_join_v4_advertises_nothing(past: Any) -> None:
    code = codec.kind_of(MemberJoined)
    form = codec.payload_from_json("MemberJoined", 4, readable.write(past))
    event = codec.decode(code, 4, form[1])
    assert event == MemberJoined(**attrs.asdict(past, recurse=False), advertised=None)


@given(instances(upcasters.MemberJoinedV5))
def test_upcast_join_says_no_topology(past: Any) -> None:
    form = codec.payload_from_json("MemberJoined", 5, readable.write(past))
    assert codec.decode(codec.kind_of(MemberJoined), 5, form[1]) == MemberJoined(**attrs.asdict(past, recurse=False), subtopologies=None)


@given(instances(upcasters.MemberJoinedV3))
def test_upcast_join_without_readiness_is_word_or_lag(past: Any) -> None:
    code = codec.kind_of(MemberJoined)
    form = codec.payload_from_json("MemberJoined", 3, readable.write(past))
    event = codec.decode(code, 3, form[1])
    assert event == MemberJoined(**attrs.asdict(past, recurse=False), readiness="word_or_lag", ready_lag_records=None)


@given(instances(upcasters.LagReportedV2))
def test_upcast_report_without_preparation_has_none(past: Any) -> None:
    form = codec.payload_from_json("LagReported", 2, readable.write(past))
    event = codec.decode(codec.kind_of(LagReported), 2, form[1])
    load = None if past.load is None else Load(**attrs.asdict(past.load, recurse=False))
    assert event == LagReported(**{**attrs.asdict(past, recurse=False), "load": load}, preparing={}, failed=())


@given(instances(upcasters.PartitionsObservedV1))
def test_partitions_from_before_weights_have_none(past: Any) -> None:
    form = codec.payload_from_json("PartitionsObserved", 1, readable.write(past))
    event = codec.decode(codec.kind_of(PartitionsObserved), 1, form[1])
    assert event == PartitionsObserved(**attrs.asdict(past, recurse=False), weights={})


def test_upcast_round_is_due_as_its_build_computed() -> None:
    present = PresentMember(member_id="m1", incarnation=1)
    form = codec.payload_from_json("RoundAsked", 1, readable.write(upcasters.RoundAskedV1(round_id="r", members=(present,))))
    asked = RoundAsked(round_id="r", members=(present,), due_by_copies=False)
    assert codec.decode(codec.kind_of(RoundAsked), 1, form[1]) == asked


@given(instances(upcasters.CheckpointedV1))
def test_upcast_hash_without_form_has_form_0(past: Any) -> None:
    form = codec.payload_from_json("Checkpointed", 1, readable.write(past))
    event = codec.decode(codec.kind_of(Checkpointed), 1, form[1])
    assert event == Checkpointed(**attrs.asdict(past), form=0)


@pytest.mark.parametrize("count", [0, 8, 10, 11])
def test_upcast_wrong_field_count_is_refused(count: int) -> None:
    with pytest.raises(UnsoundError) as caught:
        codec.decode(codec.kind_of(MemberJoined), 1, msgpack.packb(["m", 1, 1, None, 1, 1, 0, "n", None, 1, 1][:count]))
    assert (caught.value.code, caught.value.field) == ("misshapen", "MemberJoinedV1")


@pytest.mark.parametrize("count", [9, 10])
def test_past_bytes_are_held_to_todays_constructor(count: int) -> None:
    with pytest.raises(UnsoundError):
        codec.decode(codec.kind_of(MemberJoined), 1, msgpack.packb(["", 1, 1, None, 1, 1, 0, "n", None, 1][:count]))
