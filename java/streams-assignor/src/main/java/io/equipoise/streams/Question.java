package io.equipoise.streams;

import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SortedSet;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.assignment.ApplicationState;
import org.apache.kafka.streams.processor.assignment.AssignmentConfigs;
import org.apache.kafka.streams.processor.assignment.KafkaStreamsState;
import org.apache.kafka.streams.processor.assignment.ProcessId;
import org.apache.kafka.streams.processor.assignment.TaskInfo;
import org.apache.kafka.streams.processor.assignment.TaskTopicPartition;

/** The state of an application as the document of a round, version 1 (docs/streams.md). */
final class Question {
    static final int VERSION = 1;

    private Question() {
    }

    static Map<String, Object> of(final ApplicationState application, final String round) {
        final Map<String, Object> document = new LinkedHashMap<>();
        document.put("version", VERSION);
        document.put("round", round);
        document.put("settings", settings(application.assignmentConfigs()));
        final Map<ProcessId, KafkaStreamsState> states = new TreeMap<>(application.kafkaStreamsStates(true));
        final List<Object> tasks = new ArrayList<>();
        new TreeMap<>(application.allTasks()).values().forEach(task -> tasks.add(task(task, states.values())));
        document.put("tasks", tasks);
        final List<Object> processes = new ArrayList<>();
        states.values().forEach(process -> processes.add(process(process, application)));
        document.put("processes", processes);
        return document;
    }

    private static Map<String, Object> settings(final AssignmentConfigs configs) {
        final Map<String, Object> settings = new LinkedHashMap<>();
        settings.put("acceptable.recovery.lag", configs.acceptableRecoveryLag());
        settings.put("max.warmup.replicas", configs.maxWarmupReplicas());
        settings.put("num.standby.replicas", configs.numStandbyReplicas());
        settings.put("probing.rebalance.interval.ms", configs.probingRebalanceIntervalMs());
        settings.put("rack.aware.assignment.strategy", configs.rackAwareAssignmentStrategy());
        configs.rackAwareTrafficCost().ifPresent(cost -> settings.put("rack.aware.assignment.traffic_cost", cost));
        configs.rackAwareNonOverlapCost().ifPresent(cost -> settings.put("rack.aware.assignment.non_overlap_cost", cost));
        settings.put("rack.aware.assignment.tags", configs.rackAwareAssignmentTags());
        return settings;
    }

    /** {@code records}: the longest lag of any process, which of one without a copy is the whole changelog. */
    private static Map<String, Object> task(final TaskInfo task, final Collection<KafkaStreamsState> processes) {
        final List<Object> source = new ArrayList<>();
        final List<Object> changelog = new ArrayList<>();
        task.topicPartitions().stream().sorted(Question::order).forEach(partition -> {
            if (partition.isSource()) {
                source.add(partition(partition));
            }
            if (partition.isChangelog()) {
                changelog.add(partition(partition));
            }
        });
        final Map<String, Object> document = new LinkedHashMap<>();
        document.put("id", task.id());
        document.put("stateful", task.isStateful());
        document.put("source", source);
        document.put("changelog", changelog);
        document.put("records", longestLag(task.id(), processes));
        return document;
    }

    private static long longestLag(final TaskId task, final Collection<KafkaStreamsState> processes) {
        return Math.max(0, processes.stream().mapToLong(each -> each.statefulTasksToLagSums().getOrDefault(task, 0L)).max().orElse(0));
    }

    private static int order(final TaskTopicPartition one, final TaskTopicPartition other) {
        return one.topicPartition().toString().compareTo(other.topicPartition().toString());
    }

    private static Map<String, Object> partition(final TaskTopicPartition partition) {
        final Map<String, Object> document = new LinkedHashMap<>();
        document.put("topic", partition.topicPartition().topic());
        document.put("partition", partition.topicPartition().partition());
        partition.rackIds().ifPresent(racks -> document.put("racks", new TreeSet<>(racks)));
        return document;
    }

    private static Map<String, Object> process(final KafkaStreamsState process, final ApplicationState application) {
        final SortedSet<TaskId> active = new TreeSet<>(process.previousActiveTasks());
        active.retainAll(application.allTasks().keySet());
        final SortedSet<TaskId> standby = new TreeSet<>(process.previousStandbyTasks());
        standby.removeAll(active);
        standby.removeIf(task -> !isStateful(application, task));
        final Map<String, Object> lags = new LinkedHashMap<>();
        new TreeMap<>(process.statefulTasksToLagSums()).forEach((task, lag) -> {
            // Of a task without a copy Kafka Streams gives the whole changelog as its lag.
            if ((active.contains(task) || standby.contains(task)) && isStateful(application, task)) {
                lags.put(task.toString(), lag);
            }
        });
        final Map<String, Object> document = new LinkedHashMap<>();
        document.put("id", process.processId().id());
        document.put("consumers", process.consumerClientIds());
        document.put("threads", Math.max(1, process.numProcessingThreads()));
        document.put("rack", process.rackId().orElse(null));
        document.put("tags", new TreeMap<>(process.clientTags()));
        document.put("active", active);
        document.put("standby", standby);
        document.put("lags", lags);
        return document;
    }

    private static boolean isStateful(final ApplicationState application, final TaskId task) {
        final TaskInfo info = application.allTasks().get(task);
        return info != null && info.isStateful();
    }
}
