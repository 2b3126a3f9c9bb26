package io.equipoise.streams;

import java.time.Instant;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.assignment.ApplicationState;
import org.apache.kafka.streams.processor.assignment.KafkaStreamsAssignment;
import org.apache.kafka.streams.processor.assignment.KafkaStreamsAssignment.AssignedTask;
import org.apache.kafka.streams.processor.assignment.ProcessId;
import org.apache.kafka.streams.processor.assignment.TaskAssignmentUtils;
import org.apache.kafka.streams.processor.assignment.TaskAssignor.AssignmentError;
import org.apache.kafka.streams.processor.assignment.TaskAssignor.TaskAssignment;

/** The answer to a round, as Kafka Streams takes it. An answer that does not fit is refused. */
final class Answer {
    /** An answer that must not be used. */
    static final class WrongAnswerException extends RuntimeException {
        private static final long serialVersionUID = 1L;

        WrongAnswerException(final String problem) {
            super(problem);
        }
    }

    private Answer() {
    }

    static TaskAssignment of(final Object document, final ApplicationState application, final String round, final Instant now) {
        final Map<?, ?> content = map(document, "the answer");
        if (!Long.valueOf(Question.VERSION).equals(content.get("version")) || !round.equals(content.get("round"))) {
            throw new WrongAnswerException("answers version " + content.get("version") + " of round " + content.get("round"));
        }
        final Map<?, ?> processes = map(content.get("processes"), "processes");
        final Instant followUp = content.get("follow_up_ms") instanceof Long ms ? now.plusMillis(Math.max(0, ms)) : null;
        final List<KafkaStreamsAssignment> assignments = new ArrayList<>();
        final Set<TaskId> given = new HashSet<>();
        final Set<ProcessId> known = new TreeMap<>(application.kafkaStreamsStates(false)).keySet();
        if (processes.size() != known.size()) {
            throw new WrongAnswerException("names " + processes.size() + " of " + known.size() + " processes");
        }
        for (final ProcessId process : known) {
            final Map<?, ?> part = map(processes.get(process.id().toString()), "process " + process.id());
            final Set<AssignedTask> tasks = new HashSet<>();
            final Set<TaskId> own = new HashSet<>();
            for (final TaskId task : tasks(part.get("active"))) {
                if (!given.add(task)) {
                    throw new WrongAnswerException("gives " + task + " to two processes");
                }
                own.add(task);
                tasks.add(new AssignedTask(task, AssignedTask.Type.ACTIVE));
            }
            for (final TaskId task : tasks(part.get("standby"))) {
                if (own.add(task)) {
                    tasks.add(new AssignedTask(task, AssignedTask.Type.STANDBY));
                }
            }
            final KafkaStreamsAssignment assignment = KafkaStreamsAssignment.of(process, tasks);
            assignments.add(followUp != null && assignments.isEmpty() ? assignment.withFollowupRebalance(followUp) : assignment);
        }
        final Set<TaskId> missing = new HashSet<>(application.allTasks().keySet());
        missing.removeAll(given);
        if (!missing.isEmpty()) {
            throw new WrongAnswerException("gives " + missing.size() + " tasks to nobody, " + missing.iterator().next() + " among them");
        }
        final TaskAssignment assignment = new TaskAssignment(assignments);
        final AssignmentError error = TaskAssignmentUtils.validateTaskAssignment(application, assignment);
        if (error != AssignmentError.NONE) {
            throw new WrongAnswerException("is not valid: " + error);
        }
        return assignment;
    }

    private static Map<?, ?> map(final Object value, final String what) {
        if (value instanceof Map<?, ?> map) {
            return map;
        }
        throw new WrongAnswerException(what + " is no object");
    }

    private static List<TaskId> tasks(final Object value) {
        final List<TaskId> tasks = new ArrayList<>();
        if (!(value instanceof List<?> list)) {
            throw new WrongAnswerException("a list of tasks is no array");
        }
        for (final Object each : list) {
            try {
                tasks.add(TaskId.parse(String.valueOf(each)));
            } catch (final RuntimeException error) {
                throw new WrongAnswerException("names the task " + each);
            }
        }
        return tasks;
    }
}
