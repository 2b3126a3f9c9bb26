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
    pattern("oll timeout has expired", Said.POLL_TIMEOUT, rf"(?:{_WHO}.*?)?(?<!worker )[Cc]onsumer poll timeout has expired",
            "[Consumer clientId=b, groupId=g] consumer poll timeout has expired."),
    pattern("worker poll timeout has expired", Said.POLL_TIMEOUT, rf"(?:{_WHO}.*?)?worker poll timeout has expired(?:\. The last known action being performed by the worker is : (?P<text>[^.]*))?",
            "[Worker clientId=w, groupId=g] worker poll timeout has expired. The last known action being performed by the worker is : ensuring membership in the cluster.", kind="connect"),
    pattern("sending LeaveGroup request", Said.LEAVING, rf"{_WHO} (?:Member (?P<member>\S+) )?sending LeaveGroup request to coordinator (?P<other>\S+ ?\(id[^)]*\)|\S+)(?: due to (?P<text>.*))?",
            "[Consumer clientId=b, groupId=g] Member b-1 sending LeaveGroup request to coordinator k:9092 (id: 2147483647 rack: null) due to the consumer is being closed", refine=one_of( {"poll timeout": Said.POLL_TIMEOUT}, Said.LEAVING)),
    pattern("Request joining group due to", Said.JOINING, rf"{_WHO} Request joining group due to: (?P<text>.*)",
            "[Consumer clientId=b, groupId=g] Request joining group due to: group is already rebalancing"),
    pattern("(Re-)joining group", Said.JOINING, rf"{_WHO} \(Re-\)joining group", "[Consumer clientId=b, groupId=g] (Re-)joining group"),
    pattern("Successfully joined group", Said.JOINED, rf"{_WHO} Successfully joined group with generation {_GENERATION}",
            "[Consumer clientId=b, groupId=g] Successfully joined group with generation Generation{generationId=5, memberId='b-1', protocol='range'}"),
    pattern("Successfully synced group", Said.SYNCED, rf"{_WHO} Successfully synced group in generation {_GENERATION}",
            "[Consumer clientId=b, groupId=g] Successfully synced group in generation Generation{generationId=5, memberId='b-1', protocol='range'}"),
    pattern("Finished assignment for group", Said.DEALT, rf"{_WHO} Finished assignment for group(?: [^:]*?)? at generation (?P<number>[0-9]+): (?P<text>.*)",
            "[Consumer clientId=b, groupId=g] Finished assignment for group at generation 5: {b-1=Assignment(partitions=[t-0])}"),
    pattern("ewly assigned partitions", Said.GIVEN, rf"{_WHO} Adding newly assigned partitions:? ?(?P<work>.*)",
            "[Consumer clientId=b, groupId=g] Adding newly assigned partitions: [t-0, t-1]"),
    pattern("Setting newly assigned partitions", Said.GIVEN, rf"{_WHO} Setting newly assigned partitions:? ?(?P<work>.*)",
            "[Consumer clientId=b, groupId=g] Setting newly assigned partitions [t-0]", state="all"),
    pattern("Revok", Said.REVOKED, rf"{_WHO} Revok(?:e|ing) previously assigned partitions:? ?(?P<work>.*)",
            "[Consumer clientId=b, groupId=g] Revoke previously assigned partitions [t-0, t-1]"),
    pattern("Lost previously assigned", Said.LOST, rf"{_WHO} Lost previously assigned partitions:? ?(?P<work>.*)",
            "[Consumer clientId=b, groupId=g] Lost previously assigned partitions [t-0]"),
    pattern("Giving away all assigned partitions as lost", Said.LOST, rf"{_WHO} Giving away all assigned partitions as lost",
            "[Consumer clientId=b, groupId=g] Giving away all assigned partitions as lost since generation/memberID has been reset"),
    pattern("Attempt to heartbeat failed", Said.REBALANCING, rf"{_WHO} Attempt to heartbeat failed since group is rebalancing",
            "[Consumer clientId=b, groupId=g] Attempt to heartbeat failed since group is rebalancing"),
    pattern("ttempt to heartbeat", Said.AWAY, rf"{_WHO} Attempt to heartbeat failed since coordinator (?P<other>\S+)?",
            "[Consumer clientId=b, groupId=g] Attempt to heartbeat failed since coordinator k:9092 (id: 1 rack: null) is either not started or not valid"),
    pattern("Attempt to heartbeat with", Said.UNKNOWN_MEMBER, rf"{_WHO} Attempt to heartbeat with .*? failed due to (?P<text>.*?), resetting generation",
            "[Consumer clientId=b, groupId=g] Attempt to heartbeat with Generation{generationId=5, memberId='b-1', protocol='range'} and group instance id Optional.empty failed due to UNKNOWN_MEMBER_ID, resetting generation", refine=one_of({"fenced": Said.INSTANCE_TAKEN}, Said.UNKNOWN_MEMBER)),
    pattern("fenced", Said.INSTANCE_TAKEN, rf"{_WHO} .*?(?:group instance id (?P<state>\S+) (?:has been )?fenced|Caught fenced group\.instance\.id (?P<text>\S+) error)",
            "[Consumer clientId=b, groupId=g] Caught fenced group.instance.id Optional[app-0] error in heartbeat thread"),
    pattern("FencedInstanceId", Said.INSTANCE_TAKEN, rf"(?:{_WHO}.*?)?FencedInstanceId(?:Exception|Error)",
            "org.apache.kafka.common.errors.FencedInstanceIdException: The broker rejected this static consumer"),
    pattern("unreleased instance id", Said.INSTANCE_TAKEN, rf"{_WHO} \w+ failed due to unreleased instance id",
            "[Consumer clientId=b, groupId=g] ConsumerGroupHeartbeatRequest failed due to unreleased instance id app-0: it is in use"),
    pattern("session timed out without receiving a heartbeat response", Said.SESSION_OVER, rf"{_WHO} Group coordinator (?P<other>\S+) ?.*session timed out without receiving a heartbeat response",
            "[Consumer clientId=b, groupId=g] Group coordinator k:9092 (id: 2147483647 rack: null) is unavailable or invalid due to cause: session timed out without receiving a heartbeat response. isDisconnected: false. Rediscovery will be attempted."),
    pattern("is unavailable or invalid", Said.AWAY,
            rf"{_WHO} Group coordinator (?P<other>\S+)(?: \(id[^)]*\))? is unavailable or invalid(?: due to cause: (?P<text>.*?)(?:\. ?isDisconnected.*)?)?(?:, will attempt.*)?$",
            "[Consumer clientId=b, groupId=g] Group coordinator k:9092 (id: 2147483647 rack: null) is unavailable or invalid due to cause: null. isDisconnected: true. Rediscovery will be attempted."),
    pattern("Marking the coordinator", Said.AWAY, rf"(?:{_WHO} )?Marking the coordinator (?P<other>\S+).* dead",
            "[Consumer clientId=b, groupId=g] Marking the coordinator k:9092 (id: 2147483647 rack: null) dead"),
    pattern("Discovered", Said.FOUND, rf"{_WHO} Discovered (?:group )?coordinator (?:Coordinator\(.*?host='(?P<text>[^']+)'|(?P<other>\S+))",
            "[Consumer clientId=b, groupId=g] Discovered group coordinator k:9092 (id: 2147483647 rack: null)"),
    pattern("Discovered coordinator", Said.FOUND, r"Discovered coordinator (?P<other>\S+) \(id.* for group (?P<group>[^.\s]+)",
            "Discovered coordinator k:9092 (id: 2147483647 rack: null) for group g."),
    # KIP-848
    pattern("transitioned from", None, rf"{_WHO} Member (?P<member>\S+) with epoch (?P<number>-?[0-9]+) transitioned from (?P<other>\w+) to (?P<state>\w+)",
            "[Consumer clientId=b, groupId=g] Member b1 with epoch 6 transitioned from STABLE to RECONCILING.", refine=lambda read: _TRANSITIONS.get(read.get("state", ""), Said.TRANSITION)),
    pattern("due to expired poll timer", Said.POLL_TIMEOUT, rf"{_WHO} Member (?P<member>\S+) with epoch (?P<number>-?[0-9]+) (?:generated|sent|sending).*due to expired poll timer",
            "[Consumer clientId=b, groupId=g] Member b1 with epoch -1 generated the heartbeat to leave due to expired poll timer. It will remain stale (no heartbeat) until it rejoins the group."),
    pattern("ime between subsequent calls to poll()", Said.POLL_TIMEOUT,
            rf"(?:{_WHO} )?Time between subsequent calls to poll\(\).*exceeded approximately by [0-9]+ ms\. Member (?P<member>\S+) will rejoin",
            "[Consumer clientId=b, groupId=g] Time between subsequent calls to poll() was longer than the configured max.poll.interval.ms, exceeded approximately by 9 ms. Member b1 will rejoin the group now."),
    pattern("because epoch", Said.UNKNOWN_MEMBER, rf"{_WHO} .*?HeartbeatRequest failed for member (?P<member>\S+) because epoch \S+ is fenced",
            "[Consumer clientId=b, groupId=g] ConsumerGroupHeartbeatRequest failed for member b1 because epoch 6 is fenced."),
    pattern("eartbeatRequest failed because of", Said.UNKNOWN_MEMBER, rf"{_WHO} \w*HeartbeatRequest failed because of (?:UNKNOWN_MEMBER_ID|FENCED_MEMBER_EPOCH)",
            "[Consumer clientId=b, groupId=g] ConsumerGroupHeartbeatRequest failed because of UNKNOWN_MEMBER_ID: ClientResponse(latencyMs=22)"),
    pattern("is unknown", Said.UNKNOWN_MEMBER, rf"{_WHO} .*?HeartbeatRequest failed because member (?P<member>\S+) is unknown",
            "[Consumer clientId=b, groupId=g] ConsumerGroupHeartbeatRequest failed because member b1 is unknown."),
    pattern("Reconciling assignment with local epoch", Said.TRANSITION,
            rf"{_WHO} Reconciling assignment with local epoch (?P<number>-?[0-9]+)\s+Member:\s+(?P<member>\S+)\s+Assigned partitions:\s+\[(?P<work>[^\]]*)\]",
            "[Consumer clientId=b, groupId=g] Reconciling assignment with local epoch 7\n\tMember:                        b1\n\tAssigned partitions:           [t-0]", state="RECONCILING"),
    # offsets
    pattern("ommitFailedException", Said.COMMIT_FAILED, rf"(?:{_WHO}.*?)?CommitFailedException",
            "[Consumer clientId=b, groupId=g] org.apache.kafka.clients.consumer.CommitFailedException: Offset commit cannot be completed"),
    pattern("ommit of offsets", Said.COMMIT_FAILED, rf"{_WHO} (?:Synchronous|Asynchronous) auto-commit of offsets .*? failed: (?P<text>.*)",
            "[Consumer clientId=b, groupId=g] Asynchronous auto-commit of offsets {t-2=OffsetAndMetadata{offset=296}} failed: Offset commit cannot be completed"),
    pattern("ffset commit failed on partition", Said.COMMIT_FAILED, rf"{_WHO} Offset commit failed on partition (?P<work>\S+) at offset [0-9]+: (?P<text>.*)",
            "[Consumer clientId=b, groupId=g] Offset commit failed on partition t-2 at offset 296: The coordinator is not aware of this member."),
    pattern("User provided listener", Said.CALLBACK, rf"{_WHO} User provided listener (?P<other>\S+) failed on invocation of (?P<text>\w+)",
            "[Consumer clientId=b, groupId=g] User provided listener app.Listener failed on invocation of onPartitionsRevoked for partitions [t-0]"),
    pattern("roup", None, rf"{_WHO} (?:Found no committed|Resetting|Setting offset|Subscribed|Notifying assignor|Discovered|Cluster ID|Requesting|Node|Updating|Failing|SyncGroup"
            r"|JoinGroup|Resetting generation|Seeking|Fetch|The |Generation|Close|Heartbeat|OffsetCommit|Kafka|Creating|Initialized|Member|Skipped|Unsubscribed|Failed)",
            "[Consumer clientId=b, groupId=g] Subscribed to topic(s): t"),
)  # fmt: skip # a table: one row a line
_EXCEPTION = r"(?:\n(?P<text>[^\n]+)(?:[\s\S]*?\nCaused by: (?P<other>[^\n]+))?)?"
STREAMS = (
    pattern("uncaught exception handler", Said.DIED, rf"(?:\[(?P<state>[^\]\s]+-StreamThread-[0-9]+)\].*?)?{_STREAMS}[^\n]*Replacing thread in the streams uncaught exception handler{_EXCEPTION}",
            "stream-client [i1] Replacing thread in the streams uncaught exception handler\norg.apache.kafka.streams.errors.StreamsException: Exception caught in process.", kind="streams"),
    pattern("Encountered the following", Said.DIED, rf"{_STREAMS}[^\n]*Encountered the following (?:unexpected Kafka |uncaught )?(?:exception|error) during processing[^\n]*{_EXCEPTION}",
            "stream-thread [i1-StreamThread-1] Encountered the following exception during processing and the thread is going to shut down: ", kind="streams"),
    pattern("got fresh process id", Said.NO_STATE, r"No process id found on disk, got fresh process id",
            "No process id found on disk, got fresh process id 95c6d802-bb54-4375-b700-8cfd815c536e", kind="streams"),
    pattern("State transition from", Said.STATE, rf"{_STREAMS}.*State transition from (?P<other>\w+) to (?P<state>\w+)",
            "stream-client [i1] State transition from CREATED to REBALANCING", kind="streams"),
    pattern("Restoration took", Said.RESTORED, rf"{_STREAMS}.*Restoration took (?P<number>[0-9]+) ms for all (?:active )?tasks (?P<text>.*)",
            "stream-thread [i1-StreamThread-1] Restoration took 39800 ms for all active tasks [0_1]", kind="streams"),
    pattern("Requested to schedule", Said.FOLLOW_UP, rf"{_STREAMS}.*Requested to schedule (?P<text>.*)",
            "stream-thread [i1-StreamThread-1-consumer] Requested to schedule immediate rebalance for new tasks to be safely revoked from current owner.", kind="streams"),
    pattern("Triggering the followup rebalance", Said.FOLLOW_UP, rf"{_STREAMS}.*Triggering the followup rebalance (?P<text>.*)",
            "stream-thread [i1-StreamThread-1] Triggering the followup rebalance scheduled for 1970-01-01 00:00:00,000 Z.", kind="streams"),
    pattern("lost due to missed rebalance", Said.LOST, rf"{_STREAMS}.*partitions \[(?P<work>[^\]]*)\] lost due to missed rebalance",
            "stream-thread [i1-StreamThread-1] at state RUNNING: partitions [t-0, t-2] lost due to missed rebalance.", kind="streams"),
    pattern("partition revocation took", None, "partition revocation took", "stream-thread [i1-StreamThread-1] partition revocation took 4 ms."),
    pattern("stream-", None, rf"{_STREAMS}", "stream-client [i1] Started 1 stream threads"),
)  # fmt: skip # a table: one row a line

CONNECT = (
    pattern("and got assignment", Said.WORKER, rf"{_WHO} Joined group at generation (?P<number>[0-9]+) (?:with protocol version [0-9]+ )?and got assignment: (?P<text>Assignment\{{.*?\}})"
            r"(?: with rebalance delay: (?P<count>[0-9]+))?",
            "[Worker clientId=w, groupId=g] Joined group at generation 7 with protocol version 2 and got assignment: Assignment{error=0, connectorIds=[s], taskIds=[s-0], delay=9} with rebalance delay: 9", kind="connect"),
    pattern("Rebalance started", Said.JOINING, rf"{_WHO} Rebalance started", "[Worker clientId=w, groupId=g] Rebalance started", kind="connect"),
    pattern("oordinator was unreachable", Said.AWAY, rf"{_WHO} Broker coordinator was unreachable for (?P<number>[0-9]+)ms",
            "[Worker clientId=w, groupId=g] Broker coordinator was unreachable for 3000ms. Revoking previous assignment", kind="connect"),
    pattern("Handling connector-only config update", Said.CHANGED, rf"{_WHO}.*Handling connector-only config update by \S+ connector (?P<text>\S+)",
            "[Worker clientId=w, groupId=g] Handling connector-only config update by restarting connector s", kind="connect"),
    pattern("onnector", Said.CHANGED, rf"{_WHO} Connector (?P<text>\S+) (?P<state>config updated|config removed|target state change)",
            "[Worker clientId=w, groupId=g] Connector s config updated", kind="connect"),
    pattern("Task threw an uncaught", Said.FAILED, r"WorkerS(?:ink|ource)Task\{id=(?P<text>[^}]+)\} Task threw an uncaught and unrecoverable exception",
            "WorkerSinkTask{id=s-1} Task threw an uncaught and unrecoverable exception. Task is being killed", kind="connect"),
    pattern("[Worker clientId", None, rf"{_WHO} ", "[Worker clientId=w, groupId=g] (Re-)joining group"),
)  # fmt: skip # a table: one row a line
