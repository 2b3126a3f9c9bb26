"""Faults of a deployment and their times, all drawn from a seed before the start."""

from __future__ import annotations

import enum
from random import Random

import attrs

MEMBERS = ("m1", "m2", "m3", "m4", "m5")
WITNESSED = ("m1", "m3")
"""Members that have a witness; so have all workers."""
EXTRA = ("m6", "m7")
"""Who may join."""
WORKERS = ("w1", "w2")
OPERATORS = "operators"
BROKERS = ("b0", "b1", "b2")
SESSION_S = 18.0
LEASE_S = 15.0
"""Above what three brokers take to fail over: about 8 s."""
WORKER_SESSION_S = 10.0
MOST_AT_ONCE = 3
"""Of the five members, so many at most are in trouble at any time."""
BETWEEN_BROKERS_S = 15.0
"""From the start of one broker to the end of the next: it has to copy what it has missed, or two of
three would be away.
"""


class Kind(enum.Enum):
    """`length_s` of each fault is the time to the end of what it names."""

    KILL = "kill -9, started again"
    WIPE = "kill -9, its disk wiped, started again"
    PAUSE = "SIGSTOP within its lease, SIGCONT"
    PAUSE_BEYOND = "SIGSTOP beyond its lease and session, SIGCONT"
    CUT = "cut off from the brokers within its lease"
    CUT_BEYOND = "cut off from the brokers beyond its lease and session"
    DELAY = "what it sends and hears is late"
    THROTTLE = "its connections pass little"
    LOSE_ANSWERS = "answers to it are lost"
    HANG = "its connections hang, and new ones do not"
    HALVE = "its connections break within an answer"
    HALF_CLOSE = "its connections are closed in one direction"
    RESET = "its connections are reset"
    TWIN = "a second process with its id, and another disk"
    CLOCK = "its clock jumps by hours, and back"
    KILL_WITNESS = "kill -9 of its witness"
    LEAVE = "leaves in order, started again"
    JOIN = "joins, leaves in order"
    KILL_WORKER = "kill -9 of a worker, started again"
    PAUSE_WORKER = "SIGSTOP of a worker beyond its session, SIGCONT"
    CLOCK_WORKER = "a worker's clock jumps by hours, and back"
    KILL_BROKER = "kill -9 of a broker, started again"
    PAUSE_BROKER = "SIGSTOP of a broker, which keeps its connections and answers nothing, SIGCONT"
    REDEPLOY = "kill -9, started again with another session timeout and margin"
    SETTING = "a setting of the group is raised or lowered, and set back"
    ASSIGNOR = "another assignor leads, and the first one again"
    TWO_OPERATORS = "two operators configure at the same moment, and the settings are set back"
    POSITIONS = "the topic of positions is deleted, and made again"
    CUT_POSITIONS = "all records of the topic of positions are deleted"
    HOSTILE = "records that are no sound facts"
    GIANT = "a fact that is very long, or has fields at their limits"
    STRANGER = "a member with an id of 200 characters joins and says nothing more"
    GUARANTEE = "members get the other guarantee one after the other, and then the first one again"
    PARTITIONS = "a partition is added, and members get the new topology one after the other"
    LED_BY = "all members stop, something else leads, then equipoise again, and they return"


WIRE = (Kind.DELAY, Kind.THROTTLE, Kind.LOSE_ANSWERS, Kind.HANG, Kind.HALVE, Kind.HALF_CLOSE, Kind.RESET)
"""Faults of the connections between a member and the brokers."""
_LENGTHS_S: dict[Kind, tuple[tuple[float, float], ...]] = {
    Kind.KILL: ((0.2, 3), (SESSION_S + 2, SESSION_S + 10)),
    Kind.WIPE: ((0.2, 3),),
    Kind.PAUSE: ((0.5, 0.6 * LEASE_S),),
    Kind.PAUSE_BEYOND: ((SESSION_S + 3, SESSION_S + 10),),
    Kind.CUT: ((0.5, 0.6 * LEASE_S),),
    Kind.CUT_BEYOND: ((SESSION_S + 3, SESSION_S + 10),),
    Kind.DELAY: ((0.5, 0.6 * LEASE_S),),
    Kind.THROTTLE: ((0.5, 0.6 * LEASE_S),),
    Kind.LOSE_ANSWERS: ((0.5, 0.6 * LEASE_S), (SESSION_S + 3, SESSION_S + 6)),
    Kind.HANG: ((0, 0),),
    Kind.HALVE: ((0, 0),),
    Kind.HALF_CLOSE: ((0, 0),),
    Kind.RESET: ((0, 0),),
    Kind.TWIN: ((0, 0),),
    Kind.CLOCK: ((2, 15),),
    Kind.KILL_WITNESS: ((0, 0),),
    Kind.LEAVE: ((0.5, 10),),
    Kind.JOIN: ((8, 25),),
    Kind.KILL_WORKER: ((0.2, 3), (WORKER_SESSION_S, WORKER_SESSION_S + 8)),
    Kind.PAUSE_WORKER: ((WORKER_SESSION_S + 2, WORKER_SESSION_S + 8),),
    Kind.CLOCK_WORKER: ((2, 15),),
    Kind.KILL_BROKER: ((0.5, 3), (8, 14)),
    Kind.PAUSE_BROKER: ((0.5, 3), (8, 14)),
    Kind.REDEPLOY: ((0.2, 3),),
    Kind.SETTING: ((1, 10),),
    Kind.ASSIGNOR: ((3, 15),),
    Kind.TWO_OPERATORS: ((1, 10),),
    Kind.POSITIONS: ((0, 0),),
    Kind.CUT_POSITIONS: ((0, 0),),
    Kind.HOSTILE: ((0, 0),),
    Kind.GIANT: ((0, 0),),
    Kind.STRANGER: ((6, 6),),
    Kind.GUARANTEE: ((5, 15),),
    Kind.PARTITIONS: ((0, 0),),
    Kind.LED_BY: ((1, 5),),
}
"""One of the ranges, evenly, and a length from it, evenly."""
_AFTER_S = {
    Kind.WIPE: SESSION_S,
    Kind.HALVE: 2.0,
    Kind.HALF_CLOSE: 2.0,
    Kind.RESET: 2.0,
    Kind.TWIN: SESSION_S + 8,
    Kind.LEAVE: 15.0,
    Kind.JOIN: 15.0,
    Kind.KILL_BROKER: BETWEEN_BROKERS_S,
    Kind.PAUSE_BROKER: BETWEEN_BROKERS_S,
}
_OF_OPERATORS = frozenset(
    {
        Kind.SETTING,
        Kind.ASSIGNOR,
        Kind.TWO_OPERATORS,
        Kind.POSITIONS,
        Kind.CUT_POSITIONS,
        Kind.HOSTILE,
        Kind.GIANT,
        Kind.STRANGER,
        Kind.GUARANTEE,
        Kind.PARTITIONS,
        Kind.LED_BY,
    }
)
_OF_BROKERS = (Kind.KILL_BROKER, Kind.PAUSE_BROKER)
_AFTER_OTHERS_S = 5.0
"""How long nothing else happens to the same victim after a fault has ended."""


@attrs.frozen
class Fault:
    """`at_s` from the storm's start."""

    at_s: float
    kind: Kind
    victim: str
    length_s: float
    which: int = 0
    """Chooses among the variants of a fault (`tests.faults`)."""

    def __str__(self) -> str:
        return f"{self.victim}: {self.kind.value}" + (f" after {self.length_s:.1f} s" if self.length_s else "")


def draw(seed: int, count: int, every_s: float, kinds: tuple[Kind, ...] = tuple(Kind)) -> list[Fault]:
    """`count` faults, about `every_s` apart; of each kind as many as of any other, but for one, in
    random order.
    """
    random = Random(f"storm {seed}")
    deck: list[Kind] = []
    while len(deck) < count:
        deck += random.sample(kinds, len(kinds))
    del deck[count:]
    at_s, free_at_s = 0.0, dict.fromkeys((*MEMBERS, *EXTRA, *WORKERS, "brokers", OPERATORS), 0.0)
    drawn: list[Fault] = []
    while deck:
        at_s += random.uniform(0, 2 * every_s)
        possible = [kind for kind in dict.fromkeys(deck) if _victims(kind, free_at_s, at_s)]
        if not possible:
            continue
        kind = possible[0]
        deck.remove(kind)
        victim = random.choice(_victims(kind, free_at_s, at_s))
        length_s = round(random.uniform(*random.choice(_LENGTHS_S[kind])), 1)
        drawn.append(Fault(round(at_s, 1), kind, victim, length_s, random.randrange(10_000)))
        free_at_s["brokers" if kind in _OF_BROKERS else victim] = at_s + length_s + _AFTER_S.get(kind, _AFTER_OTHERS_S)
    return drawn


def _victims(kind: Kind, free_at_s: dict[str, float], at_s: float) -> list[str]:
    free = {name for name, free_s in free_at_s.items() if free_s <= at_s}
    if kind in _OF_BROKERS:
        return list(BROKERS) if "brokers" in free else []
    if kind in _OF_OPERATORS:
        return [OPERATORS] if OPERATORS in free else []
    if kind in (Kind.KILL_WORKER, Kind.PAUSE_WORKER, Kind.CLOCK_WORKER):
        return sorted(free.intersection(WORKERS))
    if kind is Kind.JOIN:
        return sorted(free.intersection(EXTRA))
    victims = sorted(free.intersection(MEMBERS))
    if kind is Kind.KILL_WITNESS:
        return sorted(free.intersection(WITNESSED))
    if len(victims) <= len(MEMBERS) - MOST_AT_ONCE:
        return []
    return victims
