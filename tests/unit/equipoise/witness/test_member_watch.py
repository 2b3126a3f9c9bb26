"""Which member of a consumer group is the one of a command: exactly one, or none."""

from __future__ import annotations

import pytest

from equipoise.kafka.consumer_groups import GroupMember, MemberKey, normalised
from equipoise.witness.member_watch import SeenMembers

HERE = frozenset({"10.0.0.1"})


def member(member_id: str, *, instance_id: str | None = None, client_id: str = "c", host: str = "10.0.0.1") -> GroupMember:
    return GroupMember(member_id=member_id, instance_id=instance_id, client_id=client_id, host=host, protocol="classic")


def seen(*looks: list[str]) -> SeenMembers:
    found = SeenMembers(is_unique=True)
    for look in looks:
        found.note([member(each) for each in look])
    return found


def test_only_member_that_joined_is_proven() -> None:
    proven = seen([], [], ["a"], ["a"]).proven()
    assert proven == [member("a")]


def test_member_that_was_there_before_the_command_is_not_the_commands() -> None:
    assert seen(["a"], ["a"]).proven() == []
    proven = seen(["a"], ["a", "b"], ["b"]).proven()
    assert proven == [member("b")]


def test_nothing_is_proven_without_a_look_at_the_group_before_the_command() -> None:
    assert seen().proven() == []
    assert seen(["a"]).proven() == []


@pytest.mark.parametrize("looks", [([], ["a", "b"]), ([], ["a"], ["a", "b"], ["a"]), ([], ["a"], [], ["b"]), ([], ["a"], ["b"])])
def test_second_member_ends_the_proof_for_good(looks: tuple[list[str], ...]) -> None:
    """Both may be neighbours, and the second one the successor of the command."""
    assert seen(*looks).proven() == []
    assert {each.member_id for each in seen(*looks).joined} == {"a", "b"}


def test_member_without_a_key_of_its_own_is_proven_when_it_can_be_no_other_process() -> None:
    found = SeenMembers(is_unique=False)
    found.note([])
    found.note([member("a")])
    assert found.proven() == []
    assert found.has_unattributed
    found.attribute(frozenset({"10.0.0.2"}))
    assert found.proven() == []
    found.attribute(HERE)
    assert found.proven() == [member("a")]
    found.note([member("a")])
    assert not found.has_unattributed
    assert found.proven() == [member("a")]


@pytest.mark.parametrize("is_unique", [True, False])
def test_command_that_joins_again_is_proven_by_its_present_member_if_it_can_be_no_other_process(is_unique: bool) -> None:
    found = SeenMembers(is_unique=is_unique)
    found.note([])
    found.note([member("a")])
    found.attribute(HERE)
    found.note([member("b")])
    assert found.proven() == []
    found.attribute(HERE)
    assert found.proven() == [member("b")]
    found.note([member("b"), member("c")])
    found.attribute(HERE)
    assert found.proven() == [], "the command has two members"
    found.note([member("c")])
    assert found.proven() == [member("c")]


def test_successor_beside_a_command_that_has_left_is_not_the_commands() -> None:
    found = SeenMembers(is_unique=True)
    found.note([])
    found.note([member("a")])
    found.attribute(HERE)
    found.note([])
    assert found.proven() == [member("a")], "which the group does not know any more"
    found.note([member("b")])
    assert found.proven() == []


def test_process_with_several_members_has_those_whose_ids_are_its_own() -> None:
    """As the threads of Kafka Streams."""
    found = SeenMembers(is_unique=True, has_own_ids=True)
    threads = [member(name, client_id=f"i1-StreamThread-{number}-consumer") for number, name in enumerate("abc")]
    found.note(threads[2:])
    found.note(threads)
    assert found.proven() == threads[:2], "the third was there before"
    found.note([*threads, member("d", client_id=threads[0].client_id)])
    assert found.proven() == [threads[1]], "one of two may be a successor of the process"
    static = [member(name, client_id="i1", instance_id=f"orders-{number}") for number, name in enumerate("xy")]
    found.note([*threads, *static])
    assert found.proven() == [threads[1], *static]


@pytest.mark.parametrize(
    ("key", "matches"),
    [
        (MemberKey(instance_id="x"), True),
        (MemberKey(instance_id="y"), False),
        (MemberKey(client_id="c", hosts=HERE), True),
        (MemberKey(client_id="d", hosts=HERE), False),
        (MemberKey(client_id="c", hosts=frozenset({"10.0.0.2"})), False),
        (MemberKey(hosts=HERE), True),
        (MemberKey(hosts=frozenset()), False),
        (MemberKey(member_id="a"), True),
        (MemberKey(member_id="b"), False),
        (MemberKey(), True),
        (MemberKey(instance_id="*"), True),
        (MemberKey(client_id="c*", hosts=HERE), True),
        (MemberKey(client_id="*.c", hosts=HERE), False),
        (MemberKey(client_id="[c]", hosts=HERE), False),
        (MemberKey(client_id="d*"), False),
    ],
)
def test_key_matches_a_member_in_everything_it_names(key: MemberKey, matches: bool) -> None:
    assert key.matches(member("a", instance_id="x")) is matches
    assert key.is_empty == (key == MemberKey())


def test_key_with_an_instance_id_matches_no_dynamic_member() -> None:
    assert not MemberKey(instance_id="x").matches(member("a"))
    assert not MemberKey(instance_id="*").matches(member("a"))


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("/127.0.0.1", "127.0.0.1"),
        ("broker.example/10.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("/0:0:0:0:0:0:0:1", "::1"),
        ("/fe80:0:0:0:0:0:0:1%eth0", "fe80::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("somewhere", "somewhere"),
    ],
)
def test_addresses_are_compared_in_one_form(written: str, address: str) -> None:
    assert normalised(written) == address
