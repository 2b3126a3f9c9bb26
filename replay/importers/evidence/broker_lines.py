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
    pattern("Preparing to rebalance group", Said.PREPARING,
            rf"Preparing to rebalance group {_G}(?: in state (?P<state>\w+))? with old generation (?P<number>[0-9]+)(?: \(__consumer_offsets-[0-9]+\))?"
            r"(?: \(reason: (?P<text>.*?)\)?\.?(?:\)?\.? \(kafka\.coordinator|\)?\.? \(org\.apache|\)?\.?\s*$|\)\. (?=[\[(])))?"),
    pattern("Stabilized group", Said.STABILIZED,
            rf"Stabilized group {_G} generation (?P<number>[0-9]+)(?: \(__consumer_offsets-[0-9]+\))?(?: with (?P<count>[0-9]+) members?)?"),
    pattern("Assignment received from leader", Said.ASSIGNED,
            rf"Assignment received from leader (?:(?P<member>\S+) )?for group {_G} for generation (?P<number>[0-9]+)"
            r"(?:\. The group has (?P<count>[0-9]+) members, (?P<text>[0-9]+) of which are static)?"),
    pattern("is now empty", Said.EMPTY, rf"Group {_G} with generation (?P<number>[0-9]+) is now empty"),
    pattern("because no members rejoined", Said.ALONE, rf"Group {_G} could not complete rebalance because no members rejoined"),
    pattern("who haven't joined", Said.NOT_JOINED, rf"Group {_G} removed dynamic members who haven't joined: (?:\w+)?[\[({{](?P<members>[^\])}}]*)"),
    pattern("who haven't sent their sync", Said.NOT_SYNCED, rf"Group {_G} removed members who haven't sent their sync requests?: (?:\w+)?[\[({{](?P<members>[^\])}}]*)"),
    # -- members of the classic protocol
    pattern("has failed, removing it", Said.EXPIRED, rf"Member {_M} in group {_G} has failed, removing it"),
    pattern("has left group", Said.LEFT,
            rf"Member MemberMetadata\(memberId=(?P<member>[^,]+), groupInstanceId=(?P<instance>[^,]+), clientId=(?P<client>[^,]*), clientHost=(?P<state>[^,]*),"
            rf".*\) has left group {_G} through explicit `LeaveGroup`(?:; client reason: (?P<text>.*?))?(?: \((?:kafka|org)\.|$)"),
    pattern("has left group through explicit", Said.LEFT,
            r"\[Group(?:Id)? (?P<group>.+?)\] (?:Dynamic |Pending )?[Mm]ember (?P<member>\S+) has left group through explicit `LeaveGroup`(?: request)?"
            r"(?:; client reason: (?P<text>.*?))?(?: \((?:kafka|org)\.|$)"),
    pattern("has left group through explicit", Said.LEFT,
            r"\[Group(?:Id)? (?P<group>.+?)\] Static [Mm]ember (?P<member>\S+) with instance id (?P<instance>\S+) has left group through explicit"
            r" `LeaveGroup`(?: request)?(?:; client reason: (?P<text>.*?))?(?: \((?:kafka|org)\.|$)"),
    pattern("has left, removing it", Said.LEFT,
            rf"Member\[group\.instance\.id (?P<instance>\S+), member\.id (?P<member>\S+)\] in group {_G} has left, removing it"),
    pattern("has left, removing it", Said.LEFT, rf"Member {_M} in group {_G} has left, removing it"),
    pattern("Pending member", None, r"Pending member .*? (?:is leaving group|has been removed after session timeout|has left group)"),
    pattern("Created a new member id", Said.ADDED,
            r"(?:Static|Dynamic) [Mm]ember with (?:groupInstanceId=(?P<instance>\S+) and )?unknown member id joins group (?P<group>\S+) in (?:state )?(?P<state>\w+?)\.?(?: state)?\."
            r" Created a new member id (?P<member>\S+)(?: for this member)? (?:and add|and request|and requesting)"),
    pattern("Replacing previously mapped member", Said.STATIC_BACK,
            rf"Static member with groupInstanceId=(?P<instance>\S+) and unknown member id joins group {_G} in (?:state )?(?P<state>\w+) state\."
            r" Replacing previously mapped member (?P<other>\S+)"),
    pattern("with unknown member id rejoins, assigning new member id", Said.STATIC_BACK,
            r"Static member (?P<instance>\S+)(?: of group (?P<group>\S+))? with unknown member id rejoins, assigning new member id (?P<member>\S+?),"
            r" while old member(?: id)? (?P<other>\S+)"),
    pattern("is fenced by current memberId", Said.FENCED,
            r"Request memberId=(?P<other>\S+) for static member with groupInstanceId=(?P<instance>\S+) is fenced by current memberId=(?P<member>\S+)"),
    pattern("Adding new static member", Said.ADDED, rf"Adding new static member (?P<instance>\S+) to group {_G} with member id (?P<member>\S+?)\.(?:\s|$)"),
    pattern("Adding to the group now", Said.ADDED, rf"Pending dynamic member with id (?P<member>\S+) joins group {_G} in (?P<state>\w+) state"),
    pattern("will not trigger", None, r"Static member (?:which )?joins during"),
    # -- KIP-848 and KIP-1071
    pattern("umped", Said.EPOCH, rf"{_IN} Bumped (?:streams |share )?group epoch to (?P<number>[0-9]+)"),
    pattern("new assignment state", Said.RECONCILED,
            r"\[GroupId (?P<group>.+?)\] Member (?P<member>\S+) new assignment state: epoch=(?P<number>-?[0-9]+), previousEpoch=-?[0-9]+, state=(?P<state>\w+),"
            r" assignedPartitions=(?P<work>.*?)(?: and revokedPartitions=(?P<text>.*?))?\.(?:\s|$)", kind="consumer"),
    pattern("new assignment state", Said.RECONCILED,
            r"\[GroupId (?P<group>.+?)\]\[MemberId (?P<member>\S+?)\] Member's new assignment state: epoch=(?P<number>-?[0-9]+), previousEpoch=-?[0-9]+,"
            r" state=(?P<state>\w+), assignedTasks=(?P<text>.*)", kind="streams"),
    pattern("omputed a new target assignment", Said.TARGET,
            rf"{_IN} Computed a new target assignment for epoch (?P<number>[0-9]+) with '(?P<state>[^']*)' assignor"),
    pattern("fenced from the group because it failed to transition", Said.TOO_SLOW,
            r"\[GroupId (?P<group>.+?)\] (?:Streams )?[Mm]ember (?P<member>\S+) fenced from the group because it failed to transition from epoch (?P<count>[0-9]+)"
            r" within (?P<number>[0-9]+)ms"),
    pattern("fenced from the group because", Said.EXPIRED,
            r"\[GroupId (?P<group>.+?)\] (?:Streams )?[Mm]ember (?P<member>\S+) fenced from the group because (?P<text>.*?)\.(?:\s|$)",
            refine=one_of({"session expired": Said.EXPIRED}, Said.TOO_SLOW)),
    pattern("joins the consumer group using", Said.ADDED,
            r"\[GroupId (?P<group>.+?)\] (?:Static )?[Mm]ember (?P<member>\S+)(?: with instance id (?P<instance>\S+))? joins the consumer group using the (?P<state>\w+) protocol",
            kind="consumer"),
    pattern("re-joins the consumer group", Said.STATIC_BACK,
            r"\[GroupId (?P<group>.+?)\] Static member with instance id (?P<instance>\S+) re-joins the consumer group.*?Created a new member (?P<member>\S+)"
            r" to replace the existing member (?P<other>\S+?)\.(?:\s|$)", kind="consumer"),
    pattern("joins the streams group", Said.ADDED, rf"{_IN} (?:Static |Dynamic )?Member joins the streams group", kind="streams"),
    pattern("joins the share group", None, "joins the share group"),
    pattern("temporarily left the", Said.STATIC_AWAY,
            r"\[GroupId (?P<group>.+?)\](?:\[MemberId \S+?\])? Static [Mm]ember (?P<member>\S+) with instance id (?P<instance>\S+) temporarily left the"),
    pattern(" left the ", Said.LEFT,
            r"\[GroupId (?P<group>.+?)\](?:\[MemberId \S+?\])? (?:Static )?[Mm]ember (?P<member>\S+)(?: with instance id (?P<instance>\S+))? left the (?P<state>consumer|streams) group"),
    pattern("cannot join the group because the instance id", Said.FENCED,
            r"\[GroupId (?P<group>.+?)\] Static member (?P<other>\S+) with instance id (?P<instance>\S+) cannot join the group because the instance id"
            r".*?owned by member (?P<member>\S+?)\.?(?:\s|$)"),
    pattern("is fenced by existing member", Said.FENCED,
            r"\[GroupId (?P<group>.+?)\] Static member (?P<other>\S+) with instance id (?P<instance>\S+) is fenced by existing member (?P<member>\S+?)\.?(?:\s|$)"),
    pattern("updated its subscribed", Said.SUBSCRIBED, r"\[GroupId (?P<group>.+?)\] Member (?P<member>\S+) updated its subscribed (?:topics|regex) to: (?P<text>.*)"),
    pattern("omputed new", Said.METADATA, rf"{_IN} Computed new (?:subscription metadata|metadata hash): (?P<text>.*)"),
    pattern("initialized the topology", Said.TOPOLOGY, rf"{_IN} Member initialized the topology with epoch (?P<number>[0-9]+)", kind="streams"),
    pattern("onverted the", Said.CONVERTED, rf"{_IN} Converted the (?P<text>.*?)\.(?:\s|$)"),
    # -- the coordinator
    pattern("oading group metadata for", Said.LOADED, rf"(?<!Un)(?<!un)[Ll]oading group metadata for {_G} with generation (?P<number>[0-9]+)"),
    pattern("Unloading group metadata for", Said.UNLOADED, rf"Unloading group metadata for {_G} with generation (?P<number>[0-9]+)"),
    pattern("Unload", Said.UNLOADED, r"\[GroupId=(?P<group>\S+)\] Unload(?:ed|ing) group metadata for (?:generation|group epoch) (?P<number>[0-9]+)"),
    pattern("Loaded c", Said.LOADED, rf"Loaded (?P<state>classic|consumer|streams) group {_G} with (?P<count>[0-9]+) members"),
    pattern("Loaded streams group", Said.LOADED, rf"Loaded (?P<state>streams) group {_G} with (?P<count>[0-9]+) members", kind="streams"),
    # -- the broker
    pattern("egistered signal handlers", Said.BROKER_UP, "Registered signal handlers for TERM"),
    pattern("Starting up", Said.BROKER_UP, r"\[GroupCoordinator (?:id=)?[0-9]+\]:? Starting up"),
    pattern("Shutting down", Said.BROKER_DOWN, r"\[GroupCoordinator (?:id=)?[0-9]+\]:? Shutting down"),
    # -- known, and nothing about who began what
    pattern("expired offsets", None, "Removed [0-9]+ expired offsets"),
    pattern("ynamic member with unknown member id joins the consumer group", None, "joins the consumer group"),
    pattern("with unknown member id joins group", None, "unknown member id joins group"),
    pattern("Group coordinator", None, "Group coordinator"),
    pattern("GroupMetadataManager", None, r"(?:Finished loading|Finished unloading|Scheduling|Loading|Unloading|Loaded|Group metadata|The following|Removed|Writing|[Tt]ombstone)"),
    pattern("GroupCoordinator", None, r"(?:Starting up|Startup complete|Shutting down|Shutdown complete|Elected as|Resigned|Member id|Removed|Failed to write)"),
    pattern("[MemberId ", None, r"\[MemberId "),
)  # fmt: skip # a table: one row a line
