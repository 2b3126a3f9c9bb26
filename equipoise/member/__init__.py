"""The member client: embed `Member` in an application, and equipoise assigns tasks to it.

A complete application that counts orders per customer::

    import asyncio
    import sys

    from equipoise import JsonSerde, Member, Record, StringSerde, TaskContext


    async def count(record: Record, context: TaskContext) -> None:
        total = (context.state.get(record.key) or 0) + 1
        context.state.put(record.key, total)
        context.send("order-counts", total, key=record.key)


    member = Member(
        "order-counts",
        count,
        sources="orders",
        state="orders-changelog",
        outputs="order-counts",
        create_topics=True,
        key_serde=StringSerde(),
        value_serde=JsonSerde(),
        state_directory="state",
        guarantee="exactly_once",
        lead=True,
    )

    if __name__ == "__main__":
        sys.exit(asyncio.run(member.run()))

There is one task for each partition of ``orders``. Each keeps its counts in a local store and logs
them to a partition of the compacted topic ``orders-changelog``. With ``lead=True`` it needs no
`equipoise worker`. Start the program again with another ``instance``: the new process restores half
of the tasks, and gets them when their copies have caught up.

Modules, from the outside in:

- `client`: `Member`; `options`: its settings; `topics`: the application's topics
- `declared_source`: one source; `source_order`: in which order several of a task are taken
- `processing`: calls handlers and timers; `callbacks`; `context`: what they work with; `records`,
  `serdes`, `timers`; `error_policy`: what happens when one raises; `drops`: what is dropped
- `host`: hosts a `MemberSession`, one incarnation after the other, on a thread of its own
- `work`: opens and closes tasks and keeps copies, as the session says
- `link`: facts out, decisions in
- `runner`: one granted task: open, process, commit, close; `clients`: its producer and consumer
- `restorer`: copies up to date with their changelogs; `ends`: where changelogs end; `throttle`
- `fencing`, `origin`: which records of a changelog count
- `stores`: where state is kept; `directory`: the state directory
- `location`: where the task of a key runs; `following`: follows the group's log for that
- `queries`: answers about state from what is here; `query_routes`: asks others; `member_queries`
- `preparing`: the application's `prepare`; `load`: rates of tasks
- `story`: its log; `http`, `metrics`, `figures`: health, readiness and metrics
- `embedded_worker`: a worker in the same process
"""

from __future__ import annotations

from equipoise.kafka.client import Record
from equipoise.member.declared_source import Source
from equipoise.member.embedded_member import Member
from equipoise.member.error_policy import ErrorPolicy, ParkedTask
from equipoise.member.location import CopyLocation, KeyLocation
from equipoise.member.member_host import SupersededError
from equipoise.member.member_options import MemberKeywords, MemberOptions
from equipoise.member.preparing import PreparationProgress, PrepareContext
from equipoise.member.processing import BatchHandler, Handler, Processor
from equipoise.member.queries import QueryError
from equipoise.member.serdes import BytesSerde, JsonSerde, MsgpackSerde, Serde, StringSerde
from equipoise.member.stores import Change, MemoryStore, RocksMemory, RocksStore, StateStore
from equipoise.member.task_context import State, TaskContext

__all__ = [
    "BatchHandler",
    "BytesSerde",
    "Change",
    "CopyLocation",
    "ErrorPolicy",
    "Handler",
    "JsonSerde",
    "KeyLocation",
    "Member",
    "MemberKeywords",
    "MemberOptions",
    "MemoryStore",
    "MsgpackSerde",
    "ParkedTask",
    "PreparationProgress",
    "PrepareContext",
    "Processor",
    "QueryError",
    "Record",
    "RocksMemory",
    "RocksStore",
    "Serde",
    "Source",
    "State",
    "StateStore",
    "StringSerde",
    "SupersededError",
    "TaskContext",
]
