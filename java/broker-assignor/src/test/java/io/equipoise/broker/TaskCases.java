package io.equipoise.broker;

import java.util.*;
import org.apache.kafka.coordinator.group.api.streams.assignor.AssignmentConfigs;
import org.apache.kafka.coordinator.group.api.streams.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.streams.assignor.GroupSpec;
import org.apache.kafka.coordinator.group.api.streams.assignor.MemberAssignmentMetadata;
import org.apache.kafka.coordinator.group.api.streams.assignor.MemberAssignmentState;
import org.apache.kafka.coordinator.group.api.streams.assignor.TopologyDescriber;

/** Groups of Kafka Streams as lines of JSON, as tests/data/broker_tasks.jsonl has them. */
final class TaskCases implements GroupSpec, TopologyDescriber {
    private final List<Map<String, Object>> parts = new ArrayList<>(), members = new ArrayList<>();
    private final List<String> tags = new ArrayList<>();
    final String expected;

    TaskCases(final Map<String, Object> given) {
        Cases.list(given.get("parts")).forEach(each -> parts.add(Cases.map(each)));
        Cases.list(given.get("members")).forEach(each -> members.add(Cases.map(each)));
        Cases.list(given.get("tags")).forEach(each -> tags.add((String) each));
        expected = (String) given.get("answer");
    }

    private Map<String, Object> part(final String id) {
        return parts.stream().filter(each -> each.get("id").equals(id)).findFirst().orElseThrow();
    }

    private Map<String, Object> member(final String id) {
        return members.stream().filter(each -> each.get("id").equals(id)).findFirst().orElseThrow();
    }

    private Map<String, Set<Integer>> tasks(final Object held) {
        final Map<String, Set<Integer>> found = new HashMap<>();
        for (final Object each : Cases.list(held)) {
            final Set<Integer> numbers = new HashSet<>();
            Cases.list(Cases.list(each).get(1)).forEach(number -> numbers.add(Cases.number(number)));
            found.put((String) parts.get(Cases.number(Cases.list(each).get(0))).get("id"), numbers);
        }
        return found;
    }

    @Override
    public Collection<String> memberIds() {
        return members.stream().map(each -> (String) each.get("id")).toList();
    }

    @Override
    public MemberAssignmentMetadata memberMetadata(final String id) {
        return new MemberAssignmentMetadata() {
            @Override
            public Optional<String> instanceId() {
                return Optional.empty();
            }

            @Override
            public Optional<String> rackId() {
                return Optional.empty();
            }

            @Override
            public String processId() {
                return (String) member(id).get("process");
            }

            @Override
            public Map<String, String> clientTags() {
                return Map.of();
            }
        };
    }

    @Override
    public MemberAssignmentState memberAssignmentState(final String id) {
        return new MemberAssignmentState() {
            @Override
            public Map<String, Set<Integer>> activeTasks() {
                return tasks(member(id).get("active"));
            }

            @Override
            public Map<String, Set<Integer>> standbyTasks() {
                return tasks(member(id).get("standby"));
            }

            @Override
            public Map<String, Set<Integer>> warmupTasks() {
                return Map.of();
            }

            @Override
            public Map<String, Map<Integer, Long>> taskOffsets() {
                final Map<String, Map<Integer, Long>> found = new HashMap<>();
                for (final Object each : Cases.list(member(id).get("offsets"))) {
                    final List<Object> at = Cases.list(each);
                    final String part = (String) parts.get(Cases.number(at.get(0))).get("id");
                    found.computeIfAbsent(part, name -> new HashMap<>()).put(Cases.number(at.get(1)), (Long) at.get(2));
                }
                return found;
            }

            @Override
            public Map<String, Map<Integer, Long>> taskEndOffsets() {
                return Map.of();
            }
        };
    }

    @Override
    public AssignmentConfigs configs() {
        return new AssignmentConfigs() {
            @Override
            public int numStandbyReplicas() {
                return 0;
            }

            @Override
            public List<String> rackAwareAssignmentTags() {
                return tags;
            }
        };
    }

    @Override
    public List<String> subtopologies() {
        return parts.stream().map(each -> (String) each.get("id")).toList();
    }

    @Override
    public int maxNumInputPartitions(final String id) {
        return Cases.number(part(id).get("partitions"));
    }

    @Override
    public boolean isStateful(final String id) {
        return Cases.number(part(id).get("stateful")) == 1;
    }

    /** What each member runs and keeps copies of, in the order of the members and parts of the line. */
    String answer() {
        final GroupAssignment assignment = new EquipoiseStreamsAssignor().assign(this, this);
        final List<String> found = new ArrayList<>();
        for (final String id : memberIds()) {
            found.add("[" + text(assignment.members().get(id).activeTasks()) + "," + text(assignment.members().get(id).standbyTasks()) + "]");
        }
        return "[" + String.join(",", found) + "]";
    }

    private String text(final Map<String, Set<Integer>> tasks) {
        final List<String> found = new ArrayList<>();
        for (int part = 0; part < parts.size(); part++) {
            final Set<Integer> of = tasks.get((String) parts.get(part).get("id"));
            if (of != null && !of.isEmpty()) {
                found.add("[" + part + "," + new TreeSet<>(of).toString().replace(" ", "") + "]");
            }
        }
        return "[" + String.join(",", found) + "]";
    }
}
