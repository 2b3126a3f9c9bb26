"""Lines of brokers: the group coordinator of Kafka 1.0 to 3.9 (GroupCoordinator.scala) and the one
of 3.7 on (GroupMetadataManager.java), for groups of the classic protocol, KIP-848 and KIP-1071.
"""

from __future__ import annotations

from equipoise.replay.importers.evidence.patterns import one_of, pattern
from equipoise.replay.importers.evidence.statements import Said

_G = r"(?P<group>\S+)"
_M = r"(?P<member>\S+?)"
_IN = r"\[GroupId (?P<group>.+?)\](?:\[MemberId (?P<member>\S+?)\])?:?"

PATTERNS = (
    # -- rebalances of the classic protocol
    pattern("Preparing to rebalance group", Said.PREPARING, rf"Preparing to rebalance group {_G}(?: in state (?P<state>\w+))? with old generation (?P<number>[0-9]+)(?: \(__consumer_offsets-[0-9]+\))?"
            r"(?: \(reason: (?P<text>.*?)\)?\.?(?:\)?\.? \(kafka\.coordinator|\)?\.? \(org\.apache|\)?\.?\s*$|\)\. (?=[\[(])))?",
            "Preparing to rebalance group g in state PreparingRebalance with old generation 4 (__consumer_offsets-3) (reason: removing member b-1 on heartbeat expiration)"),
    pattern("Stabilized group", Said.STABILIZED, rf"Stabilized group {_G} generation (?P<number>[0-9]+)(?: \(__consumer_offsets-[0-9]+\))?(?: with (?P<count>[0-9]+) members?)?",
            "Stabilized group g generation 5 (__consumer_offsets-3) with 2 members"),
    pattern("Assignment received from leader", Said.ASSIGNED, rf"Assignment received from leader (?:(?P<member>\S+) )?for group {_G} for generation (?P<number>[0-9]+)"
            r"(?:\. The group has (?P<count>[0-9]+) members, (?P<text>[0-9]+) of which are static)?",
            "Assignment received from leader a-1 for group g for generation 5. The group has 2 members, 0 of which are static."),
    pattern("is now empty", Said.EMPTY, rf"Group {_G} with generation (?P<number>[0-9]+) is now empty",
            "Group g with generation 6 is now empty (__consumer_offsets-3)"),
    pattern("because no members rejoined", Said.ALONE, rf"Group {_G} could not complete rebalance because no members rejoined",
            "Group g could not complete rebalance because no members rejoined"),
    pattern("who haven't joined", Said.NOT_JOINED, rf"Group {_G} removed dynamic members who haven't joined: (?:\w+)?[\[({{](?P<members>[^\])}}]*)",
            "Group g removed dynamic members who haven't joined: Set(b-1, c-2)"),
    pattern("who haven't sent their sync", Said.NOT_SYNCED, rf"Group {_G} removed members who haven't sent their sync requests?: (?:\w+)?[\[({{](?P<members>[^\])}}]*)",
            "Group g removed members who haven't sent their sync request: Set(b-1)"),
    # -- members of the classic protocol
    pattern("has failed, removing it", Said.EXPIRED, rf"Member {_M} in group {_G} has failed, removing it",
            "Member b-1 in group g has failed, removing it from the group"),
    pattern("has left group", Said.LEFT, rf"Member MemberMetadata\(memberId=(?P<member>[^,]+), groupInstanceId=(?P<instance>[^,]+), clientId=(?P<client>[^,]*), clientHost=(?P<state>[^,]*),"
            rf".*\) has left group {_G} through explicit `LeaveGroup`(?:; client reason: (?P<text>.*?))?(?: \((?:kafka|org)\.|$)",
            "Member MemberMetadata(memberId=b-1, groupInstanceId=None, clientId=b, clientHost=/10.0.0.1, sessionTimeoutMs=6000) has left group g through explicit `LeaveGroup`; client reason: not provided"),
    pattern("has left group through explicit", Said.LEFT, r"\[Group(?:Id)? (?P<group>.+?)\] (?:Dynamic |Pending )?[Mm]ember (?P<member>\S+) has left group through explicit `LeaveGroup`(?: request)?"
            r"(?:; client reason: (?P<text>.*?))?(?: \((?:kafka|org)\.|$)",
            "[Group g] Member b-1 has left group through explicit `LeaveGroup`; client reason: the consumer is being closed"),
    pattern("has left group through explicit", Said.LEFT, r"\[Group(?:Id)? (?P<group>.+?)\] Static [Mm]ember (?P<member>\S+) with instance id (?P<instance>\S+) has left group through explicit"
            r" `LeaveGroup`(?: request)?(?:; client reason: (?P<text>.*?))?(?: \((?:kafka|org)\.|$)",
            "[Group g] Static member b-1 with instance id app-0 has left group through explicit `LeaveGroup`; client reason: not provided"),
    pattern("has left, removing it", Said.LEFT, rf"Member\[group\.instance\.id (?P<instance>\S+), member\.id (?P<member>\S+)\] in group {_G} has left, removing it",
            "Member[group.instance.id app-0, member.id b-1] in group g has left, removing it from the group"),
    pattern("has left, removing it", Said.LEFT, rf"Member {_M} in group {_G} has left, removing it",
            "Member b-1 in group g has left, removing it from the group"),
    pattern("Pending member", None, r"Pending member .*? (?:is leaving group|has been removed after session timeout|has left group)",
            "Pending member b-1 in group g has been removed after session timeout expiration."),
    pattern("Created a new member id", Said.ADDED,
            r"(?:Static|Dynamic) [Mm]ember with (?:groupInstanceId=(?P<instance>\S+) and )?unknown member id joins group (?P<group>\S+) in (?:state )?(?P<state>\w+?)\.?(?: state)?\."
            r" Created a new member id (?P<member>\S+)(?: for this member)? (?:and add|and request|and requesting)",
            "Dynamic member with unknown member id joins group g in Empty state. Created a new member id b-1 and request the member to rejoin with this id."),
    pattern("Replacing previously mapped member", Said.STATIC_BACK, rf"Static member with groupInstanceId=(?P<instance>\S+) and unknown member id joins group {_G} in (?:state )?(?P<state>\w+) state\."
            r" Replacing previously mapped member (?P<other>\S+)",
            "Static member with groupInstanceId=app-0 and unknown member id joins group g in Stable state. Replacing previously mapped member b-1 with this groupInstanceId."),
    pattern("with unknown member id rejoins, assigning new member id", Said.STATIC_BACK,
            r"Static member (?P<instance>\S+)(?: of group (?P<group>\S+))? with unknown member id rejoins, assigning new member id (?P<member>\S+?),"
            r" while old member(?: id)? (?P<other>\S+)",
            "Static member app-0 of group g with unknown member id rejoins, assigning new member id b-2, while old member id b-1 will be removed."),
    pattern("is fenced by current memberId", Said.FENCED, r"Request memberId=(?P<other>\S+) for static member with groupInstanceId=(?P<instance>\S+) is fenced by current memberId=(?P<member>\S+)",
            "Request memberId=b-1 for static member with groupInstanceId=app-0 is fenced by current memberId=b-2 during operation JoinGroup"),
    pattern("Adding new static member", Said.ADDED, rf"Adding new static member (?P<instance>\S+) to group {_G} with member id (?P<member>\S+?)\.(?:\s|$)",
            "Adding new static member app-0 to group g with member id b-1."),
    pattern("Adding to the group now", Said.ADDED, rf"Pending dynamic member with id (?P<member>\S+) joins group {_G} in (?P<state>\w+) state",
            "Pending dynamic member with id b-1 joins group g in Empty state. Adding to the group now."),
    pattern("will not trigger", None, r"Static member (?:which )?joins during",
            "[GroupCoordinator 0]: Static member which joins during Stable stage and doesn't affect selectProtocol will not trigger rebalance."),
    # -- KIP-848 and KIP-1071
    pattern("umped", Said.EPOCH, rf"{_IN} Bumped (?:streams |share )?group epoch to (?P<number>[0-9]+)",
            "[GroupId g] Bumped group epoch to 7 with metadata hash 0."),
    pattern("new assignment state", Said.RECONCILED,
            r"\[GroupId (?P<group>.+?)\] Member (?P<member>\S+) new assignment state: epoch=(?P<number>-?[0-9]+), previousEpoch=-?[0-9]+, state=(?P<state>\w+),"
            r" assignedPartitions=(?P<work>.*?)(?: and revokedPartitions=(?P<text>.*?))?\.(?:\s|$)",
            "[GroupId g] Member b1 new assignment state: epoch=7, previousEpoch=6, state=STABLE, assignedPartitions=[t-0] and revokedPartitions=[].", kind="consumer"),
    pattern("new assignment state", Said.RECONCILED, r"\[GroupId (?P<group>.+?)\]\[MemberId (?P<member>\S+?)\] Member's new assignment state: epoch=(?P<number>-?[0-9]+), previousEpoch=-?[0-9]+,"
            r" state=(?P<state>\w+), assignedTasks=(?P<text>.*)",
            "[GroupId g][MemberId b1] Member's new assignment state: epoch=7, previousEpoch=6, state=STABLE, assignedTasks=TasksTuple{active={0=[1]}}", kind="streams"),
    pattern("omputed a new target assignment", Said.TARGET, rf"{_IN} Computed a new target assignment for epoch (?P<number>[0-9]+) with '(?P<state>[^']*)' assignor",
            "[GroupId g] Computed a new target assignment for epoch 7 with 'uniform' assignor in 3ms: {}."),
    pattern("fenced from the group because it failed to transition", Said.TOO_SLOW,
            r"\[GroupId (?P<group>.+?)\] (?:Streams )?[Mm]ember (?P<member>\S+) fenced from the group because it failed to transition from epoch (?P<count>[0-9]+)"
            r" within (?P<number>[0-9]+)ms",
            "[GroupId g] Member b1 fenced from the group because it failed to transition from epoch 6 within 45000ms."),
    pattern("fenced from the group because", Said.EXPIRED, r"\[GroupId (?P<group>.+?)\] (?:Streams )?[Mm]ember (?P<member>\S+) fenced from the group because (?P<text>.*?)\.(?:\s|$)",
            "[GroupId g] Member b1 fenced from the group because its session expired.", refine=one_of({"session expired": Said.EXPIRED}, Said.TOO_SLOW)),
    pattern("joins the consumer group using", Said.ADDED,
            r"\[GroupId (?P<group>.+?)\] (?:Static )?[Mm]ember (?P<member>\S+)(?: with instance id (?P<instance>\S+))? joins the consumer group using the (?P<state>\w+) protocol",
            "[GroupId g] Member b1 joins the consumer group using the consumer protocol.", kind="consumer"),
    pattern("re-joins the consumer group", Said.STATIC_BACK,
            r"\[GroupId (?P<group>.+?)\] Static member with instance id (?P<instance>\S+) re-joins the consumer group.*?Created a new member (?P<member>\S+)"
            r" to replace the existing member (?P<other>\S+?)\.(?:\s|$)",
            "[GroupId g] Static member with instance id app-0 re-joins the consumer group using the consumer protocol. Created a new member b2 to replace the existing member b1.", kind="consumer"),
    pattern("joins the streams group", Said.ADDED, rf"{_IN} (?:Static |Dynamic )?Member joins the streams group",
            "[GroupId g][MemberId b1] Member joins the streams group.", kind="streams"),
    pattern("joins the share group", None, "joins the share group", "[GroupId g] Member b1 joins the share group using the share protocol."),
    pattern("temporarily left the", Said.STATIC_AWAY, r"\[GroupId (?P<group>.+?)\](?:\[MemberId \S+?\])? Static [Mm]ember (?P<member>\S+) with instance id (?P<instance>\S+) temporarily left the",
            "[GroupId g] Static member b1 with instance id app-0 temporarily left the consumer group."),
    pattern(" left the ", Said.LEFT,
            r"\[GroupId (?P<group>.+?)\](?:\[MemberId \S+?\])? (?:Static )?[Mm]ember (?P<member>\S+)(?: with instance id (?P<instance>\S+))? left the (?P<state>consumer|streams) group",
            "[GroupId g] Member b1 left the consumer group."),
    pattern("cannot join the group because the instance id", Said.FENCED,
            r"\[GroupId (?P<group>.+?)\] Static member (?P<other>\S+) with instance id (?P<instance>\S+) cannot join the group because the instance id"
            r".*?owned by member (?P<member>\S+?)\.?(?:\s|$)",
            "[GroupId g] Static member b2 with instance id app-0 cannot join the group because the instance id is owned by member b1."),
    pattern("is fenced by existing member", Said.FENCED,
            r"\[GroupId (?P<group>.+?)\] Static member (?P<other>\S+) with instance id (?P<instance>\S+) is fenced by existing member (?P<member>\S+?)\.?(?:\s|$)",
            "[GroupId g] Static member b1 with instance id app-0 is fenced by existing member b2."),
    pattern("updated its subscribed", Said.SUBSCRIBED, r"\[GroupId (?P<group>.+?)\] Member (?P<member>\S+) updated its subscribed (?:topics|regex) to: (?P<text>.*)",
            "[GroupId g] Member b1 updated its subscribed topics to: [t]."),
    pattern("omputed new", Said.METADATA, rf"{_IN} Computed new (?:subscription metadata|metadata hash): (?P<text>.*)",
            "[GroupId g][MemberId b1] Computed new metadata hash: 5."),
    pattern("initialized the topology", Said.TOPOLOGY, rf"{_IN} Member initialized the topology with epoch (?P<number>[0-9]+)",
            "[GroupId g][MemberId b1] Member initialized the topology with epoch 0.", kind="streams"),
    pattern("onverted the", Said.CONVERTED, rf"{_IN} Converted the (?P<text>.*?)\.(?:\s|$)",
            "[GroupId g] Converted the classic group to a consumer group."),
    # -- the coordinator
    pattern("oading group metadata for", Said.LOADED, rf"(?<!Un)(?<!un)[Ll]oading group metadata for {_G} with generation (?P<number>[0-9]+)",
            "Loading group metadata for g with generation 4"),
    pattern("Unloading group metadata for", Said.UNLOADED, rf"Unloading group metadata for {_G} with generation (?P<number>[0-9]+)",
            "Unloading group metadata for g with generation 4"),
    pattern("Unload", Said.UNLOADED, r"\[GroupId=(?P<group>\S+)\] Unload(?:ed|ing) group metadata for (?:generation|group epoch) (?P<number>[0-9]+)",
            "[GroupId=g] Unloading group metadata for generation 4."),
    pattern("Loaded c", Said.LOADED, rf"Loaded (?P<state>classic|consumer|streams) group {_G} with (?P<count>[0-9]+) members",
            "Loaded consumer group g with 2 members."),
    pattern("Loaded streams group", Said.LOADED, rf"Loaded (?P<state>streams) group {_G} with (?P<count>[0-9]+) members",
            "Loaded streams group g with 2 members.", kind="streams"),
    # -- the broker
    pattern("egistered signal handlers", Said.BROKER_UP, "Registered signal handlers for TERM", "Registered signal handlers for TERM, INT, HUP"),
    pattern("Starting up", Said.BROKER_UP, r"\[GroupCoordinator (?:id=)?[0-9]+\]:? Starting up", "[GroupCoordinator id=0] Starting up."),
    pattern("Shutting down", Said.BROKER_DOWN, r"\[GroupCoordinator (?:id=)?[0-9]+\]:? Shutting down", "[GroupCoordinator id=0] Shutting down."),
    # -- known, and nothing about who began what
    pattern("with unknown member id joins group", None, "unknown member id joins group",
            "Dynamic Member with unknown member id joins group g in Empty state. Crea"),
    pattern("Group coordinator", None, "Group coordinator", "Group coordinator for g is BrokerMetadata(nodeId=0, host='k-0', port=9092, rack=None)"),
    pattern("GroupMetadataManager", None, r"(?:Finished loading|Finished unloading|Scheduling|Loading|Unloading|Loaded|Group metadata|The following|Removed|Writing|[Tt]ombstone)",
            "[GroupMetadataManager brokerId=0] Finished loading offsets and group metadata from __consumer_offsets-3 in 5 milliseconds"),
    pattern("GroupCoordinator", None, r"(?:Starting up|Startup complete|Shutting down|Shutdown complete|Elected as|Resigned|Member id|Removed|Failed to write)",
            "[GroupCoordinator 0]: Elected as the group coordinator for partition 3 in epoch 0"),
    pattern("[MemberId ", None, r"\[MemberId ", "[GroupId g][MemberId b1] Shutdown requested for the streams application."),
)  # fmt: skip # a table: one row a line
