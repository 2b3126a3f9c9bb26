"""Lines of clients that are not Java's: librdkafka and what binds to it, aiokafka, kafka-python,
Faust, franz-go and sarama.
"""

from __future__ import annotations

from equipoise.replay.importers.evidence.patterns import one_of, pattern
from equipoise.replay.importers.evidence.statements import BEGINS, Said

_BETWEEN = r"(?:%[0-9]\|[0-9.]+\|\w+\|(?P<client>[^|]*?)#consumer-[0-9]+\|.*?)?"

LIBRDKAFKA = (
    pattern("aximum poll interval", Said.POLL_TIMEOUT,
            rf"{_BETWEEN}Application maximum poll interval \((?P<number>[0-9]+)ms\) exceeded by [0-9]+ms"),
    pattern("max.poll.interval.ms", Said.POLL_TIMEOUT, r"Local: Maximum application poll interval"),
    pattern("onsumer group session timed out", Said.SESSION_OVER,
            rf"{_BETWEEN}Consumer group session timed out \(in join-state (?P<state>\S+)\) after (?P<number>[0-9]+) ms without a successful response"),
    pattern("thrd:GroupCoordinator]: GroupCoordinator: ", Said.AWAY,
            rf"{_BETWEEN}\[thrd:GroupCoordinator\]: GroupCoordinator: (?P<text>.*?)(?: \(after [0-9]+ms in state [A-Z_]+.*)?$"),
    pattern("initiating rebalance", Said.REBALANCING,
            rf"{_BETWEEN}Group \"(?P<group>[^\"]+)\" initiating rebalance .*?: (?P<text>[^:]*)$",
            refine=one_of({"max.poll.interval.ms": Said.POLL_TIMEOUT, "session": Said.SESSION_OVER}, Said.JOINING)),
    pattern("is rebalancing", Said.REBALANCING,
            rf"{_BETWEEN}Group \"(?P<group>[^\"]+)\" is rebalancing .*?: (?P<text>[^:]*)$"),
    pattern("JoinGroup response: GenerationId", Said.JOINED,
            rf"{_BETWEEN}JoinGroup response: GenerationId (?P<number>[0-9]+), Protocol (?P<state>\S*), LeaderId (?P<other>\S+)(?: \(me\))?, my MemberId (?P<member>\S+),"),
    pattern("SyncGroup response", Said.SYNCED, rf"{_BETWEEN}SyncGroup response"),
    pattern("delegating", Said.GIVEN, rf"{_BETWEEN}Group \"(?P<group>[^\"]+)\": delegating (?:incremental )?(?P<state>assign|revoke) of [0-9]+ partition",
            refine=lambda read: Said.GIVEN if read.get("state") == "assign" else Said.REVOKED),
    pattern("leave (in state", Said.LEAVING, rf"{_BETWEEN}Group \"(?P<group>[^\"]+)\": leave \(in state"),
    pattern("tatic consumer fenced", Said.INSTANCE_TAKEN, rf"{_BETWEEN}.*[Ss]tatic consumer fenced"),
    pattern("FENCED_INSTANCE_ID", Said.INSTANCE_TAKEN, rf"{_BETWEEN}"),
    pattern("oup.instance.id", Said.INSTANCE_TAKEN, rf"{_BETWEEN}.*instance id .*(?:fenced|still used|unreleased)"),
    pattern("ffset commit", Said.COMMIT_FAILED, rf"{_BETWEEN}Offset commit \((?P<state>[^)]*)\) failed for .*?: (?P<text>.*)"),
    pattern("nknown member", Said.UNKNOWN_MEMBER, rf"{_BETWEEN}.*Broker: Unknown member"),
    pattern("onsumerGroupHeartbeat failed", Said.AWAY, rf"{_BETWEEN}ConsumerGroupHeartbeat failed: (?P<text>.*)",
            refine=one_of({"fenced": Said.UNKNOWN_MEMBER, "unknown member": Said.UNKNOWN_MEMBER, "instance": Said.INSTANCE_TAKEN}, Said.AWAY)),
    pattern("Group \"", None, r"Group \""),
)  # fmt: skip # a table: one row a line

_FOR = r"(?:consumer )?group '?(?P<group>[^\s'.,:]+(?:\.[^\s'.,:]+)*)'?"
PYTHON = (
    pattern("oll timeout has expired", Said.POLL_TIMEOUT, r"Consumer poll timeout has expired.*max_poll_interval_ms"),
    pattern("Heartbeat poll expired, leaving group", Said.POLL_TIMEOUT, "Heartbeat poll expired, leaving group"),
    pattern("eartbeat session expired", Said.SESSION_OVER, "Heartbeat session expired"),
    pattern("ocal member_id was not recognized", Said.UNKNOWN_MEMBER, "ocal member_id was not recognized"),
    pattern("generation id is not", Said.UNKNOWN_MEMBER, rf"Heartbeat failed for {_FOR}: generation id is not"),
    pattern("rebalancing", Said.REBALANCING, rf"(?:Heartbeat failed for {_FOR} because it is rebalancing|Group (?P<other>\S+) is rebalancing; rejoining)"),
    pattern("Joined group", Said.JOINED, r"Joined group '(?P<group>[^']+)' \(generation (?P<number>[0-9]+)\) with member_id (?P<member>\S+)"),
    pattern("Successfully synced group", Said.SYNCED, rf"Successfully synced {_FOR} with generation (?P<number>[0-9]+)"),
    pattern("Successfully joined group", Said.SYNCED,
            rf"Successfully joined {_FOR} (?:with generation (?P<count>[0-9]+)|<Generation (?P<number>[0-9]+) \(member_id: (?P<member>[^,]+))"),
    pattern("(Re-)joining group", Said.JOINING, rf"\(Re-\)joining {_FOR}"),
    pattern("Revoking previously assigned partitions", Said.REVOKED, rf"Revoking previously assigned partitions (?P<work>.*) for {_FOR}"),
    pattern("Setting newly assigned partitions", Said.GIVEN, rf"Setting newly assigned partitions (?P<work>.*) for {_FOR}", state="all"),
    pattern("lost membership; forcibly revoking", Said.LOST, r"Group (?P<group>\S+) lost membership; forcibly revoking (?P<work>.*)"),
    pattern("Cooperative rebalance complete", Said.GIVEN, rf"Cooperative rebalance complete for {_FOR}: owned=.*?, assigned=(?P<work>.*?), revoked=", state="all"),
    pattern("Leaving consumer group", Said.LEAVING, r"Leaving consumer group \(?(?P<group>[^\s)]+)\)?(?: \(member (?P<member>[^)]+)\))?"),
    pattern("LeaveGroup request", Said.LEAVING, r"LeaveGroup request (?:for group (?P<group>\S+) )?(?:succeeded|returned successfully)"),
    pattern("fenced", Said.INSTANCE_TAKEN, rf"(?:for {_FOR} (?:failed )?due to fenced id error|fenced group_instance_id|FencedInstanceId)"),
    pattern("Marking the coordinator dead", Said.AWAY, rf"Marking the coordinator dead \(node (?P<other>\S+)\) ?for {_FOR}(?:: (?P<text>.*))?"),
    pattern("coordinator (node", Said.AWAY, rf"Heartbeat failed for {_FOR}: coordinator \(node (?P<other>\S+)\) is either not started or not valid"),
    pattern("Discovered coordinator", Said.FOUND, rf"Discovered coordinator (?P<other>\S+) for {_FOR}"),
    pattern("OffsetCommit", Said.COMMIT_FAILED, rf"OffsetCommit (?:for|failed for|failed before join, ignoring:) ?(?:{_FOR})?(?: failed:| on partition| due to group error)? ?(?P<text>.*)"),
    pattern("Metadata for topic has changed", Said.TOPICS, "Metadata for topic has changed from"),
    pattern("Elected group leader", None, "Elected group leader"),
    pattern("eceived member id", None, "eceived member id"),
    pattern("subscribed topics to", None, "pdating subscribed topics to"),
    pattern("Coordinator for GROUP", None, "Coordinator for GROUP"),
    pattern("uto offset commit failed", Said.COMMIT_FAILED, rf"[Aa]uto offset commit failed(?: for {_FOR})?: (?P<text>.*)"),
    # Faust's own words, beside those of aiokafka
    pattern("-+ for group", None, r"^\+[-+]+\+ for group"),
    pattern("livelock", Said.POLL_TIMEOUT, r"\[\^-+\w*Consumer.*livelock"),
    pattern("Timed out waiting for", Said.SESSION_OVER, r"\[\^-+.*Timed out waiting for .*rebalanc"),
)  # fmt: skip # a table: one row a line

_IS = r"(?:: |=|\":)\"?"
_KEY = rf"\"?[;,]? ?\"?group{_IS}(?P<group>[^,\s\"]+)\"?"
GO = (
    pattern("beginning to manage the group lifecycle", Said.JOINING, rf"beginning to manage the group lifecycle{_KEY}", text=BEGINS),
    pattern("next-gen group lifecycle", None, "beginning to manage the next-gen group lifecycle"),
    pattern("initial heartbeat received assignment", Said.JOINING,
            rf"initial heartbeat received assignment{_KEY}.*?member_id{_IS}(?P<member>[^,\s\"]+).*?generation{_IS}(?P<number>[0-9]+)", kind="consumer", text=BEGINS),
    pattern("saw a change in group status", Said.REBALANCING, rf"heartbeat saw a change in group status; partitions were added or lost{_KEY}", kind="consumer"),
    pattern("detected an updated assignment", Said.TRANSITION,
            rf"detected an updated assignment.*?{_KEY}.*?member_id{_IS}(?P<member>[^,\s\"]+).*?generation{_IS}(?P<number>[0-9]+)", kind="consumer", state="STABLE"),
    pattern("abandoning assignment and rejoining", Said.UNKNOWN_MEMBER,
            rf"abandoning assignment and rejoining(?: with new member id)?{_KEY}.*?member_id{_IS}(?P<member>[^,\s\"]+)", kind="consumer"),
    pattern("unable to commit offset", Said.COMMIT_FAILED, rf"unable to commit offsets? for topic partition{_KEY}(?P<text>.*)"),
    pattern("leaving next-gen group", Said.LEAVING, rf"leaving next-gen group{_KEY}(?:,? ?\"?member_id{_IS}(?P<member>[^,\s\"]+))?", kind="consumer"),
    pattern("joining group", Said.JOINING, rf"(?<!re)joining group{_KEY}"),
    pattern("joined, balancing group", Said.JOINED, rf"joined, balancing group{_KEY}.*?member_id{_IS}(?P<member>[^,\s\"]+).*?generation{_IS}(?P<number>[0-9]+)"),
    pattern("joined", Said.JOINED, rf"joined{_KEY}.*?member_id{_IS}(?P<member>[^,\s\"]+).*?generation{_IS}(?P<number>[0-9]+)"),
    pattern("synced", Said.GIVEN, rf"synced{_KEY},? ?\"?assigned{_IS}(?P<work>.*)", state="all"),
    pattern("new group session begun", Said.GIVEN, rf"new group session begun{_KEY},? ?\"?added{_IS}(?P<work>.*?),? ?lost"),
    pattern("revoking prior assigned partitions", Said.REVOKED, rf"revoking prior assigned partitions.*?{_KEY},? ?\"?revoking{_IS}(?P<work>.*)"),
    pattern("calling onRevoke at the end of a session", Said.REVOKED, rf"calling onRevoke at the end of a session{_KEY},? ?\"?lost(?:{_IS}| )(?P<work>.*?),? ?\"?stage"),
    pattern("heartbeat errored", Said.UNKNOWN_MEMBER, rf"heartbeat errored{_KEY},? ?\"?err{_IS}(?P<text>.*)", refine=one_of(
        {"rebalanc": Said.REBALANCING, "instance": Said.INSTANCE_TAKEN, "unknown_member": Said.UNKNOWN_MEMBER, "illegal_generation": Said.UNKNOWN_MEMBER,
         "fenced": Said.UNKNOWN_MEMBER}, Said.AWAY)),
    pattern("leaving group", Said.LEAVING, rf"leaving group{_KEY}(?:,? ?\"?member_id{_IS}(?P<member>[^,\s\"]+))?"),
    pattern("join group failed", Said.AWAY, rf"join group failed{_KEY},? ?\"?err{_IS}(?P<text>.*)", refine=one_of({"instance": Said.INSTANCE_TAKEN}, Said.AWAY)),
    pattern("sync failed with RebalanceInProgress", Said.REBALANCING, rf"sync failed with RebalanceInProgress, rejoining{_KEY}"),
    pattern("group manage loop errored", Said.AWAY, rf"group manage loop errored{_KEY},? ?\"?err{_IS}(?P<text>[^,]*)", refine=one_of(
        {"instance": Said.INSTANCE_TAKEN}, Said.AWAY)),
    pattern("consumergroup/", Said.LOST, r"consumergroup/(?P<group>[^:\s]+): lost ownership of (?P<work>map\[.*?\]\]?) due to (?P<text>.*)"),
    pattern("consumergroup/session/", None, r"consumergroup/session/\S+ (?:heartbeat loop stopped|released)"),  # at each rebalance, and no more
    pattern("consumergroup/session/", Said.COMMIT_FAILED, r"consumergroup/session/(?P<member>\S+?)/(?P<number>[0-9]+) (?P<text>heartbeat loop stopped.*|.*)", refine=one_of(
        {"fenced": Said.INSTANCE_TAKEN, "heartbeat": Said.REBALANCING, "released": Said.REBALANCING}, Said.COMMIT_FAILED)),
    pattern("is not known in the current", Said.UNKNOWN_MEMBER, "kafka server: The provided member is not known in the current generation"),
    pattern("loop check partition number goroutine will exit", Said.STATE, r"consumergroup/(?P<group>\S+) loop check"),
    pattern("changed from", Said.TOPICS, r"consumergroup/(?P<group>\S+) loop check partition number .*changed from"),
    pattern("has been fenced", Said.INSTANCE_TAKEN, r"JoinGroup failed: group instance id (?P<instance>\S+) has been fenced"),
    pattern("group", None, r"(?:balanc(?:ing|ed?) group|balance group member|consumer did not change any client-side subscription|newly fetched offsets|join returned MemberIDRequired|syncing|beginning (?:heartbeat|autocommit) loop|fetching offsets|assigning partitions|fetched committed)"),
    pattern("consumergroup/", None, "consumergroup/"),
    pattern("client/coordinator coordinator for", None, "client/coordinator"),
    pattern("client/coordinator", Said.AWAY, r"client/coordinator (?P<text>request to broker \S+ failed: .*|coordinator for \S+ is not available)"),
)  # fmt: skip # a table: one row a line
