package io.equipoise.broker;

import java.util.*;
import java.util.function.IntPredicate;
import java.util.stream.Stream;

/**
 * Who has which partition, by positions in sorted lists: first what everybody has, then a plan, then what nobody has goes to whoever
 * has the least. Holds nothing beyond one call.
 */
final class Placing {
    static final int NOBODY = -1, HELD = -2;

    /** Racks of the replicas of a partition. */
    interface Racks {
        Collection<String> of(int topic, int partition);
    }

    /** Topic -> partition -> the member that has it, NOBODY or HELD. */
    final int[][] owner;
    /** Topic -> who may have its partitions. */
    final BitSet[] readers;
    /** Topic -> partition -> members that keep a copy of its state; null: there is no state. */
    BitSet[][] copies;
    /** Members whose partitions are not those that they had. */
    final BitSet changed = new BitSet();
    /** Topic -> those of them of whose partitions of the topic that is true. */
    final BitSet[] changedIn;
    private final int[] load;
    private final Map<String, BitSet> inRack = new HashMap<>();
    private final BitSet least = new BitSet();
    private int level;

    Placing(final int members, final BitSet[] readers, final int[] counts) {
        this.readers = readers;
        load = new int[members];
        owner = new int[counts.length][];
        changedIn = Stream.generate(BitSet::new).limit(counts.length).toArray(BitSet[]::new);
        for (int topic = 0; topic < counts.length; topic++) {
            owner[topic] = new int[counts[topic]];
            Arrays.fill(owner[topic], NOBODY);
        }
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
        copies = Arrays.stream(owner).map(of -> Stream.generate(BitSet::new).limit(of.length).toArray(BitSet[]::new)).toArray(BitSet[][]::new);
    }

    /** The member keeps a copy now, unless there is no such task. */
    void hasCopy(final int member, final int topic, final int partition) {
        if (topic >= 0 && partition >= 0 && partition < owner[topic].length) {
            copies[topic][partition].set(member);
        }
    }

    /** Carries out all of a plan, or nothing when one of its entries does not fit. `members`, `topics`: how many a plan can name. */
    void apply(final Plan plan, final int members, final int topics) {
        final BitSet[] seen = Stream.generate(BitSet::new).limit(topics).toArray(BitSet[]::new);
        for (final int[] entry : plan.entries()) {
            final int kind = entry[0], member = entry[1], topic = entry[2], first = entry[3], last = entry[4];
            final boolean fits = (kind < Plan.COPY || copies != null) && topic < topics && last < owner[topic].length;
            if (!fits || kind != Plan.HOLD && (member >= members || !readers[topic].get(member))) {
                return;
            }
            if (kind < Plan.COPY) {
                if (!seen[topic].get(first, last + 1).isEmpty()) {
                    return;
                }
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
        if (from == to) {
            return;
        }
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

    /** Gives what nobody has to the reader with the least, of equals to one near by, of those to the first; a task to one with a copy. */
    void fill(final Racks racks) {
        for (int topic = 0; topic < owner.length; topic++) {
            least.clear();
            for (int partition = 0; partition < owner[topic].length; partition++) {
                if (owner[topic][partition] == NOBODY) {
                    final boolean copied = copies != null && !copies[topic][partition].isEmpty();
                    if (copies != null) {
                        least.clear();
                    }
                    give(topic, partition, next(copied ? copies[topic][partition] : readers[topic], racks.of(topic, partition)));
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
    void balance(final Racks racks) {
        for (int topic = 0; topic < owner.length; topic++) {
            least.clear();
            for (int partition = 0; partition < owner[topic].length; partition++) {
                if (owner[topic][partition] >= 0) {
                    refill(readers[topic]);
                    if (load[owner[topic][partition]] > level + 1) {
                        give(topic, partition, next(readers[topic], racks.of(topic, partition)));
                    }
                }
            }
        }
    }

    private int next(final BitSet among, final Collection<String> racks) {
        refill(among);
        int best = -1;
        for (final String rack : racks) {
            final BitSet both = (BitSet) inRack.getOrDefault(rack, new BitSet()).clone();
            both.and(least);
            final int found = both.nextSetBit(0);
            best = found >= 0 && (best < 0 || found < best) ? found : best;
        }
        best = best < 0 ? least.nextSetBit(0) : best;
        least.clear(best);
        return best;
    }

    /** `least`: those of them that have the fewest partitions, each until it has been given one. */
    private void refill(final BitSet among) {
        if (!least.isEmpty()) {
            return;
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
    }
}
