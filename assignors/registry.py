"""Assignors by name and behaviour version: built-in ones, and those of the entry-point group
`equipoise.assignors`.

An entry point names an `Assignor` class, or a callable without parameters that returns one. Its own
name does not matter; the assignor's `name` and `version` do.
"""

from __future__ import annotations

import functools
from difflib import get_close_matches
from importlib import metadata

from equipoise.assignors.common.assignor import Assignor
from equipoise.assignors.cooperative import Cooperative, Cooperative1, Cooperative2
from equipoise.assignors.high_availability import HighAvailability, HighAvailability1, HighAvailability2
from equipoise.assignors.kafka_connect import KafkaConnect, KafkaConnect1
from equipoise.assignors.kafka_streams import KafkaStreams
from equipoise.assignors.lag_aware import LagAware, LagAware1
from equipoise.assignors.learner import Learner, Learner1, Learner2
from equipoise.assignors.load_balanced import LoadBalanced, LoadBalanced1, LoadBalanced2
from equipoise.events.errors import InputError

ENTRY_POINT_GROUP = "equipoise.assignors"

NEWEST: tuple[Assignor, ...] = (Cooperative(), HighAvailability(), KafkaConnect(), KafkaStreams(), LagAware(), Learner(), LoadBalanced())
FORMER: tuple[Assignor, ...] = (
    *(Cooperative1(), HighAvailability1(), Learner1(), LoadBalanced1(), KafkaConnect1(), LagAware1()),
    *(Cooperative2(), HighAvailability2(), Learner2(), LoadBalanced2()),
)
"""Earlier behaviour versions. A group keeps its version until it is configured again, so that its
log replays.
"""


@functools.cache
def available() -> dict[tuple[str, int], Assignor]:
    """(name, version) -> assignor, in rising order. Raises InputError when two have the same name
    and version, or one cannot be loaded.
    """
    found: dict[tuple[str, int], Assignor] = {}
    for builtin in (*NEWEST, *FORMER):
        found[builtin.name, builtin.version] = builtin
    for entry_point in sorted(metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda point: (point.name, point.value)):
        try:
            assignor = entry_point.load()()
            key = str(assignor.name), int(assignor.version)
        except (Exception, SystemExit) as error:  # code of the package may raise anything
            raise InputError(
                f"entry point {entry_point.name} = {entry_point.value}: {type(error).__name__}: {error}; "
                "mend or uninstall the package that declares it"
            ) from error
        if key in found and type(found[key]) is not type(assignor):
            raise InputError(
                f"entry point {entry_point.name} = {entry_point.value}: {key[0]} version {key[1]} is taken; raise its version or rename it"
            )
        found[key] = assignor
    return dict(sorted(found.items()))


def load(name: str, version: int) -> Assignor:
    """The assignor of that name and behaviour version. Raises InputError when it is not installed."""
    found = available().get((name, version))
    if found is None:
        named = [key for key in available() if key[0] == name] or list(available())
        versions = {known: [str(number) for each, number in named if each == known] for known, _ in named}
        known = ", ".join(f"{known} version {' and '.join(filter(None, (', '.join(each[:-1]), each[-1])))}" for known, each in versions.items())
        close = get_close_matches(name, {known for known, _ in available()} - {name}, n=1)
        meant = f"; did you mean {close[0]!r}?" if close and named == list(available()) else ""
        raise InputError(f"assignor: {name!r} version {version} is not installed; here are {known}{meant}")
    return found


def solver_problem(solver: str, assignor: Assignor) -> str | None:
    """Returns why `assignor` cannot decide for a configuration pinned to `solver`; None: it can."""
    if solver == assignor.solver:
        return None
    return f"its decisions are pinned to solver {solver!r}, this build has {assignor.solver!r}; run the build that has that one"


def latest(name: str) -> Assignor:
    """The assignor of that name with the highest version. Raises InputError when there is none."""
    versions = [number for known, number in available() if known == name]
    return load(name, max(versions, default=1))
