"""The origin of a record that a task wrote: the grant and the log of its writer. Members put it
into a header of each record, ``equipoise``: ``<group>/<task>/<token>/<epoch>/<log id>``. See
docs/protocol.md#m6.

Former builds wrote ``<group>/<task>/<token>`` there, with the log's id in ``equipoise.log`` and, in
changelogs, the epoch in ``equipoise.epoch``. One header costs half as much as three, in bytes and
in time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import attrs

ORIGIN_HEADER = "equipoise"
LOG_HEADER = "equipoise.log"
"""Of a former build."""
EPOCH_HEADER = "equipoise.epoch"
"""Of a former build."""

Headers = tuple[tuple[str, bytes], ...]


@attrs.frozen(order=True)
class Origin:
    """The writer and grant of a record. Origins in one changelog are ordered: a later owner has a
    higher origin.

    A *writer* is one task of one group in one log. `token`: the fencing token of the grant, which
    rises with every grant to that writer. `epoch`: from 1, rises when another writer takes over the
    changelog; 0: an output, or a record of a build without epochs.
    """

    epoch: int
    log_id: str
    group: str
    task: str
    token: int

    def same_writer(self, other: Origin) -> bool:
        """Returns whether both have the same writer, so that their tokens can be compared."""
        return (self.log_id, self.group, self.task) == (other.log_id, other.group, other.task)

    @property
    def transactional_id(self) -> str:
        """See `transactional_id`."""
        return transactional_id(self.group, self.task)

    @cached_property
    def headers(self) -> Headers:
        """The headers of a record of this origin."""
        return ((ORIGIN_HEADER, f"{self.group}/{self.task}/{self.token}/{self.epoch}/{self.log_id}".encode()),)


def transactional_id(group: str, task: str) -> str:
    """The transactional id of the producer of a task without changelogs, with exactly_once; in a
    former build of every task. It does not name the log, so the owner in a new log fences the owner
    in the former one.
    """
    return f"{group}/{task}"


def read_origin(headers: Iterable[tuple[str, bytes]]) -> Origin | None:
    """The origin in the headers of a record; None: it has none, or a malformed one. `log_id` is ""
    in records of a build that did not write it.
    """
    named = dict(headers)
    try:
        written = named[ORIGIN_HEADER].decode()
        if LOG_HEADER not in named and written.count("/") >= 4:
            group, task, token, epoch, log_id = written.rsplit("/", 4)
            return Origin(int(epoch), log_id, group, task, int(token))
        group, task, token = written.rsplit("/", 2)
        return Origin(int(named.get(EPOCH_HEADER, b"0")), named.get(LOG_HEADER, b"").decode(), group, task, int(token))
    except (KeyError, ValueError, AttributeError):  # a header may lack a value; UnicodeDecodeError is a ValueError
        return None
