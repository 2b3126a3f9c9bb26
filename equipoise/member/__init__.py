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

From the outside in: `member` has `Member`, `options` its settings, `topics` the application's topics.
`session` hosts a `MemberSession`, one incarnation after the other, on a thread of its own: facts
out, decisions in. `tasks` opens, runs, commits and closes what the session orders. `copies` keeps
state up to date with changelogs, and says which records of them count. `http` answers.
"""

from __future__ import annotations

from equipoise.kafka.client import Record
from equipoise.member.copies.stores import Change, MemoryStore, RocksMemory, RocksStore, StateStore
from equipoise.member.http.queries import QueryError
from equipoise.member.member import Member
from equipoise.member.options import MemberKeywords, MemberOptions
from equipoise.member.session.host import SupersededError
from equipoise.member.session.location import CopyLocation, KeyLocation
from equipoise.member.session.preparing import PreparationProgress, PrepareContext
from equipoise.member.source import Source
from equipoise.member.tasks.context import State, TaskContext
from equipoise.member.tasks.error_policy import ErrorPolicy, FailedTask
from equipoise.member.tasks.processing import BatchHandler, Handler, Processor
from equipoise.member.tasks.serdes import BytesSerde, JsonSerde, MsgpackSerde, Serde, StringSerde

__all__ = [
    "BatchHandler",
    "BytesSerde",
    "Change",
    "CopyLocation",
    "ErrorPolicy",
    "FailedTask",
    "Handler",
    "JsonSerde",
    "KeyLocation",
    "Member",
    "MemberKeywords",
    "MemberOptions",
    "MemoryStore",
    "MsgpackSerde",
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
