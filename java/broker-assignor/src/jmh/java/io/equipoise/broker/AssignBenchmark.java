package io.equipoise.broker;

import java.util.*;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.openjdk.jmh.annotations.*;

/** How long `assign` takes, in the manner of a broker: one call after the other on one thread. */
@State(Scope.Benchmark)
@BenchmarkMode(Mode.SampleTime)
@OutputTimeUnit(TimeUnit.MILLISECONDS)
@Warmup(iterations = 2, time = 5)
@Measurement(iterations = 3, time = 5)
@Fork(1)
public class AssignBenchmark {
    private static final int TOPICS = 10;

    @Param({"nothing to do", "a plan of 1,000 moves", "a member has left", "nobody has anything"})
    public String what;

    @Param("1000")
    public int members;

    @Param("50000")
    public int partitions;

    private final EquipoiseConsumerAssignor assignor = new EquipoiseConsumerAssignor();
    private Cases.Group group;

    @Setup
    public void make() {
        group = group(what, members, partitions);
    }

    @Benchmark
    public GroupAssignment assign() {
        return assignor.assign(group, group);
    }

    private static Cases.Group group(final String what, final int members, final int partitions) {
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
            if (member > 0 || !what.equals("a member has left")) {
                readers.add(Map.of("id", ids[member], "rack", "", "topics", all, "held", what.equals("nobody has anything") ? List.of() : held));
            }
        }
        final StringBuilder plan = new StringBuilder("equipoise/1;1;-;").append(Plan.hash(ids, members, List.of(topicIds)));
        for (int move = 0; move < (what.startsWith("a plan") ? 1_000 : 0); move++) {
            plan.append(";").append((move + 1) % members).append(":0=").append(move % (partitions / TOPICS));
        }
        readers.add(Map.of("id", "seat", "rack", plan.toString(), "topics", List.of(), "held", List.of()));
        return new Cases.Group(Map.of("topics", topics, "members", readers, "answer", ""));
    }
}
