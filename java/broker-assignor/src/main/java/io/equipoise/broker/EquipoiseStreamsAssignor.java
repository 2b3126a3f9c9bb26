package io.equipoise.broker;

import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.kafka.coordinator.group.api.streams.assignor.*;

/**
 * Assigns a group of Kafka Streams (KIP-1071) by a plan among the group's own `streams.rack.aware.assignment.tags`. On brokers of 4.4 or later:
 *
 * <pre>group.streams.assignors=sticky,io.equipoise.broker.EquipoiseStreamsAssignor</pre>
 */
public final class EquipoiseStreamsAssignor implements TaskAssignor {
    @Override
    public String name() {
        return "equipoise";
    }

    @Override
    public GroupAssignment assign(final GroupSpec group, final TopologyDescriber topology) {
        try {
            return planned(group, topology);
        } catch (final RuntimeException | LinkageError | StackOverflowError error) {
            return kept(group);
        }
    }

    private static GroupAssignment planned(final GroupSpec group, final TopologyDescriber topology) {
        final String[] members = new TreeSet<>(group.memberIds()).toArray(String[]::new), processes = new String[members.length];
        final TreeMap<String, String> partById = new TreeMap<>();
        for (final String part : topology.subtopologies()) {
            partById.put(HexFormat.of().formatHex(part.getBytes(StandardCharsets.UTF_8)), part);
        }
        final List<String> parts = new ArrayList<>(partById.values());
        final BitSet all = new BitSet();
        all.set(0, members.length);
        final BitSet[] readers = Collections.nCopies(parts.size(), all).toArray(BitSet[]::new);
        final int[] counts = parts.stream().mapToInt(topology::maxNumInputPartitions).toArray();
        final Placing placing = new Placing(members.length, readers, counts, (part, task) -> List.of());
        placing.keepsCopies();
        for (int member = 0; member < members.length; member++) {
            final int at = member;
            processes[member] = group.memberMetadata(members[member]).processId();
            final MemberAssignmentState had = group.memberAssignmentState(members[member]);
            had.activeTasks().forEach((part, numbers) -> numbers.forEach(number -> placing.has(at, parts.indexOf(part), number)));
            had.standbyTasks().forEach((part, numbers) -> numbers.forEach(number -> placing.hasCopy(at, parts.indexOf(part), number)));
            had.taskOffsets().forEach((part, offsets) -> offsets.forEach((number, offset) -> placing.hasState(at, parts.indexOf(part), number, offset)));
        }
        final Plan plan = Plan.newest(group.configs().rackAwareAssignmentTags());
        if (plan != null && plan.madeFor().equals(Plan.hash(members, members.length, new ArrayList<>(partById.keySet())))) {
            placing.apply(plan, members.length, parts.size());
        }
        if (plan == null || !plan.holds()) {
            placing.fill();
        }
        if (plan == null) {
            placing.balance();
        }
        placing.tidyCopies(processes, topic -> topology.isStateful(parts.get(topic)));
        return answer(members, parts, placing);
    }

    private static GroupAssignment answer(final String[] members, final List<String> parts, final Placing placing) {
        final List<Map<String, Set<Integer>>> active = new ArrayList<>(), standby = new ArrayList<>();
        final Map<String, MemberAssignment> answer = new HashMap<>();
        for (int member = 0; member < members.length; member++) {
            active.add(new HashMap<>());
            standby.add(new HashMap<>());
            answer.put(members[member], new MemberAssignment(active.get(member), standby.get(member)));
        }
        for (int part = 0; part < parts.size(); part++) {
            for (int number = 0; number < placing.owner[part].length; number++) {
                final int at = placing.owner[part][number];
                if (at >= 0) {
                    active.get(at).computeIfAbsent(parts.get(part), each -> new HashSet<>()).add(number);
                }
                for (final int copy : placing.copies[part][number].stream().toArray()) {
                    standby.get(copy).computeIfAbsent(parts.get(part), each -> new HashSet<>()).add(number);
                }
            }
        }
        return new GroupAssignment(answer);
    }

    /** Everybody keeps what he has: the answer where there is no other. */
    private static GroupAssignment kept(final GroupSpec group) {
        final Map<String, MemberAssignment> answer = new HashMap<>();
        try {
            group.memberIds().forEach(member -> answer.put(
                member, new MemberAssignment(group.memberAssignmentState(member).activeTasks(), group.memberAssignmentState(member).standbyTasks())));
        } catch (final RuntimeException error) {
            answer.clear();
        }
        return new GroupAssignment(answer);
    }
}
