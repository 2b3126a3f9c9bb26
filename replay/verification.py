"""Verification: replays the facts of every group, recomputes every decision and compares it with
the stored one, byte for byte.

One pass, in memory that does not grow with the log (docs/protocol.md#l4 to #l7). The verdict is one
of three:

- *identical*: every stored decision equals the recomputed one in number, cause, index, checksum of
  its fact and encoded bytes. Hashes of the state in a form that this build does not write are not
  compared; they are counted.
- *divergence*: a stored decision differs. The answer has the first one, with its fact, both
  decisions and what they change differently.
- *cannot verify*: the log is damaged, or this build lacks the assignor, behaviour version or solver
  version to judge it. So a divergence is never false: another solver version may choose another
  plan where the optimum is not unique (docs/architecture.md, "Determinism").

Facts at the end of the log whose decisions are not stored yet are counted and are no divergence.

A log that begins at a base is verified from there on: the states of its groups are taken as they
are stored. Other bases are compared with the recomputed states (docs/protocol.md#l10).
"""

from __future__ import annotations

import enum
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import attrs
import msgpack

from equipoise.assignors import Assignor, registry
from equipoise.events import codec
from equipoise.events.decisions import AssignmentIssued, AssignmentProposed, Checkpointed, Decision
from equipoise.events.errors import DamagedError, EquipoiseError, GroupHalted, InputError, LogError
from equipoise.events.facts import LogOpened
from equipoise.events.records import BaseState, DecisionRecord, Entry, FactRecord, UnreadRecord
from equipoise.log import Archive, Log
from equipoise.replay.bases import BaseHash, StoredBases
from equipoise.replay.differences import Difference, differences
from equipoise.replay.replayer import ConfigurationAnswers
from equipoise.statemachine.machine import AssignorLoader, GroupMachine
from equipoise.statemachine.published import PLACE_FIELDS, Match, compare, place_of
from equipoise.statemachine.snapshots import is_of_another_form

if TYPE_CHECKING:
    from equipoise.log.parquet.manifests import Extent

MOST_WAITING = 100_000
"""Recomputed decisions kept until their stored copies arrive: how far decisions may lag behind
facts.
"""
MOST_REMEMBERED = 65_536
"""Number of latest stored decisions with which a stored duplicate is compared."""
MOST_COLLECTED = 20_000
"""Stored decisions of the diverging fact that are read for the report: more than the largest
planned group has members.
"""


class Verdict(enum.Enum):
    """Whether a log replays to the byte: identical, divergence or cannot verify."""

    IDENTICAL = "identical"
    DIVERGENCE = "divergence"
    CANNOT_VERIFY = "cannot verify"

    @property
    def exit_code(self) -> int:
        return {Verdict.IDENTICAL: 0, Verdict.DIVERGENCE: 1, Verdict.CANNOT_VERIFY: 2}[self]


@attrs.frozen(kw_only=True)
class Divergence:
    """The first stored decision of a group that differs from the recomputed one. `recomputed` or
    `stored` None: that side has no such decision.
    """

    offset: int
    """Offset of the fact that caused the decision."""
    number: int
    problem: str
    """One sentence."""
    fact: FactRecord | None
    recomputed: DecisionRecord | None
    stored: DecisionRecord | None
    differences: tuple[Difference, ...] = ()

    def document(self) -> dict[str, Any]:
        return {
            "offset": self.offset,
            "number": self.number,
            "problem": self.problem,
            "fact": None if self.fact is None else {"offset": self.fact.offset, "append_ms": self.fact.append_ms, **codec.to_json(self.fact.event)},
            "recomputed": _decision_document(self.recomputed),
            "stored": _decision_document(self.stored),
            "differences": [difference.document() for difference in self.differences],
        }


def _decision_document(record: DecisionRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {
        "number": record.number,
        "caused_by": record.caused_by,
        "index": record.index,
        "fact_checksum": record.fact_checksum,
        **codec.to_json(record.decision),
    }


@attrs.frozen(kw_only=True)
class GroupVerification:
    """The verification of one group."""

    group: str
    verdict: Verdict
    facts: int
    compared: int
    """Stored decisions that equal the recomputed ones."""
    checkpoints: int
    """Of `compared`, hashes of the whole state."""
    not_compared: int
    """Stored hashes of the whole state in a form that this build does not write
    (docs/protocol.md#l7). Their place was compared, not their value.
    """
    repeated: int
    """Decisions that are stored twice, identically."""
    not_yet_written: int
    """Recomputed decisions at the end that the log does not have yet."""
    bases: int = 0
    """States stored in bases that are the recomputed ones."""
    begins_offset: int | None = None
    """The fact after which its first state is, where the log begins at a base; None: it does not.
    """
    divergence: Divergence | None = None
    problem: str = ""
    """Why the group cannot be verified; "": it can."""
    offset: int | None = None
    """Offset from which the group was not verified, or of the divergence; None: verified to the
    end.
    """

    def document(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "verdict": self.verdict.value,
            "facts": self.facts,
            "decisions_identical": self.compared,
            "checkpoints_identical": self.checkpoints,
            "checkpoints_not_compared": self.not_compared,
            "repeated": self.repeated,
            "not_yet_written": self.not_yet_written,
            "bases_identical": self.bases,
            "begins_offset": self.begins_offset,
            "offset": self.offset,
            "problem": self.problem or None,
            "divergence": None if self.divergence is None else self.divergence.document(),
        }


@attrs.frozen(kw_only=True)
class Verification:
    """The verification of a log. The verdict is divergence if any group diverges, else cannot
    verify if any group or the log cannot be verified, else identical.
    """

    log_id: str
    groups: tuple[GroupVerification, ...]
    records: int
    """Records read: LogOpened, facts and decisions."""
    problem: str = ""
    """Why the log cannot be read to its end, with the offset; "": it can."""
    offset: int | None = None
    begins: tuple[int, int] | None = None
    """First fact and time (ms) of the base at which the log begins, the earliest of its partitions;
    None: it begins with its first record.
    """
    extent: Extent | None = None
    """Up to where each partition of an archive was read; None: it is none."""

    @property
    def verdict(self) -> Verdict:
        verdicts = {group.verdict for group in self.groups}
        if Verdict.DIVERGENCE in verdicts:
            return Verdict.DIVERGENCE
        return Verdict.CANNOT_VERIFY if self.problem or Verdict.CANNOT_VERIFY in verdicts else Verdict.IDENTICAL

    @property
    def problems(self) -> list[str]:
        """Returns why the log or its groups cannot be verified: problems of the log first."""
        return list(dict.fromkeys(problem for problem in (self.problem, *(group.problem for group in self.groups)) if problem))

    def document(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict.value,
            "log_id": self.log_id,
            "records": self.records,
            "begins": None if self.begins is None else {"offset": self.begins[0], "append_ms": self.begins[1]},
            "problem": self.problem or None,
            "offset": self.offset,
            "extent": None if self.extent is None else self.extent.document(),
            "groups": [group.document() for group in self.groups],
        }


def verify_log(
    log: Log, names: Iterable[str] = (), *, advance: Callable[[int], None] = lambda records: None, bases: StoredBases | None = None
) -> Verification:
    """Replays and compares every group of an open log, each partition of an archive for itself, so
    that damage to one does not keep the others from being verified. `names`: of the groups; (): all.
    `advance`, `bases`: see `verify`.
    """
    verifier = LogVerifier(bases=bases)
    for name in dict.fromkeys(names) or (None,):
        for reading in log.readings(name) if isinstance(log, Archive) else (log.read(group=name),):
            stopped = verifier.read(reading, advance)
            if stopped is not None and isinstance(log, Archive):
                error, groups = stopped
                verifier.stop(groups, error)
    return attrs.evolve(verifier.answer(), extent=log.extent() if isinstance(log, Archive) else None)


def verify(
    entries: Iterable[Entry],
    *,
    load: AssignorLoader = registry.load,
    advance: Callable[[int], None] = lambda records: None,
    bases: StoredBases | None = None,
) -> Verification:
    """Replays and compares every group of a log that is read as one.

    `entries`: facts and decisions in stored order, as `equipoise.log` reads them. A record
    of a newer build ends the verification of its group only. Errors of the reader (damage, a gap)
    end the pass and are part of the answer, as is an empty log. `load`: see `GroupMachine`.
    `advance` is called with the number of records read since the last call. `bases`: those of the
    log, to be compared. Raises nothing for a damaged log.
    """
    verifier = LogVerifier(load, bases)
    verifier.read(entries, advance)
    return verifier.answer()


_OF_A_LOG = 1
"""Form of a saved verification of a log."""


class LogVerifier:
    """Verifies a log: takes its entries in stored order. It can be saved when its reader has come
    to an end, and go on with what was written since.

    `load`, `bases`: see `verify`.
    """

    def __init__(self, load: AssignorLoader = registry.load, bases: StoredBases | None = None) -> None:
        self._load = load
        self._hashes = {} if bases is None else bases.hashes
        self._groups: dict[str, GroupVerifier] = {}
        self.opened: FactRecord | None = None
        """LogOpened; None: it was not read yet."""
        self._begins: tuple[int, int] | None = None
        self._offset: int | None = None
        self.problem = "" if bases is None else bases.problem
        """Why the log cannot be read to its end; "": it can."""
        self.records = 0

    def read(self, entries: Iterable[Entry], advance: Callable[[int], None] = lambda records: None) -> tuple[LogError, set[str]] | None:
        """Takes entries up to their end, or to what is wrong with the log. Returns that, and the
        groups whose entries came; None: nothing is wrong.
        """
        records = 0
        names: set[str] = set()
        try:
            for entry in entries:
                records += 1
                if records % 256 == 0:
                    advance(256)
                if isinstance(entry, FactRecord) and isinstance(entry.event, LogOpened):
                    self.opened = entry
                else:
                    if isinstance(entry, BaseState):
                        at = entry.begins_offset, entry.append_ms
                        self._begins = at if self._begins is None else min(self._begins, at, key=lambda each: each[1])
                    names.add(entry.group)
                    self._group(entry.group).take(entry)
        except LogError as error:
            if not self.problem:
                self.problem, self._offset = str(error), error.offset
            return error, names
        finally:
            advance(records % 256)
            self.records += records
        return None

    def stop(self, names: Iterable[str], error: LogError) -> None:
        """Notes that the log of these groups cannot be read to its end."""
        for name in sorted(names):
            self._groups[name].cannot_go_on(error.offset, str(error))

    def _group(self, name: str) -> GroupVerifier:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = GroupVerifier(name, self._load, bases=self._hashes)
            if self.opened is not None:
                group.machine.step(self.opened)
        return group

    @property
    def may_go_on(self) -> bool:
        """Returns whether everything could be read and compared so far: what is saved otherwise
        lacks evidence.
        """
        return not self.problem and not any(group.is_over for group in self._groups.values())

    def save(self) -> bytes:
        """Returns everything that `restore` needs. Call it before `answer`."""
        opened = self.opened
        first = None if opened is None else [opened.offset, opened.append_ms, *codec.encode(opened.event), opened.checksum]
        groups = {name: group.save() for name, group in sorted(self._groups.items())}
        saved: bytes = msgpack.packb([_OF_A_LOG, self.records, first, self._begins, groups])
        return saved

    @classmethod
    def restore(cls, saved: bytes, load: AssignorLoader = registry.load) -> LogVerifier:
        """Continues what `save` returned. Raises InputError for bytes of another build."""
        form = msgpack.unpackb(saved)
        if form[0] != _OF_A_LOG:
            raise InputError(f"the saved verification has form {form[0]}, this build reads {_OF_A_LOG}; start it again")
        log = cls(load)
        _, log.records, first, begins, groups = form
        log._begins = None if begins is None else (begins[0], begins[1])
        if first is not None:
            offset, append_ms, *encoded, checksum = first
            log.opened = FactRecord("", offset, append_ms, codec.decode_lenient(*encoded), checksum)
        log._groups = {name: GroupVerifier.restore(each, load) for name, each in groups.items()}
        return log

    def answer(self) -> Verification:
        """Ends the verification and returns its result."""
        if not self.records and not self.problem:
            self.problem, self._offset = "offset 0: the log is empty, so there is nothing to verify; import or simulate one", 0
        opened = self.opened
        log_id = opened.event.log_id if opened is not None and isinstance(opened.event, LogOpened) else ""
        answers = tuple(self._groups[name].answer() for name in sorted(self._groups))
        return Verification(log_id=log_id, groups=answers, records=self.records, problem=self.problem, offset=self._offset, begins=self._begins)


@attrs.frozen
class _Waiting:
    """A recomputed decision whose stored copy has not arrived."""

    record: DecisionRecord
    fact: FactRecord


_SAVED = 4
"""Form of a saved verification."""
_DIGEST_BYTES = 8
_OF_A_HASH = b"\1"
"""First byte of the digest of a `Checkpointed`; 0 for other decisions."""
_NOT_COMPARED = _OF_A_HASH + bytes(_DIGEST_BYTES - 1)
"""Digest of a `Checkpointed` that was not compared."""


def _save_waiting(each: _Waiting) -> list[Any]:
    record, fact = each.record, each.fact
    place = [record.number, record.caused_by, record.index, record.fact_checksum]
    return [*place, *codec.encode(record.decision), fact.append_ms, *codec.encode(fact.event)]


def _restore_waiting(group: str, log_id: str, saved: list[Any]) -> _Waiting:
    number, caused_by, index, fact_checksum, kind, version, payload, append_ms, *encoded = saved
    decision = cast(Decision, codec.decode(kind, version, payload))
    fact = FactRecord(group, caused_by, append_ms, codec.decode_lenient(*encoded), fact_checksum)
    return _Waiting(DecisionRecord(log_id, group, number, caused_by, index, fact_checksum, decision), fact)


class GroupVerifier:
    """Verifies one group: takes its facts and stored decisions in order. It can be saved at any
    point and restored elsewhere.

    `remembered`: number of latest stored decisions with which a stored duplicate is compared.
    `bases`: hashes of `StoredBases`.
    """

    def __init__(
        self,
        name: str,
        load: AssignorLoader = registry.load,
        *,
        remembered: int = MOST_REMEMBERED,
        bases: Mapping[tuple[str, int], BaseHash] | None = None,
    ) -> None:
        self.name = name
        self._bases = bases or {}
        self._bases_identical = 0
        self._base_offset: int | None = None
        """The fact after which the state is that the log begins with; None: it begins with its
        first record.
        """
        self._base_number = 0
        """Number of the last decision by then."""
        self._load = load
        self._assignor: Assignor | None = None
        self.machine = GroupMachine(load=self._remember, any_solver=True)
        self._waiting: deque[_Waiting] = deque()
        self._overflowed = False
        self._digests: deque[bytes] = deque(maxlen=remembered)
        self._other_solver = ""
        """The log's pinned solver, when this build has another one."""
        self._other_optimum = False
        self._facts = self._passed = self._checkpoints = self._not_compared = self._repeated = self._recomputed = 0
        self._problem = ""
        self._offset: int | None = None
        self._divergence: Divergence | None = None
        self._evidence: list[DecisionRecord] = []
        """Stored decisions of the diverging fact."""
        self._answers = ConfigurationAnswers()

    def _remember(self, name: str, version: int) -> Assignor:
        self._assignor = self._load(name, version)
        return self._assignor

    @property
    def is_over(self) -> bool:
        """Returns whether the group diverged or cannot be verified further. Later entries only add
        evidence.
        """
        return bool(self._problem) or self._divergence is not None

    def take(self, entry: Entry) -> None:
        """Takes the next fact or stored decision of the group, or its state at the base at which
        the log begins.
        """
        if isinstance(entry, BaseState):
            self._begin(entry)
            return
        if self._base_offset is not None and self._is_in_base(entry, self._base_offset):
            return
        try:
            known = self._answers.take(entry)
        except DamagedError as error:
            self.cannot_go_on(error.offset, str(error))
            return
        for each in known:
            self._take_known(each)

    def _begin(self, base: BaseState) -> None:
        try:
            self.machine = GroupMachine.restore(base.state, load=self._remember, any_solver=True)
        except EquipoiseError as error:
            self.cannot_go_on(base.offset, f"offset {base.offset}: the state at the base: {error}")
            return
        state = self.machine.state
        if (state.group, state.last_offset, state.number) != (base.group, base.offset, base.number):
            self.cannot_go_on(base.offset, f"offset {base.offset}: the state at the base is of group {state.group!r} at offset {state.last_offset}")
        self._base_offset, self._base_number = base.offset, base.number
        self._passed = base.number
        config = state.config
        if config is not None and self._assignor is not None and config.solver != self._assignor.solver:
            self._other_solver = config.solver

    def _is_in_base(self, entry: Entry, base_offset: int) -> bool:
        """Returns whether the state that the log begins with has it already."""
        number = entry.number if isinstance(entry, DecisionRecord | UnreadRecord) else None
        return number <= self._base_number if number is not None else isinstance(entry, FactRecord | UnreadRecord) and entry.offset <= base_offset

    def _take_known(self, entry: Entry) -> None:
        if isinstance(entry, FactRecord):
            self._fact(entry)
        elif isinstance(entry, DecisionRecord):
            self._stored(entry)
        elif isinstance(entry, UnreadRecord):
            self.cannot_go_on(entry.offset, str(entry.error()))

    def _fact(self, record: FactRecord) -> None:
        if self.is_over:
            return
        try:
            decisions = self.machine.step(record)
        except GroupHalted as halted:
            self._problem, self._offset = str(halted), halted.offset
            return
        self._facts += 1
        config = self.machine.state.config
        if config is not None and self._assignor is not None and config.solver != self._assignor.solver:
            self._other_solver = config.solver
        self._recomputed += len(decisions)
        self._compare_base(record, decisions)
        for decision in decisions:
            self._note_solver(decision)
            if len(self._waiting) < MOST_WAITING:
                self._waiting.append(_Waiting(decision, record))
            else:
                self._overflowed = True

    def _compare_base(self, record: FactRecord, decisions: list[DecisionRecord]) -> None:
        """Compares the state with the one that a base of the log has for this fact."""
        stored = self._bases.get((record.group, record.offset))
        if stored is None:
            return
        for each in decisions:
            if isinstance(each.decision, Checkpointed) and each.decision.form == stored[0]:
                if each.decision.state_sha256 == stored[1]:
                    self._bases_identical += 1
                else:
                    self._diverge("the base of the log has another state after this fact", record, each, each)

    def _note_solver(self, record: DecisionRecord) -> None:
        """Notes a plan with several optima under another solver. That solver may have chosen
        another one, so later differences prove nothing.
        """
        decision = record.decision
        if self._other_solver and isinstance(decision, AssignmentIssued | AssignmentProposed) and not decision.unique:
            self._other_optimum = True

    def _stored(self, record: DecisionRecord) -> None:
        if self._divergence is not None:
            if record.caused_by == self._divergence.offset and len(self._evidence) < MOST_COLLECTED:
                self._note_solver(record)
                self._evidence.append(record)
            return
        if self._problem:
            return
        if record.number <= self._passed:
            self._compare_repeated(record)
        elif not self._waiting:
            self._missing_here(record)
        else:
            self._compare(record, self._waiting[0])

    def _compare_repeated(self, record: DecisionRecord) -> None:
        oldest = self._passed - len(self._digests) + 1
        if record.number < oldest:
            far = f"is stored again over {self._digests.maxlen:,} decisions later"
            self._problem = f"offset {record.caused_by}: decision {record.number} {far}; the copies cannot be compared"
            self._offset = record.caused_by
        elif _is_copy(record, self._digests[record.number - oldest]):
            self._repeated += 1
        else:
            self._diverge(f"decision {record.number} is stored twice, and the copies differ", None, None, record)

    def _missing_here(self, record: DecisionRecord) -> None:
        if self._overflowed:
            self._problem = (
                f"offset {record.caused_by}: decision {record.number} is stored over {MOST_WAITING:,} decisions behind its fact; not compared"
            )
            self._offset = record.caused_by
        else:
            self._diverge(f"the log has decision {record.number}, and nothing that was recomputed up to here answers to it", None, None, record)

    def _compare(self, record: DecisionRecord, waiting: _Waiting) -> None:
        recomputed = waiting.record
        match = compare(record, recomputed)
        if match is Match.EQUAL:
            self._pass(_digest(record))
            self._checkpoints += isinstance(record.decision, Checkpointed)
        elif match is Match.NOT_COMPARED:
            self._pass(_NOT_COMPARED)
            self._not_compared += 1
        elif record.number != recomputed.number:
            self._diverge(f"decision {recomputed.number} is missing in the log: it goes on with {record.number}", waiting.fact, recomputed, record)
        else:
            self._diverge(_what_differs(record, recomputed), waiting.fact, recomputed, record)

    def _pass(self, digest: bytes) -> None:
        self._waiting.popleft()
        self._passed += 1
        self._digests.append(digest)

    def _diverge(self, problem: str, fact: FactRecord | None, recomputed: DecisionRecord | None, stored: DecisionRecord) -> None:
        offset = stored.caused_by if recomputed is None else recomputed.caused_by
        number = stored.number if recomputed is None else recomputed.number
        self._divergence = Divergence(offset=offset, number=number, problem=problem, fact=fact, recomputed=recomputed, stored=stored)
        self._offset = offset
        self._note_solver(stored)
        self._evidence = [stored] if stored.caused_by == offset else []

    def cannot_go_on(self, offset: int, problem: str) -> None:
        """Notes that the group's log cannot be read at `offset`."""
        if not self.is_over:
            self._problem, self._offset = problem, offset

    def save(self) -> bytes:
        """Returns everything that `restore` needs. If the verification is over, that is the counts
        and the problem.
        """
        over = self.is_over
        waiting = [] if over else [_save_waiting(each) for each in self._waiting]
        answers = (ConfigurationAnswers() if over else self._answers).save()
        counts = [self._facts, self._passed, self._checkpoints, self._not_compared, self._repeated, self._recomputed]
        base = [self._base_offset, self._base_number]
        flags = [self._overflowed, self._other_solver, self._other_optimum]
        problem = self._problem or ("" if self._divergence is None else self._divergence.problem)
        machine = b"" if over else self.machine.snapshot()
        digests = b"".join(self._digests)
        saved: bytes = msgpack.packb([_SAVED, self.name, counts, flags, problem, self._offset, machine, waiting, answers, digests, base])
        return saved

    @classmethod
    def restore(cls, saved: bytes, load: AssignorLoader = registry.load, *, remembered: int = MOST_REMEMBERED) -> GroupVerifier:
        """Continues a verification that `save` returned. Raises InputError for bytes of another
        build.
        """
        form = msgpack.unpackb(saved)
        if form[0] != _SAVED:
            raise InputError(f"the saved state of the verification has form {form[0]}, this build reads {_SAVED}; start it again")
        _, name, counts, flags, problem, offset, machine, waiting, answers, digests, base = form
        group = cls(name, load, remembered=remembered)
        if machine:
            group.machine = GroupMachine.restore(machine, load=group._remember, any_solver=True)
        group._facts, group._passed, group._checkpoints, group._not_compared, group._repeated, group._recomputed = counts
        group._overflowed, group._other_solver, group._other_optimum = flags
        group._problem, group._offset = problem, offset
        group._base_offset, group._base_number = base
        group._answers = ConfigurationAnswers.restore(answers)
        group._waiting.extend(_restore_waiting(name, group.machine.state.log_id, each) for each in waiting)
        group._digests.extend(digests[at : at + _DIGEST_BYTES] for at in range(0, len(digests), _DIGEST_BYTES))
        return group

    def answer(self) -> GroupVerification:
        """Ends the verification and returns its result."""
        for held in self._answers.rest():
            self._take_known(held)
        divergence = self._divergence
        if divergence is not None and self._other_optimum:
            self._problem = (
                f"offset {divergence.offset}: decision {divergence.number} differs, but not every plan up to it was the only optimum, "
                f"and the log is pinned to solver {self._other_solver!r}; verify it with the build that has it"
            )
            divergence = None
        if divergence is not None:
            recomputed = [waiting.record for waiting in self._waiting if waiting.record.caused_by == divergence.offset]
            if recomputed or divergence.recomputed is None:
                divergence = attrs.evolve(divergence, differences=tuple(differences(recomputed, self._evidence, self.machine.state)))
        verdict = Verdict.DIVERGENCE if divergence is not None else Verdict.CANNOT_VERIFY if self._problem else Verdict.IDENTICAL
        return GroupVerification(
            group=self.name,
            verdict=verdict,
            facts=self._facts,
            compared=self._passed - self._base_number - self._not_compared,
            checkpoints=self._checkpoints,
            not_compared=self._not_compared,
            repeated=self._repeated,
            not_yet_written=0 if self.is_over else self._recomputed - (self._passed - self._base_number),
            bases=self._bases_identical,
            begins_offset=self._base_offset,
            divergence=divergence,
            problem=self._problem,
            offset=self._offset,
        )


def _digest(record: DecisionRecord) -> bytes:
    encoded = codec.encode(record.decision)
    content = repr((place_of(record), encoded.kind, encoded.version)).encode() + encoded.payload
    first = _OF_A_HASH if isinstance(record.decision, Checkpointed) else b"\0"
    return first + hashlib.blake2b(content, digest_size=_DIGEST_BYTES - 1).digest()


def _is_copy(record: DecisionRecord, known: bytes) -> bool:
    """Returns whether a repeated decision equals the one with the digest `known`. Of two hashes in
    different forms, only that both are hashes is known.
    """
    if isinstance(record.decision, Checkpointed) and known.startswith(_OF_A_HASH) and (known == _NOT_COMPARED or is_of_another_form(record.decision)):
        return True
    return known == _digest(record)


def _what_differs(stored: DecisionRecord, recomputed: DecisionRecord) -> str:
    where = f"decision {recomputed.number}"
    for name, theirs, ours in zip(PLACE_FIELDS, place_of(stored), place_of(recomputed), strict=True):
        if theirs != ours:
            return f"{where}: {name} is {theirs} in the log and {ours} when recomputed"
    theirs_kind, ours_kind = type(stored.decision).__name__, type(recomputed.decision).__name__
    if theirs_kind != ours_kind:
        return f"{where} is {theirs_kind} in the log and {ours_kind} when recomputed"
    if isinstance(stored.decision, Checkpointed):
        return f"{where}: the state has another hash than the log says, though every decision up to here is the same"
    theirs_by_name, ours_by_name = (attrs.asdict(each.decision, recurse=False) for each in (stored, recomputed))
    names = ", ".join(name for name in ours_by_name if theirs_by_name[name] != ours_by_name[name])
    who = getattr(stored.decision, "member_id", None)
    return f"{where} ({theirs_kind}{f' of {who}' if who else ''}) differs in {names or 'its bytes'}"
