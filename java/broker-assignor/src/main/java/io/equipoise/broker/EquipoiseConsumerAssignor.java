package io.equipoise.broker;

import java.util.*;
import java.util.stream.Stream;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.*;

/**
 * Assigns a consumer group (KIP-848) by the plan that `equipoise lead` has put into the rack id of its own member. On brokers:
 *
 * <pre>group.consumer.assignors=uniform,range,io.equipoise.broker.EquipoiseConsumerAssignor</pre>
 *
 * <p>It answers from what the broker hands in, by that alone, and never throws.
 */
public final class EquipoiseConsumerAssignor implements ConsumerGroupPartitionAssignor {
    private record Partitions(Map<Uuid, Set<Integer>> partitions) implements MemberAssignment {}

    /** Numbers in rising order, which are added once each. A tenth of the objects of a HashSet. */
    private static final class Numbers extends AbstractSet<Integer> {
        private final int[] numbers;
        private int size;

        Numbers(final int[] numbers) {
            this.numbers = numbers;
        }

        void add(final int number) {
            numbers[size++] = number;
        }

        @Override
        public int size() {
            return size;
        }

        @Override
        public boolean contains(final Object number) {
            return number instanceof Integer && Arrays.binarySearch(numbers, 0, size, (Integer) number) >= 0;
        }

        @Override
        public Iterator<Integer> iterator() {
            return Arrays.stream(numbers, 0, size).iterator();
        }
    }

    private static final class Topic {
        final Uuid id;
        /** Has the order of the id's bytes. */
        final String name;
        final int count;
        final BitSet readers = new BitSet();
        int position = -1;

        Topic(final Uuid id, final int count) {
            this.id = id;
            this.count = count;
            name = HexFormat.of().toHexDigits(id.getMostSignificantBits()) + HexFormat.of().toHexDigits(id.getLeastSignificantBits());
        }
    }

    @Override
    public String name() {
        return "equipoise";
    }

    @Override
    public GroupAssignment assign(final GroupSpec group, final SubscribedTopicDescriber topics) {
        try {
            return planned(group, topics);
        } catch (final RuntimeException | LinkageError | StackOverflowError error) {
            return kept(group);
        }
    }

    private static GroupAssignment planned(final GroupSpec group, final SubscribedTopicDescriber describer) {
        // Those that carry plans are behind the others, and get nothing that another one reads.
        final TreeMap<String, String> readersByRack = new TreeMap<>(), carriersByPlan = new TreeMap<>();
        for (final String member : group.memberIds()) {
            final String rack = group.memberSubscription(member).rackId().orElse("");
            (rack.startsWith(Plan.MARK) ? carriersByPlan : readersByRack).put(member, rack);
        }
        final int consumers = readersByRack.size();
        final String[] members = Stream.concat(readersByRack.keySet().stream(), carriersByPlan.keySet().stream()).toArray(String[]::new);
        final Map<Uuid, Topic> known = new HashMap<>();
        for (int member = 0; member < members.length; member++) {
            for (final Uuid id : group.memberSubscription(members[member]).subscribedTopicIds()) {
                Topic topic = known.get(id);
                if (topic == null) {
                    topic = new Topic(id, describer.numPartitions(id));
                    known.put(id, topic);
                }
                if (member < consumers || topic.readers.isEmpty() || topic.readers.nextSetBit(0) >= consumers) {
                    topic.readers.set(member);
                }
            }
        }
        final List<Topic> topics = new ArrayList<>(known.values());
        topics.removeIf(each -> each.count <= 0);
        topics.sort(Comparator.comparing((Topic each) -> each.readers.nextSetBit(0) >= consumers).thenComparing(each -> each.name));
        for (int at = 0; at < topics.size(); at++) {
            topics.get(at).position = at;
        }
        final List<String> names = topics.stream().filter(each -> each.readers.nextSetBit(0) < consumers).map(each -> each.name).toList();
        final Placing placing = new Placing(
            members.length, topics.stream().map(each -> each.readers).toArray(BitSet[]::new), topics.stream().mapToInt(each -> each.count).toArray(),
            (topic, partition) -> describer.racksForPartition(topics.get(topic).id, partition));
        final String[] racks = readersByRack.values().toArray(String[]::new);
        final Integer[] buffer = new Integer[1_000];
        for (int at = 0; at < members.length; at++) {
            final int member = at;
            if (member < consumers && !racks[member].isEmpty()) {
                placing.inRack(member, racks[member]);
            }
            // Most time goes here: no objects for each of so many small maps and sets.
            group.memberAssignment(members[member]).partitions().forEach((id, partitions) -> {
                final Topic topic = known.get(id);
                final int position = topic == null ? -1 : topic.position, count = partitions.size();
                final Integer[] numbers = partitions.toArray(buffer);
                for (int number = 0; number < count; number++) {
                    placing.has(member, position, numbers[number]);
                }
            });
        }
        final Plan plan = Plan.newest(carriersByPlan.values());
        if (plan != null && plan.madeFor().equals(Plan.hash(members, consumers, names))) {
            placing.apply(plan, consumers, names.size());
        }
        if (plan == null || !plan.holds()) {
            placing.fill();
        }
        if (consumers == members.length) {
            placing.balance();
        }
        return answer(group, members, known, topics, placing);
    }

    private static GroupAssignment answer(
        final GroupSpec group, final String[] members, final Map<Uuid, Topic> known, final List<Topic> topics, final Placing placing) {
        // New maps and sets only for those who have other partitions now: most have the same, and many.
        final List<Map<Uuid, Set<Integer>>> has = new ArrayList<>(members.length);
        final Map<String, MemberAssignment> answer = new HashMap<>(2 * members.length);
        for (int member = 0; member < members.length; member++) {
            final Map<Uuid, Set<Integer>> had = group.memberAssignment(members[member]).partitions();
            has.add(placing.changed.get(member) ? unchanged(had, member, known, placing) : had);
            answer.put(members[member], new Partitions(has.get(member)));
        }
        for (int topic = 0; topic < topics.size(); topic++) {
            final BitSet changed = placing.changedIn[topic];
            if (changed.isEmpty()) {
                continue;
            }
            final int[] owner = placing.owner[topic], counts = new int[members.length];
            for (final int member : owner) {
                if (member >= 0 && changed.get(member)) {
                    counts[member]++;
                }
            }
            final Numbers[] ofTopic = new Numbers[members.length];
            for (int partition = 0; partition < owner.length; partition++) {
                final int member = owner[partition];
                if (member >= 0 && counts[member] > 0) {
                    if (ofTopic[member] == null) {
                        ofTopic[member] = new Numbers(new int[counts[member]]);
                        has.get(member).put(topics.get(topic).id, ofTopic[member]);
                    }
                    ofTopic[member].add(partition);
                }
            }
        }
        return new GroupAssignment(answer);
    }

    /** What the member has in topics in which it has what it had. */
    private static Map<Uuid, Set<Integer>> unchanged(
        final Map<Uuid, Set<Integer>> had, final int member, final Map<Uuid, Topic> known, final Placing placing) {
        final Map<Uuid, Set<Integer>> unchanged = new HashMap<>(2 * had.size());
        for (final Map.Entry<Uuid, Set<Integer>> each : had.entrySet()) {
            final Topic topic = known.get(each.getKey());
            if (topic != null && topic.position >= 0 && !placing.changedIn[topic.position].get(member) && !each.getValue().isEmpty()) {
                unchanged.put(each.getKey(), each.getValue());
            }
        }
        return unchanged;
    }

    /** Everybody keeps what he has: the answer where there is no other. */
    private static GroupAssignment kept(final GroupSpec group) {
        final Map<String, MemberAssignment> answer = new TreeMap<>();
        try {
            group.memberIds().forEach(member -> answer.put(member, new Partitions(group.memberAssignment(member).partitions())));
        } catch (final RuntimeException error) {
            answer.clear();
        }
        return new GroupAssignment(answer);
    }
}
