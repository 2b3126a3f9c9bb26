package io.equipoise.broker;

import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.*;

/** How long `assign` takes, in the manner of a broker: one call after the other on one thread. */
final class Speed {
    private static final int TOPICS = 10, WARM_UP = 1_000;

    private Speed() {
    }

    /** Prints a line of JSON for each situation. */
    static void measure(final PrintStream out, final int members, final int partitions, final int times) {
        for (final String situation : List.of("nothing to do", "a plan of 1,000 moves", "a member has left", "nobody has anything")) {
            final Cases.Group group = group(situation, members, partitions);
            final EquipoiseConsumerAssignor assignor = new EquipoiseConsumerAssignor();
            for (int round = 0; round < WARM_UP; round++) {
                assignor.assign(group, group);
            }
            final ThreadMXBean thread = ManagementFactory.getThreadMXBean();
            final long[] took = new long[times], used = new long[times];
            for (int round = 0; round < times; round++) {
                final long began = System.nanoTime(), usedBefore = thread.getCurrentThreadCpuTime();
                assignor.assign(group, group);
                used[round] = thread.getCurrentThreadCpuTime() - usedBefore;
                took[round] = System.nanoTime() - began;
            }
            Arrays.sort(took);
            Arrays.sort(used);
            final int p99 = times - 1 - times / 100;
            out.printf(Locale.ROOT, "{\"situation\": \"%s\", \"members\": %d, \"partitions\": %d, \"times\": %d, ", situation, members, partitions, times);
            out.printf(Locale.ROOT, "\"p50_ms\": %.2f, \"p99_ms\": %.2f, \"cpu_p50_ms\": %.2f, \"cpu_p99_ms\": %.2f}%n",
                took[times / 2] / 1e6, took[p99] / 1e6, used[times / 2] / 1e6, used[p99] / 1e6);
        }
    }

    private static Cases.Group group(final String situation, final int members, final int partitions) {
        final List<Object> topics = new ArrayList<>(), readers = new ArrayList<>(), all = new ArrayList<>();
        final String[] ids = new String[members], topicIds = new String[TOPICS];
        for (int topic = 0; topic < TOPICS; topic++) {
            topicIds[topic] = String.format("%032x", topic + 1);
            topics.add(Map.of("id", topicIds[topic], "partitions", (long) partitions / TOPICS, "racks", List.of()));
            all.add((long) topic);
        }
        for (int member = 0; member < members; member++) {
            ids[member] = String.format("member-%036d", member);
            final List<Object> held = new ArrayList<>();
            for (int topic = 0; topic < TOPICS; topic++) {
                final List<Object> of = new ArrayList<>();
                for (int partition = member % members; partition < partitions / TOPICS; partition += members) {
                    of.add((long) partition);
                }
                held.add(List.of((long) topic, of));
            }
            final boolean gone = situation.equals("a member has left") && member == 0 || situation.equals("nobody has anything");
            readers.add(Map.of("id", ids[member], "rack", "", "topics", all, "held", gone ? List.of() : held));
        }
        final StringBuilder plan = new StringBuilder("equipoise/1;1;-;").append(Plan.hash(ids, members, List.of(topicIds)));
        for (int move = 0; move < (situation.startsWith("a plan") ? 1_000 : 0); move++) {
            plan.append(";").append((move + 1) % members).append(":0=").append(move % (partitions / TOPICS));
        }
        readers.add(Map.of("id", "seat", "rack", plan.toString(), "topics", List.of(), "held", List.of()));
        return new Cases.Group(Map.of("topics", topics, "members", readers, "answer", ""));
    }
}
