"""Sorts the errors of brokers and of the Kafka client by what goes on failing: nothing, because it
passes; one record; one task; or the whole member. Only the first may be repeated for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

import attrs

from equipoise.events.errors import EquipoiseError, InputError
from equipoise.kafka.client import TopicPartition
from equipoise.member.tasks.sizes import RecordSizes, is_too_large

PATIENCE_S = 10.0
"""For so long a task or a member is refused, without a commit in between, before that counts: a
topic that is being made, or rights that are on their way to all brokers, pass.
"""
SMALLER_TRIES = 12
"""So often in a row the records that are too large may be fewer and smaller the next time."""


class ForGood(StrEnum):
    """Sorts errors by what they refuse for good."""

    NOTHING = "nothing"
    """It passes: a broker is away, a leader or a coordinator has moved, another owner has begun."""
    RECORD = "record"
    """Something that is written for one source record: the error policy decides."""
    TASK = "task"
    """What a task reads or writes, whatever the record: it is parked."""
    MEMBER = "member"
    """Everything that this process does: it ends, with an error that names the fix."""


_NOTHING = """
BrokerNotAvailableError BrokerResponseError Cancelled CommitFailedError ConcurrentTransactions ConsumerStoppedError
CorrelationIdError DuplicateSequenceNumber FetchSessionIdNotFound GroupCoordinatorNotAvailableError GroupIdNotFound
GroupLoadInProgressError IllegalGenerationError IllegalOperation IllegalStateError InconsistentGroupProtocolError InvalidFetchSessionEpoch
InvalidProducerEpoch InvalidProducerIdMapping InvalidReplicationAssignmentError InvalidSessionTimeoutError InvalidTxnState KafkaConnectionError
KafkaError KafkaProtocolError KafkaStorageError KafkaTimeoutError KafkaUnavailableError LeaderNotAvailableError ListenerNotFound LogDirNotFound
MemberIdRequired MetadataEmptyBrokerList NoBrokersAvailable NoError NodeNotReadyError NonEmptyGroup NotControllerError
NotCoordinatorForGroupError NotEnoughReplicasAfterAppendError NotEnoughReplicasError NotLeaderForPartitionError OffsetOutOfRangeError
OperationNotAttempted OutOfOrderSequenceNumber ProducerClosed ProducerFenced QuotaViolationError ReassignmentInProgress RebalanceInProgressError
ReplicaNotAvailableError RequestTimedOutError StaleControllerEpochError StaleLeaderEpochCodeError StaleMetadata TooManyInFlightRequests
TopicAlreadyExistsError TransactionCoordinatorFenced UnknownError UnknownMemberIdError UnknownProducerId
"""
_RECORD = "InvalidRecordError InvalidTimestampError InvalidTopicError MessageSizeTooLargeError RecordListTooLargeError RecordTooLargeError"
_TASK = """
CorruptRecordException InvalidCommitOffsetSizeError InvalidFetchRequestError InvalidPartitionsError
InvalidReplicationFactorError InvalidRequestError InvalidRequiredAcksError NoOffsetForPartitionError OffsetMetadataTooLargeError
PolicyViolationError TopicAuthorizationFailedError UnknownTopicOrPartitionError UnsupportedCodecError UnsupportedForMessageFormatError
"""
_MEMBER = """
AuthenticationFailedError AuthenticationMethodNotSupported ClusterAuthorizationFailedError DelegationTokenAuthDisabled
DelegationTokenAuthorizationFailed DelegationTokenExpired DelegationTokenNotFound DelegationTokenOwnerMismatch DelegationTokenRequestNotAllowed
GroupAuthorizationFailedError IllegalArgumentError IllegalSaslStateError IncompatibleBrokerVersion InvalidConfigurationError InvalidGroupIdError
InvalidPrincipalType InvalidTransactionTimeout KafkaConfigurationError SaslAuthenticationFailed SecurityDisabled
TransactionalIdAuthorizationFailed UnrecognizedBrokerVersion UnsupportedSaslMechanismError UnsupportedVersionError
"""
SORTED: dict[str, ForGood] = {
    name: refused
    for refused, names in ((ForGood.NOTHING, _NOTHING), (ForGood.RECORD, _RECORD), (ForGood.TASK, _TASK), (ForGood.MEMBER, _MEMBER))
    for name in names.split()
}
"""Name of a class of aiokafka's errors, or of the client's own -> what it refuses."""

_RIGHTS = "allow its user {allow} (`equipoise doctor` names all ACLs)"
_RESOURCES = {
    "GroupAuthorizationFailedError": "the group of its name",
    "ClusterAuthorizationFailedError": "the cluster",
    "TransactionalIdAuthorizationFailed": "transactional ids that begin with the group's name and /",
}
_OPERATIONS = {
    "GroupAuthorizationFailedError": "Read",
    "ClusterAuthorizationFailedError": "IdempotentWrite",
    "TransactionalIdAuthorizationFailed": "Write",
}
"""Error -> what an ACL has to allow, where the error alone says it."""
_SENTENCES = {
    "MessageSizeTooLargeError": "a record{to} is larger than the topic takes (max.message.bytes), or than 1 MiB: make it smaller",
    "RecordListTooLargeError": "a record{to} is larger than a segment of the topic: make it smaller, or raise segment.bytes",
    "InvalidRecordError": "the brokers take no such record{to}: a compacted topic needs a key in each record",
    "InvalidTimestampError": "a record{to} has a timestamp that the topic does not take: see its message.timestamp.* settings",
    "InvalidTopicError": "Kafka allows no topic with this name{of}: send to another one",
    "UnknownTopicOrPartitionError": "topic{name} does not exist: create it",
    "TopicAuthorizationFailedError": "this member may not use topic{name}: " + _RIGHTS,
    "CorruptRecordException": "a broker has a damaged record{of}: delete the records up to it, or restore the topic",
    "UnsupportedCodecError": "the compression of topic{name} needs a library: pip install 'equipoise[member]'",
    "UnsupportedForMessageFormatError": "topic{name} has a message format from before Kafka 0.11: upgrade it",
    "ClusterAuthorizationFailedError": "this member may not write idempotently: " + _RIGHTS,
    "GroupAuthorizationFailedError": "this member may not use its group at the brokers: " + _RIGHTS,
    "TransactionalIdAuthorizationFailed": "this member may not use its transactional ids: " + _RIGHTS,
    "InvalidTransactionTimeout": (
        "the brokers allow no transaction of 60 s, as exactly_once needs it: raise their transaction.max.timeout.ms, or use at_least_once"
    ),
    "UnsupportedVersionError": "the brokers are too old for what this member asks: upgrade them (docs/deploy.md#versions-of-kafka)",
    "AuthenticationFailedError": "the brokers do not accept this member's user: see its password or token",
}


MISSING_RIGHTS = frozenset(
    {
        "TopicAuthorizationFailedError",
        "GroupAuthorizationFailedError",
        "ClusterAuthorizationFailedError",
        "TransactionalIdAuthorizationFailed",
        "DelegationTokenAuthorizationFailed",
        "AuthenticationFailedError",
        "SaslAuthenticationFailed",
    }
)
"""Errors which pass when somebody gives this process's user a right, or a password that fits."""


class CommitRefusedError(Exception):
    """A commit cannot be written, because of what was put or sent. `error`: why."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class RefusedByBrokersError(EquipoiseError):
    """The brokers refuse what this member does, whatever the task. Its text names the fix."""


def refused_by(error: BaseException) -> ForGood:
    """Returns what `error` refuses. A class that nobody has sorted counts as its base class does."""
    if isinstance(error, InputError):
        return ForGood.RECORD
    return next((SORTED[each.__name__] for each in type(error).__mro__ if each.__name__ in SORTED), ForGood.NOTHING)


def blame_record(error: BaseException) -> None:
    """Notes that `error` refuses what was written for source records: only then is it a record's."""
    vars(error)["is_of_record"] = True


def blames_record(error: BaseException) -> bool:
    """Returns whether `error` is about what was written for source records. A broker's error is
    not, unless `blame_record` was called: the member's own records, and its clock, are refused too.
    """
    if type(error).__name__ == "InvalidTopicError" or isinstance(error, InputError):
        return True
    return refused_by(error) is ForGood.RECORD and bool(vars(error).get("is_of_record"))


def is_own_refused(error: BaseException) -> bool:
    """Returns whether brokers refuse a record of the member's own, such as its offsets."""
    return refused_by(error) is ForGood.RECORD and vars(error).get("is_of_record") is False


def is_clock_refused(error: BaseException) -> bool:
    """Returns whether brokers refuse the time of this machine's clock. That passes."""
    return type(error).__name__ == "InvalidTimestampError" and not blames_record(error)


def is_missing_right(error: BaseException) -> bool:
    """Returns whether the brokers refuse what this process's user may not do."""
    return type(error).__name__ in MISSING_RIGHTS


_NAMING = ("TopicAuthorizationFailedError", "InvalidTopicError", "UnknownTopicOrPartitionError")
"""Errors whose argument is a topic, or some."""


def name_topic(error: BaseException, topic: str, operation: str = "") -> None:
    """Notes which topic `error` is about, unless it is known, and the operation of an ACL that
    allows what was refused ("": unknown): Kafka's errors do not say it.
    """
    if not _topic_of(error):
        vars(error)["topic"] = topic
    if operation:
        vars(error)["operation"] = operation


def _topic_of(error: BaseException) -> str:
    """The topic that `error` is about; "": unknown."""
    known = vars(error).get("topic", "")
    if not known and type(error).__name__ in _NAMING and error.args:
        given = getattr(error.args[0], "topic", error.args[0])  # of a partition
        if isinstance(given, str):
            known = "" if " " in given else given  # a sentence
        elif isinstance(given, set | frozenset | list | tuple):
            known = ", ".join(sorted(map(str, given)))
    return str(known)


def sentence(error: BaseException) -> str:
    """Returns what is refused and how to mend it, for people; of another error its own text."""
    name = type(error).__name__
    if name not in SORTED or not type(error).__module__.startswith(("aiokafka.", "equipoise.")):
        return f"{name}: {error}"
    topic, text = _topic_of(error), _SENTENCES.get(name)
    if is_own_refused(error) and is_too_large(error):
        return f"{name}: topic {topic} takes no record as large as one that the member keeps its offsets in: raise its max.message.bytes"
    if text is None:
        return f"{name}: {error}" + (f" (topic {topic})" if topic else "")
    operation = vars(error).get("operation", "")
    resource, allowed = _RESOURCES.get(name, "the topic"), operation or _OPERATIONS.get(name, "Read or Write")
    return f"{name}: " + text.format(
        to=f" for {topic}" if topic else "",
        of=f" ({topic})" if topic else "",
        name=f" {topic}" if topic else "",
        allow=f"{allowed} on {f'topic {topic}' if topic and resource == 'the topic' else resource}",
    )


@attrs.define
class RefusedRecord:
    """A source record for which something was put or sent that is refused. `attempts`: so many have
    failed. `is_given_again`: the policy was to retry, and the handler has had it again.
    `is_left_out`: it was skipped, or its dead letter was sent.
    """

    offset: int
    error: BaseException
    attempts: int = 0
    is_given_again: bool = False
    is_left_out: bool = False


class TaskRefusals:
    """Remembers what was refused under one grant since its last commit, and finds the record that
    is at fault: the next commit has half of the records, and so on, until one has a single record.
    Then commits grow again.
    """

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self.records: dict[TopicPartition, RefusedRecord] = {}
        """Source partition -> the record at fault, which the error policy decides about."""
        self.most: int | None = None
        """Most records of the next commit, whose end is awaited; None: as usual."""
        self._pending = 0
        """Number of records, and timers, since the last commit that has succeeded."""
        self._suspects = 0
        """Number of the next records of which one is at fault; 0: none is looked for."""
        self._last: tuple[TopicPartition, int] | None = None
        """Source partition and offset of the last record; None: a timer was last."""
        self._since_s: float | None = None
        self._learned = self._smaller = 0

    def handled(self, place: TopicPartition | None, offset: int, records: int) -> None:
        """So many records were handled, of which this is the last one; None: a timer has run."""
        self._pending += records
        self._last = None if place is None else (place, offset)

    def committed(self, records: int, offsets: Mapping[TopicPartition, int]) -> None:
        """So many of them are committed, up to before these offsets."""
        self._pending = max(0, self._pending - records)
        self._since_s, self._smaller = None, 0
        if self._suspects:
            self._suspects = max(0, self._suspects - records)
            self.most = max(1, self._suspects // 2) if self._suspects else None
        elif self.most is not None:
            self.most *= 2
        for place in [place for place, each in self.records.items() if offsets.get(place, 0) > each.offset]:
            del self.records[place]

    def back_to_usual(self, most: int) -> None:
        """A commit has at most so many records anyhow."""
        if self.most is not None and self.most >= most:
            self.most = None

    def reopened(self, records: int) -> None:
        """The task continues from its last commit, with so many changes to write again."""
        self._pending, self._last = records, None

    @property
    def last(self) -> tuple[str, int, int]:
        """Topic, partition and offset of the last record; "", -1 and -1: a timer was last."""
        return ("", -1, -1) if self._last is None else (*self._last[0], self._last[1])

    def judge(self, error: BaseException, sizes: RecordSizes | None) -> ForGood:
        """Returns what to do after `error`: open the task again (NOTHING, RECORD), park it (TASK),
        or end the member.
        """
        refused = refused_by(error)
        if refused is ForGood.NOTHING or is_clock_refused(error):
            return ForGood.NOTHING
        if self._pending and blames_record(error):
            return self._judge_records(error, sizes)
        now_s = self._monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s < PATIENCE_S:
            return ForGood.NOTHING
        return ForGood.TASK if refused is ForGood.RECORD else refused

    def _judge_records(self, error: BaseException, sizes: RecordSizes | None) -> ForGood:
        if sizes is not None and is_too_large(error) and sizes.learned != self._learned and self._smaller < SMALLER_TRIES:
            self._learned, self._smaller = sizes.learned, self._smaller + 1
            return ForGood.RECORD  # what is too large is found before it is sent
        if self._pending > 1 and self.most != 1:
            self._suspects, self.most = self._pending, max(1, self._pending // 2)
            return ForGood.RECORD
        if self._last is None:
            return ForGood.TASK
        place, offset = self._last
        known = self.records.get(place)
        if known is not None and known.offset != offset:
            known = None
        if known is not None and known.is_left_out:
            return ForGood.TASK
        self.records[place] = RefusedRecord(offset, error, 0 if known is None else known.attempts)
        self._suspects, self.most = 0, 1
        return ForGood.RECORD
