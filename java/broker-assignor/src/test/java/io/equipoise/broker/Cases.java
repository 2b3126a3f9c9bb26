package io.equipoise.broker;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.GroupSpec;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.MemberSubscription;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;

/**
 * Groups as lines of JSON, as tests/data/broker_plans.jsonl and broker_tasks.jsonl have them: answers each line of its input with what each member is
 * assigned.
 */
public final class Cases {
    private Cases() {
    }

    public static void main(final String[] arguments) throws Exception {
        final PrintStream out = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false, StandardCharsets.UTF_8);
        final BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            final Map<String, Object> given = map(read(line));
            out.println(given.containsKey("parts") ? new TaskCases(given).answer() : answer(new Group(given)));
        }
        out.flush();
    }

    /** A group as a broker hands it to an assignor. */
    static final class Group implements GroupSpec, SubscribedTopicDescriber {
        record Subscription(Optional<String> rackId, Optional<String> instanceId, Set<Uuid> subscribedTopicIds) implements MemberSubscription {
        }

        record Assigned(Map<Uuid, Set<Integer>> partitions) implements MemberAssignment {
        }

        final List<Uuid> topics = new ArrayList<>();
        final Map<Uuid, Integer> counts = new HashMap<>();
        final Map<Uuid, List<Set<String>>> racks = new HashMap<>();
        final Map<String, Subscription> subscriptions = new LinkedHashMap<>();
        final Map<String, Assigned> assigned = new HashMap<>();
        final String expected;

        Group(final Map<String, Object> given) {
            for (final Object each : list(given.get("topics"))) {
                final Map<String, Object> topic = map(each);
                final String hex = (String) topic.get("id");
                final Uuid id = new Uuid(Long.parseUnsignedLong(hex.substring(0, 16), 16), Long.parseUnsignedLong(hex.substring(16), 16));
                topics.add(id);
                counts.put(id, number(topic.get("partitions")));
                final List<Set<String>> of = new ArrayList<>();
                for (final Object one : list(topic.get("racks"))) {
                    final Set<String> names = new HashSet<>();
                    list(one).forEach(name -> names.add((String) name));
                    of.add(names);
                }
                racks.put(id, of);
            }
            for (final Object each : list(given.get("members"))) {
                final Map<String, Object> member = map(each);
                final Set<Uuid> reads = new HashSet<>();
                list(member.get("topics")).forEach(topic -> reads.add(topics.get(number(topic))));
                final Map<Uuid, Set<Integer>> held = new HashMap<>();
                for (final Object one : list(member.get("held"))) {
                    final Set<Integer> partitions = new HashSet<>();
                    list(list(one).get(1)).forEach(partition -> partitions.add(number(partition)));
                    held.put(topics.get(number(list(one).get(0))), Collections.unmodifiableSet(partitions));
                }
                final String rack = (String) member.get("rack");
                final Optional<String> named = Optional.of(rack).filter(text -> !text.isEmpty());
                subscriptions.put((String) member.get("id"), new Subscription(named, Optional.empty(), reads));
                assigned.put((String) member.get("id"), new Assigned(Collections.unmodifiableMap(held)));
            }
            expected = (String) given.get("answer");
        }

        @Override
        public Collection<String> memberIds() {
            return subscriptions.keySet();
        }

        @Override
        public SubscriptionType subscriptionType() {
            return SubscriptionType.HETEROGENEOUS;
        }

        @Override
        public boolean isPartitionAssigned(final Uuid topic, final int partition) {
            return assigned.values().stream().anyMatch(each -> each.partitions().getOrDefault(topic, Set.of()).contains(partition));
        }

        // From 4.1 on; older brokers do not have it.
        public boolean isPartitionAssignable(final Uuid topic, final int partition) {
            return true;
        }

        @Override
        public MemberSubscription memberSubscription(final String member) {
            return subscriptions.get(member);
        }

        @Override
        public MemberAssignment memberAssignment(final String member) {
            return assigned.get(member);
        }

        @Override
        public int numPartitions(final Uuid topic) {
            return counts.get(topic) > 0 ? counts.get(topic) : -1;
        }

        @Override
        public Set<String> racksForPartition(final Uuid topic, final int partition) {
            final List<Set<String>> of = racks.get(topic);
            return partition < of.size() ? of.get(partition) : Set.of();
        }
    }

    /** What each member is assigned, in the order of the members and topics of the line. */
    static String answer(final Group group) {
        final GroupAssignment assignment = new EquipoiseConsumerAssignor().assign(group, group);
        final StringBuilder text = new StringBuilder("[");
        for (final String member : group.memberIds()) {
            text.append(text.length() > 1 ? "," : "").append("[");
            final Map<Uuid, Set<Integer>> partitions = assignment.members().get(member).partitions();
            boolean first = true;
            for (int topic = 0; topic < group.topics.size(); topic++) {
                final Set<Integer> of = partitions.get(group.topics.get(topic));
                if (of != null && !of.isEmpty()) {
                    final String numbers = new TreeSet<>(of).toString().replace(" ", "");
                    text.append(first ? "" : ",").append("[").append(topic).append(",").append(numbers).append("]");
                    first = false;
                }
            }
            text.append("]");
        }
        return text.append("]").toString();
    }

    @SuppressWarnings("unchecked")
    static Map<String, Object> map(final Object value) {
        return (Map<String, Object>) value;
    }

    @SuppressWarnings("unchecked")
    static List<Object> list(final Object value) {
        return (List<Object>) value;
    }

    static int number(final Object value) {
        return ((Long) value).intValue();
    }

    /** JSON of maps, lists, whole numbers and texts without escapes. */
    static Object read(final String text) {
        return read(text, new int[1]);
    }

    private static Object read(final String text, final int[] at) {
        skip(text, at);
        final char first = text.charAt(at[0]);
        if (first == '"') {
            final int begin = ++at[0], end = text.indexOf('"', begin);
            at[0] = end + 1;
            return text.substring(begin, end);
        }
        if (first != '[' && first != '{') {
            final int begin = at[0];
            while (at[0] < text.length() && "-0123456789".indexOf(text.charAt(at[0])) >= 0) {
                at[0]++;
            }
            return Long.parseLong(text.substring(begin, at[0]));
        }
        final Map<String, Object> fields = new LinkedHashMap<>();
        final List<Object> values = new ArrayList<>();
        at[0]++;
        skip(text, at);
        while (text.charAt(at[0]) != ']' && text.charAt(at[0]) != '}') {
            final Object value = read(text, at);
            if (first == '{') {
                fields.put((String) value, read(text, at));
            } else {
                values.add(value);
            }
            skip(text, at);
        }
        at[0]++;
        return first == '{' ? fields : values;
    }

    private static void skip(final String text, final int[] at) {
        while (at[0] < text.length() && " ,:".indexOf(text.charAt(at[0])) >= 0) {
            at[0]++;
        }
    }
}
