"""Lines of Java's clients: consumers of the classic protocol (1.0 on) and of KIP-848, Kafka
Streams, and the workers of Kafka Connect.
"""

from __future__ import annotations

from equipoise.replay.importers.evidence.patterns import one_of, pattern
from equipoise.replay.importers.evidence.statements import Said

_WHO = r"\[(?:Consumer|Worker|Producer) (?:instanceId=(?P<instance>[^,\]]+), )?clientId=(?P<client>[^,\]]+)(?:, groupId=(?P<group>[^\]]+))?\]"
_STREAMS = r"stream-(?:thread|client) \[(?P<client>[^\]]+)\]"
_GENERATION = r"(?:Generation\{generationId=(?P<number>-?[0-9]+)(?:, memberId='(?P<member>[^']*)')?|(?P<count>[0-9]+))"

_TRANSITIONS: dict[str, Said] = {
    "JOINING": Said.JOINING, "STABLE": Said.TRANSITION, "RECONCILING": Said.TRANSITION, "FENCED": Said.UNKNOWN_MEMBER, "STALE": Said.POLL_TIMEOUT,
    "LEAVING": Said.LEAVING, "PREPARE_LEAVING": Said.LEAVING,
}  # fmt: skip # a table: one row a line

CONSUMERS = (
    pattern("oll timeout has expired", Said.POLL_TIMEOUT,
            rf"(?:{_WHO}.*?)?(?<!worker )[Cc]onsumer poll timeout has expired"),
    pattern("worker poll timeout has expired", Said.POLL_TIMEOUT,
            rf"(?:{_WHO}.*?)?worker poll timeout has expired(?:\. The last known action being performed by the worker is : (?P<text>[^.]*))?", kind="connect"),
    pattern("sending LeaveGroup request", Said.LEAVING,
            rf"{_WHO} (?:Member (?P<member>\S+) )?sending LeaveGroup request to coordinator (?P<other>\S+ ?\(id[^)]*\)|\S+)(?: due to (?P<text>.*))?", refine=one_of(
                {"poll timeout": Said.POLL_TIMEOUT}, Said.LEAVING)),
    pattern("ember id was not recognized", Said.UNKNOWN_MEMBER, rf"(?:{_WHO}.*)?ember id was not recognized"),
    pattern("due to 'encountered UNKNOWN_MEMBER_ID", Said.UNKNOWN_MEMBER, rf"{_WHO}.*UNKNOWN_MEMBER_ID"),
    pattern("Request joining group due to", Said.JOINING, rf"{_WHO} Request joining group due to: (?P<text>.*)"),
    pattern("(Re-)joining group", Said.JOINING, rf"{_WHO} \(Re-\)joining group"),
    pattern("Successfully joined group", Said.JOINED, rf"{_WHO} Successfully joined group with generation {_GENERATION}"),
    pattern("Successfully synced group", Said.SYNCED, rf"{_WHO} Successfully synced group in generation {_GENERATION}"),
    pattern("Finished assignment for group", Said.DEALT,
            rf"{_WHO} Finished assignment for group(?: [^:]*?)? at generation (?P<number>[0-9]+): (?P<text>.*)"),
    pattern("ewly assigned partitions", Said.GIVEN, rf"{_WHO} Adding newly assigned partitions:? ?(?P<work>.*)"),
    pattern("Setting newly assigned partitions", Said.GIVEN, rf"{_WHO} Setting newly assigned partitions:? ?(?P<work>.*)", state="all"),
    pattern("Revok", Said.REVOKED, rf"{_WHO} Revok(?:e|ing) previously assigned partitions:? ?(?P<work>.*)"),
    pattern("Lost previously assigned", Said.LOST, rf"{_WHO} Lost previously assigned partitions:? ?(?P<work>.*)"),
    pattern("Giving away all assigned partitions as lost", Said.LOST, rf"{_WHO} Giving away all assigned partitions as lost"),
    pattern("Attempt to heartbeat failed", Said.REBALANCING, rf"{_WHO} Attempt to heartbeat failed since group is rebalancing"),
    pattern("ttempt to heartbeat", Said.AWAY, rf"{_WHO} Attempt to heartbeat failed since coordinator (?P<other>\S+)?"),
    pattern("Attempt to heartbeat with", Said.UNKNOWN_MEMBER, rf"{_WHO} Attempt to heartbeat with .*? failed due to (?P<text>.*?), resetting generation",
            refine=one_of({"fenced": Said.INSTANCE_TAKEN}, Said.UNKNOWN_MEMBER)),
    pattern("fenced", Said.INSTANCE_TAKEN, rf"{_WHO} .*?(?:group instance id (?P<state>\S+) (?:has been )?fenced|Caught fenced group\.instance\.id (?P<text>\S+) error)"),
    pattern("FencedInstanceId", Said.INSTANCE_TAKEN, rf"(?:{_WHO}.*?)?FencedInstanceId(?:Exception|Error)"),
    pattern("UNRELEASED_INSTANCE_ID", Said.INSTANCE_TAKEN, rf"(?:{_WHO}.*?)?UNRELEASED_INSTANCE_ID"),
    pattern("heartbeat expired without receiving a response", Said.SESSION_OVER, rf"{_WHO}.*session timed out"),
    pattern("session timed out without receiving a heartbeat response", Said.SESSION_OVER,
            rf"{_WHO} Group coordinator (?P<other>\S+) ?.*session timed out without receiving a heartbeat response"),
    pattern("is unavailable or invalid", Said.AWAY,
            rf"{_WHO} Group coordinator (?P<other>\S+)(?: \(id[^)]*\))? is unavailable or invalid(?: due to cause: (?P<text>.*?)(?:\. ?isDisconnected.*)?)?(?:, will attempt.*)?$"),
    pattern("Marking the coordinator", Said.AWAY, rf"(?:{_WHO} )?Marking the coordinator (?P<other>\S+).* dead"),
    pattern("Discovered", Said.FOUND, rf"{_WHO} Discovered (?:group )?coordinator (?:Coordinator\(.*?host='(?P<text>[^']+)'|(?P<other>\S+))"),
    pattern("Discovered coordinator", Said.FOUND, r"Discovered coordinator (?P<other>\S+) \(id.* for group (?P<group>[^.\s]+)"),
    # KIP-848
    pattern("transitioned from", None,
            rf"{_WHO} Member (?P<member>\S+) with epoch (?P<number>-?[0-9]+) transitioned from (?P<other>\w+) to (?P<state>\w+)",
            refine=lambda read: _TRANSITIONS.get(read.get("state", ""), Said.TRANSITION)),
    pattern("due to expired poll timer", Said.POLL_TIMEOUT, rf"{_WHO} Member (?P<member>\S+) with epoch (?P<number>-?[0-9]+) (?:generated|sent|sending).*due to expired poll timer"),
    pattern("ime between subsequent calls to poll()", Said.POLL_TIMEOUT,
            rf"(?:{_WHO} )?Time between subsequent calls to poll\(\).*exceeded approximately by [0-9]+ ms\. Member (?P<member>\S+) will rejoin"),
    pattern("because epoch", Said.UNKNOWN_MEMBER, rf"{_WHO} .*?HeartbeatRequest failed for member (?P<member>\S+) because epoch \S+ is fenced"),
    pattern("eartbeatRequest failed because of", Said.UNKNOWN_MEMBER, rf"{_WHO} \w*HeartbeatRequest failed because of (?:UNKNOWN_MEMBER_ID|FENCED_MEMBER_EPOCH)"),
    pattern("is unknown", Said.UNKNOWN_MEMBER, rf"{_WHO} .*?HeartbeatRequest failed because member (?P<member>\S+) is unknown"),
    pattern("Reconciling assignment with local epoch", Said.TRANSITION,
            rf"{_WHO} Reconciling assignment with local epoch (?P<number>-?[0-9]+)\s+Member:\s+(?P<member>\S+)\s+Assigned partitions:\s+\[(?P<work>[^\]]*)\]", state="RECONCILING"),
    # offsets
    pattern("ommitFailedException", Said.COMMIT_FAILED, rf"(?:{_WHO}.*?)?CommitFailedException"),
    pattern("ommit of offsets", Said.COMMIT_FAILED, rf"{_WHO} (?:Synchronous|Asynchronous) auto-commit of offsets .*? failed: (?P<text>.*)"),
    pattern("ffset commit failed on partition", Said.COMMIT_FAILED, rf"{_WHO} Offset commit failed on partition (?P<work>\S+) at offset [0-9]+: (?P<text>.*)"),
    pattern("User provided listener", Said.CALLBACK, rf"{_WHO} User provided listener (?P<other>\S+) failed on invocation of (?P<text>\w+)"),
    pattern("roup", None, rf"{_WHO} (?:Found no committed|Resetting|Setting offset|Subscribed|Notifying assignor|Discovered|Cluster ID|Requesting|Node|Updating|Failing|SyncGroup"
            r"|JoinGroup|Resetting generation|Seeking|Fetch|The |Generation|Close|Heartbeat|OffsetCommit|Kafka|Creating|Initialized|Member|Skipped|Unsubscribed|Failed)"),
)  # fmt: skip # a table: one row a line
_EXCEPTION = r"(?:\n(?P<text>[^\n]+)(?:[\s\S]*?\nCaused by: (?P<other>[^\n]+))?)?"
STREAMS = (
    pattern("uncaught exception handler", Said.DIED,
            rf"(?:\[(?P<state>[^\]\s]+-StreamThread-[0-9]+)\].*?)?{_STREAMS}[^\n]*Replacing thread in the streams uncaught exception handler{_EXCEPTION}", kind="streams"),
    pattern("Encountered the following", Said.DIED,
            rf"{_STREAMS}[^\n]*Encountered the following (?:unexpected Kafka |uncaught )?(?:exception|error) during processing[^\n]*{_EXCEPTION}", kind="streams"),
    pattern("got fresh process id", Said.NO_STATE, r"No process id found on disk, got fresh process id", kind="streams"),
    pattern("State transition from", Said.STATE, rf"{_STREAMS}.*State transition from (?P<other>\w+) to (?P<state>\w+)", kind="streams"),
    pattern("Restoration took", Said.RESTORED, rf"{_STREAMS}.*Restoration took (?P<number>[0-9]+) ms for all (?:active )?tasks (?P<text>.*)", kind="streams"),
    pattern("Requested to schedule", Said.FOLLOW_UP, rf"{_STREAMS}.*Requested to schedule (?P<text>.*)", kind="streams"),
    pattern("Triggering the followup rebalance", Said.FOLLOW_UP, rf"{_STREAMS}.*Triggering the followup rebalance (?P<text>.*)", kind="streams"),
    pattern("lost due to missed rebalance", Said.LOST, rf"{_STREAMS}.*partitions \[(?P<work>[^\]]*)\] lost due to missed rebalance", kind="streams"),
    pattern("partition revocation took", None, "partition revocation took"),
    pattern("stream-", None, rf"{_STREAMS}"),
)  # fmt: skip # a table: one row a line

CONNECT = (
    pattern("and got assignment", Said.WORKER,
            rf"{_WHO} Joined group at generation (?P<number>[0-9]+) (?:with protocol version [0-9]+ )?and got assignment: (?P<text>Assignment\{{.*?\}})"
            r"(?: with rebalance delay: (?P<count>[0-9]+))?", kind="connect"),
    pattern("Rebalance started", Said.JOINING, rf"{_WHO} Rebalance started", kind="connect"),
    pattern("oordinator was unreachable", Said.AWAY, rf"{_WHO} Broker coordinator was unreachable for (?P<number>[0-9]+)ms", kind="connect"),
    pattern("Handling connector-only config update", Said.CHANGED, rf"{_WHO}.*Handling connector-only config update by \S+ connector (?P<text>\S+)", kind="connect"),
    pattern("onnector", Said.CHANGED, rf"{_WHO} Connector (?P<text>\S+) (?P<state>config updated|config removed|target state change)", kind="connect"),
    pattern("Task threw an uncaught", Said.FAILED, r"WorkerS(?:ink|ource)Task\{id=(?P<text>[^}]+)\} Task threw an uncaught and unrecoverable exception", kind="connect"),
    pattern("[Worker clientId", None, rf"{_WHO} "),
)  # fmt: skip # a table: one row a line
