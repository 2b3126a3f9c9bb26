package io.equipoise.streams;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import java.util.SortedSet;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.Executors;
import java.util.function.Function;
import java.util.stream.Collectors;
import javax.management.ObjectName;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.assignment.ApplicationState;
import org.apache.kafka.streams.processor.assignment.AssignmentConfigs;
import org.apache.kafka.streams.processor.assignment.KafkaStreamsAssignment;
import org.apache.kafka.streams.processor.assignment.KafkaStreamsAssignment.AssignedTask;
import org.apache.kafka.streams.processor.assignment.KafkaStreamsState;
import org.apache.kafka.streams.processor.assignment.ProcessId;
import org.apache.kafka.streams.processor.assignment.TaskAssignor.TaskAssignment;
import org.apache.kafka.streams.processor.assignment.TaskInfo;
import org.apache.kafka.streams.processor.assignment.TaskTopicPartition;
import org.apache.kafka.streams.state.HostInfo;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class EquipoiseTaskAssignorTest {
    private static final ProcessId ONE = new ProcessId(new UUID(0, 1));
    private static final ProcessId TWO = new ProcessId(new UUID(0, 2));
    private static final TaskId A = new TaskId(0, 0);
    private static final TaskId B = new TaskId(0, 1);

    private HttpServer server;
    private final List<Map<?, ?>> asked = new ArrayList<>();
    private final List<String> tokens = new ArrayList<>();
    private Function<Map<?, ?>, String> says = question -> "{}";
    private int status = 200;

    @BeforeEach
    void start() throws IOException {
        server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        server.setExecutor(Executors.newCachedThreadPool());
        server.createContext("/", exchange -> {
            assertEquals("/v1/groups/my%20app/rounds", exchange.getRequestURI().getRawPath());
            final Map<?, ?> question = (Map<?, ?>) Json.read(new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8));
            asked.add(question);
            tokens.add(String.valueOf(exchange.getRequestHeaders().getFirst("Authorization")));
            final byte[] body = says.apply(question).getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(status, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
    }

    @AfterEach
    void stop() {
        server.stop(0);
    }

    private EquipoiseTaskAssignor assignor(final String url, final Map<String, String> more) {
        final Map<String, Object> configs = new HashMap<>(Map.of("application.id", "my app", EquipoiseTaskAssignor.URL, url, EquipoiseTaskAssignor.TIMEOUT_MS, "60000"));
        configs.putAll(more);
        final EquipoiseTaskAssignor assignor = new EquipoiseTaskAssignor();
        assignor.configure(configs);
        return assignor;
    }

    private String url() {
        return "http://127.0.0.1:" + server.getAddress().getPort();
    }

    private static String answer(final Map<?, ?> question, final String one, final String two, final String followUp) {
        return "{\"version\":1,\"round\":\"" + question.get("round") + "\",\"generation\":7,\"processes\":{\"" + ONE.id() + "\":" + one + ",\""
            + TWO.id() + "\":" + two + "},\"follow_up_ms\":" + followUp + "}";
    }

    @Test
    void theAnswerIsTheAssignment() throws Exception {
        says = question -> answer(question, "{\"active\":[\"0_1\"],\"standby\":[]}", "{\"active\":[\"0_0\"],\"standby\":[\"0_1\"]}", "5000");
        final long before = number("RoundsAnswered");
        final TaskAssignment assignment = assignor(url() + "/", Map.of(EquipoiseTaskAssignor.TOKEN, "secret")).assign(new Application());
        assertEquals(Map.of(ONE, Set.of("0_1 ACTIVE"), TWO, Set.of("0_0 ACTIVE", "0_1 STANDBY")), texts(assignment));
        final Duration left = Duration.between(Instant.now(), followUp(assignment).orElseThrow());
        assertTrue(left.toMillis() > 3_000 && left.toMillis() <= 5_000, left.toString());
        assertEquals(List.of("Bearer secret"), tokens);
        assertEquals(before + 1, number("RoundsAnswered"));
    }

    @Test
    void theQuestionHasTheStateOfTheApplication() {
        says = question -> answer(question, "{\"active\":[\"0_0\",\"0_1\"],\"standby\":[]}", "{\"active\":[],\"standby\":[]}", "null");
        assertEquals(Optional.empty(), followUp(assignor(url(), Map.of()).assign(new Application())));
        final Map<?, ?> question = asked.get(0);
        assertEquals(1L, question.get("version"));
        assertEquals(1000L, ((Map<?, ?>) question.get("settings")).get("acceptable.recovery.lag"));
        final Map<?, ?> task = (Map<?, ?>) ((List<?>) question.get("tasks")).get(0);
        assertEquals("0_0", task.get("id"));
        assertEquals(List.of(Map.of("topic", "in", "partition", 0L, "racks", List.of("a"))), task.get("source"));
        assertEquals(List.of(Map.of("topic", "log", "partition", 0L)), task.get("changelog"));
        assertEquals(5_000L, task.get("records")); // the lag of a process without a copy
        final Map<?, ?> one = (Map<?, ?>) ((List<?>) question.get("processes")).get(0);
        assertEquals(ONE.id().toString(), one.get("id"));
        assertEquals(List.of("0_0", "0_1"), one.get("active"));
        assertEquals(Map.of("0_0", -2L, "0_1", -2L), one.get("lags"));
        final Map<?, ?> two = (Map<?, ?>) ((List<?>) question.get("processes")).get(1);
        assertEquals(List.of("0_1"), two.get("standby"));
        assertEquals(Map.of("0_1", 40L), two.get("lags")); // 0_0, of which it has no copy, is left out
        assertEquals("b", two.get("rack"));
        assertEquals(Map.of("zone", "b"), two.get("tags"));
    }

    @Test
    void theNextWorkerIsAskedWhenOneIsAway() {
        says = question -> answer(question, "{\"active\":[\"0_0\"],\"standby\":[]}", "{\"active\":[\"0_1\"],\"standby\":[]}", "null");
        final TaskAssignment assignment = assignor("http://127.0.0.1:1, " + url(), Map.of()).assign(new Application());
        assertEquals(Set.of("0_1 ACTIVE"), texts(assignment).get(TWO));
    }

    @Test
    void withoutAnAnswerEveryTaskStaysAndEquipoiseIsAskedAgain() throws Exception {
        final Map<ProcessId, Set<String>> asItIs = Map.of(ONE, Set.of("0_0 ACTIVE", "0_1 ACTIVE"), TWO, Set.of());
        final Map<String, Function<Map<?, ?>, String>> wrong = new TreeMap<>();
        wrong.put("is no object", question -> "[]");
        wrong.put("JsonException", question -> "<html>");
        wrong.put("of round other", question -> answer(Map.of("round", "other"), "{}", "{}", "null"));
        wrong.put("names 0 of 2", question -> "{\"version\":1,\"round\":\"" + question.get("round") + "\",\"processes\":{}}");
        wrong.put("to two processes", question -> answer(question, "{\"active\":[\"0_0\",\"0_1\"],\"standby\":[]}", "{\"active\":[\"0_0\"],\"standby\":[]}", "null"));
        wrong.put("1 tasks to nobody", question -> answer(question, "{\"active\":[\"0_0\"],\"standby\":[]}", "{\"active\":[],\"standby\":[]}", "null"));
        wrong.put("names the task 7", question -> answer(question, "{\"active\":[\"7\"],\"standby\":[]}", "{\"active\":[],\"standby\":[]}", "null"));
        wrong.put("UNKNOWN_TASK_ID", question -> answer(question, "{\"active\":[\"0_0\",\"0_1\",\"9_9\"],\"standby\":[]}", "{\"active\":[],\"standby\":[]}", "null"));
        for (final Map.Entry<String, Function<Map<?, ?>, String>> each : wrong.entrySet()) {
            says = each.getValue();
            final long before = number("RoundsByFallback");
            final TaskAssignment assignment = assignor(url(), Map.of(EquipoiseTaskAssignor.RETRY_MS, "20000")).assign(new Application());
            assertEquals(asItIs, texts(assignment), each.getKey());
            final Duration left = Duration.between(Instant.now(), followUp(assignment).orElseThrow());
            assertTrue(left.toMillis() > 15_000 && left.toMillis() <= 20_000, left.toString());
            assertEquals(before + 1, number("RoundsByFallback"));
            assertTrue(problem().contains(each.getKey()), problem());
        }
        says = question -> "{\"problem\": \"the group is halted\"}";
        status = 503;
        assertEquals(asItIs, texts(assignor(url(), Map.of()).assign(new Application())));
        assertTrue(problem().contains("answered 503: {\"problem\": \"the group is halted\"}"), problem());
    }

    @Test
    void aSlowWorkerIsNotWaitedFor() throws Exception {
        says = question -> {
            try {
                Thread.sleep(3_000);
            } catch (final InterruptedException error) {
                Thread.currentThread().interrupt();
            }
            return "{}";
        };
        final long beganNs = System.nanoTime();
        assignor(url() + "," + url(), Map.of(EquipoiseTaskAssignor.TIMEOUT_MS, "300")).assign(new Application());
        final long tookMs = (System.nanoTime() - beganNs) / 1_000_000;
        assertTrue(tookMs < 2_500, tookMs + " ms");
        assertTrue(problem().contains("did not answer within"), problem());
    }

    @Test
    void settingsThatAreWrongAreRefusedAtTheStart() {
        assertThrows(IllegalArgumentException.class, () -> assignor("", Map.of()));
        assertThrows(IllegalArgumentException.class, () -> assignor(url(), Map.of(EquipoiseTaskAssignor.TIMEOUT_MS, "soon")));
        assertThrows(IllegalArgumentException.class, () -> assignor(url(), Map.of(EquipoiseTaskAssignor.RETRY_MS, "0")));
    }

    private static Object attribute(final String name) throws Exception {
        EquipoiseTaskAssignor.Status.class.getName();
        final ObjectName bean = new ObjectName("io.equipoise:type=streams-assignor,application=" + ObjectName.quote("my app"));
        if (!ManagementFactory.getPlatformMBeanServer().isRegistered(bean)) {
            return 0L;
        }
        return ManagementFactory.getPlatformMBeanServer().getAttribute(bean, name);
    }

    private static long number(final String name) throws Exception {
        return (Long) attribute(name);
    }

    private static String problem() throws Exception {
        return (String) attribute("Problem");
    }

    private static Map<ProcessId, Set<String>> texts(final TaskAssignment assignment) {
        return assignment.assignment().stream().collect(Collectors.toMap(KafkaStreamsAssignment::processId,
            each -> each.tasks().values().stream().map(task -> task.id() + " " + task.type()).collect(Collectors.toSet())));
    }

    private static Optional<Instant> followUp(final TaskAssignment assignment) {
        return assignment.assignment().stream().flatMap(each -> each.followupRebalanceDeadline().stream()).findFirst();
    }

    /** Two processes: the first runs both tasks, the second has a copy of one. */
    private static final class Application implements ApplicationState {
        @Override
        public Map<ProcessId, KafkaStreamsState> kafkaStreamsStates(final boolean computeTaskLags) {
            return Map.of(
                ONE, new Process(ONE, Set.of(A, B), Set.of(), Map.of(A, -2L, B, -2L), null),
                TWO, new Process(TWO, Set.of(), Set.of(B), Map.of(A, 5_000L, B, 40L), "b"));
        }

        @Override
        public AssignmentConfigs assignmentConfigs() {
            return new AssignmentConfigs(1_000L, 2, 0, 60_000L, List.of(), OptionalInt.empty(), OptionalInt.empty(), "none");
        }

        @Override
        public Map<TaskId, TaskInfo> allTasks() {
            return Map.of(A, new Task(A), B, new Task(B));
        }
    }

    private record Task(TaskId id) implements TaskInfo {
        @Override
        public boolean isStateful() {
            return true;
        }

        @Override
        public Set<String> stateStoreNames() {
            return Set.of("store");
        }

        @Override
        public Set<TaskTopicPartition> topicPartitions() {
            return new HashSet<>(List.of(new Place("in", id.partition(), true), new Place("log", id.partition(), false)));
        }
    }

    private record Place(String topic, int partition, boolean isSource) implements TaskTopicPartition {
        @Override
        public TopicPartition topicPartition() {
            return new TopicPartition(topic, partition);
        }

        @Override
        public boolean isChangelog() {
            return !isSource;
        }

        @Override
        public Optional<Set<String>> rackIds() {
            return isSource ? Optional.of(Set.of("a")) : Optional.empty();
        }
    }

    private record Process(ProcessId processId, Set<TaskId> active, Set<TaskId> standby, Map<TaskId, Long> statefulTasksToLagSums, String rack)
        implements KafkaStreamsState {
        @Override
        public int numProcessingThreads() {
            return 2;
        }

        @Override
        public SortedSet<String> consumerClientIds() {
            return new TreeSet<>(Set.of("i-StreamThread-1-consumer-" + processId.id()));
        }

        @Override
        public SortedSet<TaskId> previousActiveTasks() {
            return new TreeSet<>(active);
        }

        @Override
        public SortedSet<TaskId> previousStandbyTasks() {
            return new TreeSet<>(standby);
        }

        @Override
        public long lagFor(final TaskId task) {
            return statefulTasksToLagSums.get(task);
        }

        @Override
        public SortedSet<TaskId> prevTasksByLag(final String consumerClientId) {
            return new TreeSet<>(active);
        }

        @Override
        public Optional<HostInfo> hostInfo() {
            return Optional.empty();
        }

        @Override
        public Map<String, String> clientTags() {
            return rack == null ? Map.of() : Map.of("zone", rack);
        }

        @Override
        public Optional<String> rackId() {
            return Optional.ofNullable(rack);
        }
    }
}
