"""The origin of a record that a task wrote: under which grant, of which log (docs/protocol.md#m6).
Members put it into the headers of each record.

=================== ==================== =====================================================
header              on                   value
=================== ==================== =====================================================
``equipoise``       outputs, changelogs  ``<group>/<task>/<token>``
``equipoise.log``   outputs, changelogs  the id of the log that granted the task
``equipoise.epoch`` changelogs           the writer epoch: which writer of this changelog it is
=================== ==================== =====================================================
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

TOKEN_HEADER = "equipoise"
LOG_HEADER = "equipoise.log"
EPOCH_HEADER = "equipoise.epoch"

Headers = tuple[tuple[str, bytes], ...]


@attrs.frozen(order=True)
class Origin:
    """Who wrote a record. Origins in one changelog are ordered: the later owner has the higher
    origin.

    A *writer* is one task of one group in one log. `token`: the fencing token of its grant, which
    rises with every grant to that writer. `epoch` rises when another writer takes over the
    changelog; from 1. 0: an output, or a record of a build that knew no epochs.
    """

    epoch: int
    log_id: str
    group: str
    task: str
    token: int

    def same_writer(self, other: Origin) -> bool:
        """Whether tokens of both may be compared."""
        return (self.log_id, self.group, self.task) == (other.log_id, other.group, other.task)

    @property
    def transactional_id(self) -> str:
        """Of its producer, with exactly_once."""
        return transactional_id(self.group, self.task)

    def headers(self) -> Headers:
        """The headers of a record of this origin."""
        headers = [(TOKEN_HEADER, f"{self.group}/{self.task}/{self.token}".encode()), (LOG_HEADER, self.log_id.encode())]
        if self.epoch:
            headers.append((EPOCH_HEADER, b"%d" % self.epoch))
        return tuple(headers)


def transactional_id(group: str, task: str) -> str:
    """Of the producer of a task's owner, with exactly_once. It names no log: so the owner in a new
    log fences the owner in the former one.
    """
    return f"{group}/{task}"


def read_origin(headers: Iterable[tuple[str, bytes]]) -> Origin | None:
    """The origin that the headers of a record name; None: none, or a malformed one. `log_id` is ""
    in records of a build that named no log.
    """
    named = dict(headers)
    try:
        group, task, token = named[TOKEN_HEADER].decode().rsplit("/", 2)
        return Origin(int(named.get(EPOCH_HEADER, b"0")), named.get(LOG_HEADER, b"").decode(), group, task, int(token))
    except (KeyError, ValueError, AttributeError):  # a header may have no value; UnicodeDecodeError is a ValueError
        return None
