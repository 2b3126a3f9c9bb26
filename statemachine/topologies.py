"""How the topology of a member differs from the one that its group knows under the same epoch, and
which tasks of the newest topology a member of another epoch may run (docs/protocol.md#d1).

The order of the topics of a sub-topology means nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from equipoise.events.facts import Subtopology

TOPOLOGY_DIFFERS = ("subtopologies_differ", "sources_differ", "changelogs_differ", "statefulness_differs", "tasks_missing")
"""Rejections of a join whose topology is not the group's."""


@attrs.frozen
class TopologyDifference:
    """The first difference. `code`: one of TOPOLOGY_DIFFERS. `group`, `member`: that sub-topology;
    None: it has none of this number.
    """

    code: str
    subtopology: int
    group: Subtopology | None
    member: Subtopology | None

    @property
    def numbers(self) -> tuple[int, int, int]:
        """The sub-topology, and how many tasks it has in the group, and at the member."""
        return self.subtopology, 0 if self.group is None else self.group.partitions, 0 if self.member is None else self.member.partitions

    def text(self) -> str:
        """``sub-topology 0: source topics clicks in the group, and views here``."""
        if self.group is None or self.member is None:
            there, lacking = ("here", "in the group") if self.group is None else ("in the group", "here")
            return f"sub-topology {self.subtopology} exists {there}, and not {lacking}"
        of_group, here = topics_text(self.code, self.group), topics_text(self.code, self.member)
        return f"sub-topology {self.subtopology}: {of_group} in the group, and {here} here"


def topics_text(code: str, part: Subtopology) -> str:
    """Returns what `part` has where the code says that it differs: ``source topics clicks``."""
    if code == "sources_differ":
        return f"source topics {_topics(part.source_topics)}"
    if code == "changelogs_differ":
        return f"state topics {_topics(part.changelog_topics)}"
    if code == "statefulness_differs":
        return "with state" if part.stateful else "without state"
    return f"{part.partitions} tasks"


def _topics(topics: Iterable[str]) -> str:
    return ", ".join(sorted(topics)) or "none"


def difference(group: Sequence[Subtopology], member: Sequence[Subtopology]) -> TopologyDifference | None:
    """The first difference for which a member must not join; None: there is none.

    More partitions than the group has tasks are none: each task is the same for both, and the new
    partitions wait for a topology with a higher epoch.
    """
    of_group, of_member = ({part.subtopology: part for part in parts} for parts in (group, member))
    for number in sorted(of_group.keys() | of_member.keys()):
        known, own = of_group.get(number), of_member.get(number)
        code = "subtopologies_differ" if known is None or own is None else _code(known, own)
        if code is not None:
            return TopologyDifference(code, number, known, own)
    return None


def _code(known: Subtopology, own: Subtopology) -> str | None:
    if sorted(known.source_topics) != sorted(own.source_topics):
        return "sources_differ"
    if known.stateful != own.stateful:
        return "statefulness_differs"
    if sorted(known.changelog_topics) != sorted(own.changelog_topics):
        return "changelogs_differ"
    return "tasks_missing" if own.partitions < known.partitions else None


def is_part_of(former: Subtopology, newest: Subtopology) -> bool:
    """Returns whether a member that knows a sub-topology as `former` may run tasks of `newest`,
    which has the same number: it reads and writes no topic that is not the task's.
    """
    return (
        former.stateful == newest.stateful
        and set(former.source_topics) <= set(newest.source_topics)
        and set(former.changelog_topics) <= set(newest.changelog_topics)
    )
