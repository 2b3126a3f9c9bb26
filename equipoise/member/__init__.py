"""The member client: embed `Member` in an application, and equipoise assigns tasks to it.

A complete application that counts orders per customer::

    import asyncio

    from equipoise.member import Connection, Member, Subtopology, TopologyDeclared

    # 6 tasks, one for each partition of the topic "orders". Each keeps its counts in a local store
    # and logs them to a partition of the compacted topic "orders-changelog".
    TOPOLOGY = TopologyDeclared(
        epoch=1,
        subtopologies=(
            Subtopology(
                subtopology=0,
                partitions=6,
                stateful=True,
                source_topics=("orders",),
                changelog_topics=("orders-changelog",),
            ),
        ),
    )


    async def count(record, context):
        total = int(context.state.get(record.key) or b"0") + 1
        context.state.put(record.key, b"%d" % total)
        context.send("counts", b"%d" % total, key=record.key)


    async def main(member_id="m1", bootstrap="127.0.0.1:9092"):
        member = Member(
            "order-counts",
            member_id,
            count,
            TOPOLOGY,
            connection=Connection(bootstrap=bootstrap),
            state_directory="state",
            guarantee="exactly_once",
            lead=True,
        )
        async with member:
            await member.wait()


    if __name__ == "__main__":
        asyncio.run(main())

Create the topics ``orders``, ``orders-changelog`` (``cleanup.policy=compact``) and ``counts`` with
6 partitions each, then start the program. With ``lead=True`` it needs no `equipoise worker`. Start
it again with another member id: the new process restores half of the tasks, and gets them when
their copies have caught up.

Modules, from the outside in:

- `client`: `Member`; `options`: its settings; `context`: what a handler works with
- `host`: hosts a `MemberSession`, one incarnation after the other, on a thread of its own
- `work`: opens and closes tasks and keeps copies, as the session says
- `link`: facts out, decisions in
- `runner`: one granted task: open, process, commit, close; `clients`: its producer and consumer
- `restorer`: copies up to date with their changelogs; `ends`: where changelogs end; `throttle`
- `fencing`, `origin`: which records of a changelog count
- `stores`: where state is kept; `directory`: the state directory
- `preparing`: the application's `prepare`; `load`: rates of tasks
- `embedded_worker`: a worker in the same process
"""

from __future__ import annotations

from equipoise.events.facts import Subtopology, TopologyDeclared
from equipoise.events.log.kafka.connection import Connection
from equipoise.events.tasks import TaskId
from equipoise.member.client import Member
from equipoise.member.context import State, TaskContext
from equipoise.member.host import SupersededError
from equipoise.member.options import MemberOptions
from equipoise.member.preparing import PreparationProgress, PrepareContext
from equipoise.member.stores import Change, MemoryStore, RocksStore, StateStore

__all__ = [
    "Change",
    "Connection",
    "Member",
    "MemberOptions",
    "MemoryStore",
    "PreparationProgress",
    "PrepareContext",
    "RocksStore",
    "State",
    "StateStore",
    "Subtopology",
    "SupersededError",
    "TaskContext",
    "TaskId",
    "TopologyDeclared",
]
