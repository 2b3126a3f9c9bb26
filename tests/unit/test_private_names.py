"""Private names of other packages: each that the code uses is listed here with its reason, and what
it names is as it was when its use was written. A release that changes one fails here, before it
fails a user.

`equipoise/kafka` still rides in aiokafka's clients; how many of their names it uses only falls.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

ROOT = Path(__file__).parents[2]
RIDES = "equipoise/kafka/"
MOST_RIDDEN = 8
FOREIGN = re.compile(r"^\s*(?:from|import) (?:aiokafka|faust)\b", re.MULTILINE)


@attrs.frozen
class PrivateName:
    """`of`: module and class that has it. `uses`: in how many places. `source`: the first digits of
    the SHA-256 of a method; "": an attribute. `reason`: why there is no public way.
    """

    name: str
    of: str
    uses: int
    source: str
    reason: str


AIOKAFKA_CONSUMER = "aiokafka.consumer.consumer:AIOKafkaConsumer"
FETCHER = "aiokafka.consumer.fetcher:Fetcher"
COORDINATOR = "aiokafka.consumer.group_coordinator:GroupCoordinator"
FAUST_ASSIGNOR = "faust.assignor.partition_assignor:PartitionAssignor"
FAUST_THREAD = "faust.transport.drivers.aiokafka:AIOKafkaConsumerThread"
OVERRIDDEN = "the assignor extends Faust's, which has no other way to be extended"

LISTED = [
    # aiokafka
    PrivateName("_client", AIOKAFKA_CONSUMER, 1, "", "what members subscribe to"),
    # Faust, and aiokafka's consumer below it
    PrivateName("_thread", "faust.transport.drivers.aiokafka:Consumer", 1, "", "aiokafka's consumer, which Faust gives nobody"),
    PrivateName("_ensure_consumer", FAUST_THREAD, 1, "ff4a4c693b7e", "the same, from the thread of the consumer"),
    PrivateName("_coordinator", AIOKAFKA_CONSUMER, 1, "", "ends of changelogs before an assignment"),
    PrivateName("_perform_assignment", COORDINATOR, 2, "a5cf61fa9732", "ends of changelogs are asked for before the assignor is"),
    PrivateName("_heartbeat_interval_ms", COORDINATOR, 2, "", "members learn of a rebalance sooner than Faust's least setting allows"),
    PrivateName("_fetcher", AIOKAFKA_CONSUMER, 5, "", "waits of fetches, for which Faust has no setting; records that Faust drops"),
    PrivateName("_fetch_max_wait_ms", FETCHER, 2, "", "the same"),
    PrivateName("_subscriptions", FETCHER, 1, "", "records that Faust drops in a rebalance are not taken"),
    PrivateName("_closed", FETCHER, 1, "", "the same"),
    PrivateName("_create_fetch_waiter", FETCHER, 1, "61d840568746", "the same"),
    PrivateName("_perform_assignment", FAUST_ASSIGNOR, 0, "1e0bf2c5c8f4", OVERRIDDEN),
    PrivateName("_get_client_metadata", FAUST_ASSIGNOR, 1, "a0e1ba5c0d01", OVERRIDDEN),
    PrivateName("_update_member_urls", FAUST_ASSIGNOR, 1, "42c1ee6897e1", OVERRIDDEN),
    PrivateName("_global_table_standby_assignments", FAUST_ASSIGNOR, 1, "b956f05703d9", OVERRIDDEN),
    PrivateName("_protocol_assignments", FAUST_ASSIGNOR, 1, "e231e876d04a", OVERRIDDEN),
    PrivateName("_get_changelog_distribution", FAUST_ASSIGNOR, 1, "dd376e80a45b", OVERRIDDEN),
    PrivateName("_get_external_topic_distribution", FAUST_ASSIGNOR, 1, "d84e460e9789", OVERRIDDEN),
    PrivateName("_compress", FAUST_ASSIGNOR, 1, "de873849928d", OVERRIDDEN),
    PrivateName("_decompress", FAUST_ASSIGNOR, 2, "d65b7310c43a", OVERRIDDEN),
    PrivateName("_dbs", "faust.stores.rocksdb:Store", 3, "", "copies on the disk that no table has open are read, and closed again"),
    # asyncio
    PrivateName("_scheduled", "asyncio.events:TimerHandle", 2, "", "virtual time: an event loop's own bookkeeping of a timer"),
    PrivateName("_log_destroy_pending", "asyncio.tasks:Task", 1, "", "processes that are killed in virtual time leave tasks"),
    PrivateName("_set_running_loop", "asyncio.events", 5, "", "loops of several simulated processes in one thread; documented for event loops"),
]


TOPS = ("events", "statemachine", "assignors", "replay")
"""Folders to which `equipoise` has links."""
NAMED_TUPLE = ("_asdict", "_replace", "_fields")


@attrs.frozen
class Use:
    """A place in the code."""

    file: str
    line: int
    name: str


@pytest.fixture(scope="module")
def uses() -> list[Use]:
    """Each use of a private name that is not one of our own. In a file that imports aiokafka or
    Faust those of all objects but `self` and `cls` count, elsewhere names that nothing of ours has.
    """
    links = tuple(f"equipoise/{top}/" for top in TOPS)
    files = [path.relative_to(ROOT) for top in ("equipoise", *TOPS) for path in sorted((ROOT / top).rglob("*.py"))]
    sources = {str(file): (ROOT / file).read_text() for file in files if not str(file).startswith(links)}
    trees = {file: ast.parse(text) for file, text in sources.items()}
    ours = {name for tree in trees.values() for name in _defined(tree)}
    found = []
    for file, tree in trees.items():
        rides = file.startswith("equipoise/faust/") or FOREIGN.search(sources[file]) is not None
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr) and node.attr not in NAMED_TUPLE:
                is_own = ast.unparse(node.value) in ("self", "cls", "super()")
                if node.attr not in ours or (rides and not is_own):
                    found.append(Use(file, node.lineno, node.attr))
    return found


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr


def test_every_private_name_of_another_package_is_listed(uses: list[Use]) -> None:
    listed = Counter[str]()
    for each in LISTED:
        listed[each.name] += each.uses
    there = Counter(each.name for each in uses if not each.file.startswith(RIDES))
    where = {name: [f"{each.file}:{each.line}" for each in uses if each.name == name] for name in there}
    assert there == listed, {name: where.get(name) for name in there.keys() | listed.keys() if there[name] != listed[name]}


def test_worker_uses_none_of_them(uses: list[Use]) -> None:
    assert {each for each in uses if each.file.startswith("equipoise/worker/")} == set()


def test_the_client_uses_no_more_of_them_than_before(uses: list[Use]) -> None:
    assert len({each.name for each in uses if each.file.startswith(RIDES)}) == MOST_RIDDEN, "lower the number when it falls"


@pytest.mark.parametrize("listed", LISTED, ids=lambda each: f"{each.of.partition(':')[2]}.{each.name}")
def test_private_name_is_what_it_was(listed: PrivateName) -> None:
    module, _, owner = listed.of.partition(":")
    found: Any = importlib.import_module(module)
    found = getattr(found, owner) if owner else found
    there = getattr(found, listed.name, None)
    if inspect.isfunction(there) or inspect.ismethod(there):
        source = hashlib.sha256(inspect.getsource(there).encode()).hexdigest()[:12]
        assert listed.source == source, f"{listed.of} has changed: look at its uses, then write {source!r} here"
    else:
        assert listed.source == ""
        assert there is not None or f"self.{listed.name}" in inspect.getsource(found)
