package io.equipoise.broker;

import java.util.*;
import java.util.function.BiFunction;
import java.util.function.IntPredicate;
import java.util.stream.Stream;

/**
 * Who has which partition, by positions in sorted lists: first what everybody has, then a plan, then what nobody has goes to whoever
 * has the least. Holds nothing beyond one call.
 */
final class Placing {
    static final int NOBODY = -1, HELD = -2;

    /** Topic -> partition -> the member that has it, NOBODY or HELD. */
    final int[][] owner;
    /** Topic -> who may have its partitions. */
    final BitSet[] readers;
    /** Topic -> partition -> members that keep a copy of its state; null: there is no state. */
    BitSet[][] copies;
    /** Topic -> partition -> how far the furthest state of it on a disk is, and whose that is. */
    private long[][] furthest;
    private BitSet[][] states;
    /** Members whose partitions are not those that they had. */
    final BitSet changed = new BitSet();
    /** Topic -> those of them of whose partitions of the topic that is true. */
    final BitSet[] changedIn;
    /** Topic, partition -> racks of its replicas. */
    private final BiFunction<Integer, Integer, Collection<String>> racks;
    private final int[] load;
    private final Map<String, BitSet> inRack = new HashMap<>();
    private final BitSet least = new BitSet();
    private int level;

    Placing(final int members, final BitSet[] readers, final int[] counts, final BiFunction<Integer, Integer, Collection<String>> racks) {
        this.racks = racks;
        this.readers = readers;
        load = new int[members];
        owner = Arrays.stream(counts).mapToObj(int[]::new).toArray(int[][]::new);
        Arrays.stream(owner).forEach(of -> Arrays.fill(of, NOBODY));
        changedIn = Stream.generate(BitSet::new).limit(counts.length).toArray(BitSet[]::new);
    }

    void inRack(final int member, final String rack) {
        inRack.computeIfAbsent(rack, each -> new BitSet()).set(member);
    }

    /** The member has the partition now, unless it may not, there is no such partition, or a member before it has it. */
    void has(final int member, final int topic, final int partition) {
        if (topic < 0 || partition < 0 || partition >= owner[topic].length || owner[topic][partition] != NOBODY || !readers[topic].get(member)) {
            changed(member, topic);
        } else {
            owner[topic][partition] = member;
            load[member]++;
        }
    }

    /** From now on partitions are tasks, which members keep copies of. */
    void keepsCopies() {
        copies = setsOfMembers();
        states = setsOfMembers();
        furthest = Arrays.stream(owner).map(of -> new long[of.length]).toArray(long[][]::new);
    }

    private BitSet[][] setsOfMembers() {
        return Arrays.stream(owner).map(of -> Stream.generate(BitSet::new).limit(of.length).toArray(BitSet[]::new)).toArray(BitSet[][]::new);
    }

    /** The member keeps a copy now, unless there is no such task. */
    void hasCopy(final int member, final int topic, final int partition) {
        if (topic >= 0 && partition >= 0 && partition < owner[topic].length) {
            copies[topic][partition].set(member);
        }
    }

    /** The member has a state on its disk that nobody may keep up, unless there is no such task. */
    void hasState(final int member, final int topic, final int partition, final long offset) {
        if (topic >= 0 && partition >= 0 && partition < owner[topic].length && offset > 0 && offset >= furthest[topic][partition]) {
            if (offset > furthest[topic][partition]) {
                states[topic][partition].clear();
            }
            furthest[topic][partition] = offset;
            states[topic][partition].set(member);
        }
    }

    /** Carries out all of a plan, or nothing when one of its entries does not fit. `members`, `topics`: how many a plan can name. */
    void apply(final Plan plan, final int members, final int topics) {
        final BitSet[] seen = Stream.generate(BitSet::new).limit(topics).toArray(BitSet[]::new);
        for (final int[] entry : plan.entries()) {
            final int kind = entry[0], member = entry[1], topic = entry[2], first = entry[3], last = entry[4];
            final boolean fits = (kind < Plan.COPY || copies != null) && topic < topics && last < owner[topic].length;
            final boolean may = fits && (kind == Plan.HOLD || member < members && readers[topic].get(member));
            if (!may || kind < Plan.COPY && !seen[topic].get(first, last + 1).isEmpty()) {
                return;
            }
            if (kind < Plan.COPY) {
                seen[topic].set(first, last + 1);
            }
        }
        for (final int[] entry : plan.entries()) {
            for (int partition = entry[3]; partition <= entry[4]; partition++) {
                if (entry[0] >= Plan.COPY) {
                    copies[entry[2]][partition].set(entry[1], entry[0] == Plan.COPY);
                } else {
                    give(entry[2], partition, entry[0] == Plan.MOVE ? entry[1] : HELD);
                }
            }
        }
    }

    private void give(final int topic, final int partition, final int to) {
        final int from = owner[topic][partition];
        if (from >= 0) {
            load[from]--;
            changed(from, topic);
        }
        if (to >= 0) {
            load[to]++;
            changed(to, topic);
        }
        owner[topic][partition] = to;
    }

    private void changed(final int member, final int topic) {
        changed.set(member);
        if (topic >= 0) {
            changedIn[topic].set(member);
        }
    }

    /**
     * Gives what nobody has to the reader with the least, of equals to one near by, of those to the first; a task to one with a copy, else to one with
     * the furthest state.
     */
    void fill() {
        for (int topic = 0; topic < owner.length; topic++) {
            least.clear();
            for (int partition = 0; partition < owner[topic].length; partition++) {
                if (owner[topic][partition] == NOBODY) {
                    BitSet among = readers[topic];
                    if (copies != null) {
                        least.clear();
                        among = !copies[topic][partition].isEmpty() ? copies[topic][partition] : states[topic][partition];
                    }
                    give(topic, partition, next(among.isEmpty() ? readers[topic] : among, racks.apply(topic, partition)));
                }
            }
        }
    }

    /** Leaves one copy a process, none where the task runs, and none of a topic without state. */
    void tidyCopies(final String[] processes, final IntPredicate stateful) {
        for (int topic = 0; topic < owner.length; topic++) {
            for (int partition = 0; partition < owner[topic].length; partition++) {
                final Set<String> taken = new HashSet<>(owner[topic][partition] < 0 ? Set.of() : Set.of(processes[owner[topic][partition]]));
                for (final int member : copies[topic][partition].stream().toArray()) {
                    copies[topic][partition].set(member, stateful.test(topic) && taken.add(processes[member]));
                }
            }
        }
    }

    /** Moves partitions until no reader has two more than another. For a group without a plan, for which nobody else does it. */
    void balance() {
        for (int topic = 0; topic < owner.length; topic++) {
            least.clear();
            for (int partition = 0; partition < owner[topic].length; partition++) {
                if (owner[topic][partition] >= 0 && load[owner[topic][partition]] > refill(readers[topic]) + 1) {
                    give(topic, partition, next(readers[topic], racks.apply(topic, partition)));
                }
            }
        }
    }

    private int next(final BitSet among, final Collection<String> nearBy) {
        refill(among);
        final BitSet near = new BitSet();
        nearBy.forEach(rack -> near.or(inRack.getOrDefault(rack, near)));
        near.and(least);
        final int best = (near.isEmpty() ? least : near).nextSetBit(0);
        least.clear(best);
        return best;
    }

    /** `least`: those of them that have the fewest partitions, each until it has been given one. Returns how many these have. */
    private int refill(final BitSet among) {
        if (!least.isEmpty()) {
            return level;
        }
        level = Integer.MAX_VALUE;
        for (int member = among.nextSetBit(0); member >= 0; member = among.nextSetBit(member + 1)) {
            if (load[member] < level) {
                level = load[member];
                least.clear();
            }
            if (load[member] == level) {
                least.set(member);
            }
        }
        return level;
    }
}
