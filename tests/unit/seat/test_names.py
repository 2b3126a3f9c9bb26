"""Names of members over their restarts."""

from __future__ import annotations

import uuid

from equipoise.events.facts import GroupRejoined, RejoinedMember
from equipoise.lead.seat.names import Names, SeatClient, client_of, is_static

FIRST, SECOND, THIRD = (f"app-{uuid.UUID(int=each)}" for each in (1, 2, 3))


def app(member_id: str) -> SeatClient:
    return client_of(member_id, None)


def test_client_of_dynamic_and_static_members() -> None:
    assert app(FIRST) == SeatClient(FIRST, "app")
    assert client_of(f"i1-{uuid.UUID(int=1)}", "i1") == SeatClient("i1", "i1")
    assert is_static("i1")
    assert not is_static(FIRST)


def test_client_of_hidden_characters_and_long_ids_gives_a_name() -> None:
    assert client_of(f"a\n{'x' * 400}-{uuid.UUID(int=1)}", None).base == "a?" + "x" * 237
    assert client_of(f"-{uuid.UUID(int=1)}", None).base == "client"


def test_give_equal_client_ids_are_numbered_and_stay() -> None:
    names = Names()
    assert names.give([app(SECOND), app(FIRST)], 5, ()) == {FIRST: ("app", 5), SECOND: ("app/2", 5)}
    assert names.give([app(SECOND), app(THIRD)], 9, ()) == {SECOND: ("app/2", 5), THIRD: ("app", 9)}


def test_give_returning_process_has_the_name_that_is_waited_for() -> None:
    names = Names()
    names.give([app(FIRST), app(SECOND)], 5, ())
    names.give([], 6, ())
    assert names.give([app(THIRD)], 5, ["app/2"]) == {THIRD: ("app/2", 6)}, "a higher incarnation, although the clock stands"


def test_learn_takes_over_names_from_the_log() -> None:
    names = Names()
    names.learn(GroupRejoined(generation=1, protocol="range", members=(RejoinedMember(member_id="app/2", incarnation=7, client=FIRST),)))
    assert names.give([app(FIRST), app(SECOND)], 5, ()) == {FIRST: ("app/2", 7), SECOND: ("app", 5)}
