"""The member client: what an application embeds to be led.

============  =====================================================================================
`client`      `Member`, the door
`options`     what may be set of it
`host`        the thread that hosts a MemberSession, one incarnation after the other
`work`        what the process does because its session says so
`link`        facts out, decisions in
`runner`      one task under one grant: opened, processed, committed, let go
`rates`       what is done a second for each task
`hostload`    what the process takes of its host
`context`     what a handler works with
`preparing`   the application's own preparation of tasks
`restorer`    copies brought up to date from their changelogs
`lead`        a worker in the same process
`stores`      where state is kept
`directory`   whose it is, and where it lies
============  =====================================================================================
"""

from __future__ import annotations

from equipoise.member.client import Member
from equipoise.member.context import State, TaskContext
from equipoise.member.host import SupersededError
from equipoise.member.options import MemberOptions
from equipoise.member.preparing import PrepareContext
from equipoise.member.stores import Change, MemoryStore, RocksStore, StateStore

__all__ = [
    "Change",
    "Member",
    "MemberOptions",
    "MemoryStore",
    "PrepareContext",
    "RocksStore",
    "State",
    "StateStore",
    "SupersededError",
    "TaskContext",
]
