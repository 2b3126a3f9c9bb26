import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.assignment.AssignmentConfigs;
import org.apache.kafka.streams.processor.assignment.ProcessId;
import org.apache.kafka.streams.processor.internals.InternalTopicManager;
import org.apache.kafka.streams.processor.internals.TopologyMetadata;
import org.apache.kafka.streams.processor.internals.assignment.ClientState;
import org.apache.kafka.streams.processor.internals.assignment.HighAvailabilityTaskAssignor;
import org.apache.kafka.streams.processor.internals.assignment.RackAwareTaskAssignor;

/**
 * Asks the published HighAvailabilityTaskAssignor, and tells how long it thinks.
 *
 * <p>Problems come in as JSON Lines, in the form of {@code tests/support/assign_json.py}; member ids are UUIDs. An answer a line goes out:
 * {@code {"probing": false, "rack_aware": true, "members": {id: {"active": [...], "standby": [...]}}, "nanos": [...]}}, or
 * {@code {"error": "..."}}. Warm-ups are standbys.
 *
 * <p>Arguments: how often each problem is assigned in this JVM (default 1; {@code nanos} has the CPU time of each, the cold ones first), and after
 * how many seconds a problem is not assigned once more (default: no bound). Only {@code assign} is timed; all it takes is made anew before.
 */
public final class HighAvailabilityDriver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final ThreadMXBean CLOCK = ManagementFactory.getThreadMXBean();

    public static void main(final String[] args) throws Exception {
        final int turns = args.length > 0 ? Integer.parseInt(args[0]) : 1;
        final long mostNanos = args.length > 1 ? Long.parseLong(args[1]) * 1_000_000_000L : Long.MAX_VALUE;
        final BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer;
            try {
                answer = assigned(JSON.readTree(line), turns, mostNanos);
            } catch (final Exception error) {
                answer = JSON.createObjectNode().put("error", error.toString());
            }
            out.println(JSON.writeValueAsString(answer));
        }
    }

    private static ObjectNode assigned(final JsonNode problem, final int turns, final long mostNanos) {
        final ArrayNode nanos = JSON.createArrayNode();
        final long begunNanos = System.nanoTime();
        boolean probing;
        Round round;
        do {
            round = new Round(problem);
            final long startedNanos = CLOCK.getCurrentThreadCpuTime();
            probing = round.assign();
            nanos.add(CLOCK.getCurrentThreadCpuTime() - startedNanos);
        } while (nanos.size() < turns && System.nanoTime() - begunNanos < mostNanos);
        final ObjectNode answer = JSON.createObjectNode();
        answer.put("probing", probing);
        answer.put("rack_aware", round.racks.canEnableRackAwareAssignor());
        final ObjectNode members = answer.putObject("members");
        round.clients.forEach((process, client) -> {
            final ObjectNode member = members.putObject(process.id().toString());
            member.set("active", texts(client.activeTasks()));
            member.set("standby", texts(client.standbyTasks()));
        });
        answer.set("nanos", nanos);
        return answer;
    }

    private static ArrayNode texts(final Collection<TaskId> tasks) {
        final ArrayNode texts = JSON.createArrayNode();
        new TreeSet<>(tasks).forEach(task -> texts.add(task.toString()));
        return texts;
    }

    /** One problem in Kafka's terms. An assignment uses it up. */
    private static final class Round {
        private final Set<TaskId> tasks = new TreeSet<>();
        private final Set<TaskId> stateful = new TreeSet<>();
        private final Map<TaskId, Set<TopicPartition>> sources = new HashMap<>();
        private final Map<TaskId, Set<TopicPartition>> changelogs = new HashMap<>();
        private final Map<TopologyMetadata.Subtopology, Set<TaskId>> subtopologies = new HashMap<>();
        private final Map<TopicPartition, List<Node>> replicas = new HashMap<>();
        private final Map<String, Node> nodes = new HashMap<>();
        private final AssignmentConfigs configs;
        private final Map<ProcessId, ClientState> clients = new HashMap<>();
        private final RackAwareTaskAssignor racks;

        private Round(final JsonNode problem) {
            final Map<TaskId, Long> endOffsets = new HashMap<>();
            for (final JsonNode each : problem.get("tasks")) {
                final TaskId task = TaskId.parse(each.get("id").asText());
                tasks.add(task);
                subtopologies.computeIfAbsent(new TopologyMetadata.Subtopology(task.subtopology(), null), key -> new HashSet<>()).add(task);
                sources.put(task, partitions(each.path("source")));
                if (each.get("stateful").asBoolean()) {
                    stateful.add(task);
                    changelogs.put(task, partitions(each.path("changelog")));
                    endOffsets.put(task, each.path("end_offset").asLong(0));
                }
            }
            configs = configs(problem.path("config"));
            final Map<ProcessId, Map<String, Optional<String>>> rackOfConsumer = new HashMap<>();
            for (final JsonNode each : problem.get("members")) {
                final ProcessId process = new ProcessId(UUID.fromString(each.get("id").asText()));
                final Map<TaskId, Long> lags = new HashMap<>(endOffsets);
                each.path("active").forEach(task -> lags.replace(TaskId.parse(task.asText()), -2L));
                each.path("lags").fields().forEachRemaining(lag -> lags.replace(TaskId.parse(lag.getKey()), lag(lag.getValue())));
                final Map<String, String> tags = new HashMap<>();
                each.path("tags").fields().forEachRemaining(tag -> tags.put(tag.getKey(), tag.getValue().asText()));
                clients.put(process, new ClientState(Set.of(), Set.of(), lags, tags, each.path("capacity").asInt(1), process));
                rackOfConsumer.put(process, Map.of("consumer", Optional.ofNullable(each.path("rack").textValue())));
            }
            racks = new RackAwareTaskAssignor(cluster(), sources, changelogs, subtopologies, rackOfConsumer, new Described(replicas), configs, Time.SYSTEM);
        }

        private boolean assign() {
            return new HighAvailabilityTaskAssignor().assign(clients, tasks, stateful, racks, configs);
        }

        private static long lag(final JsonNode lag) {
            return lag.isTextual() ? (lag.asText().equals("active") ? -2L : -3L) : lag.asLong();
        }

        private Set<TopicPartition> partitions(final JsonNode array) {
            final Set<TopicPartition> found = new HashSet<>();
            for (final JsonNode each : array) {
                final TopicPartition partition = new TopicPartition(each.get("topic").asText(), each.get("partition").asInt());
                final List<Node> theirs = new ArrayList<>();
                for (final JsonNode rack : each.path("racks")) {
                    theirs.add(nodes.computeIfAbsent(rack.asText(), name -> new Node(nodes.size(), "host", 9092, name)));
                }
                replicas.put(partition, theirs);
                found.add(partition);
            }
            return found;
        }

        private Cluster cluster() {
            final List<PartitionInfo> known = new ArrayList<>();
            replicas.forEach((partition, theirs) -> {
                final Node[] array = theirs.toArray(new Node[0]);
                known.add(new PartitionInfo(partition.topic(), partition.partition(), array.length == 0 ? null : array[0], array, array));
            });
            return new Cluster("cluster", nodes.values(), known, Set.of(), Set.of());
        }

        private static AssignmentConfigs configs(final JsonNode config) {
            final List<String> tags = new ArrayList<>();
            config.path("rack_aware_tags").forEach(tag -> tags.add(tag.asText()));
            final String strategy = config.path("rack_aware_strategy").asText("none");
            return new AssignmentConfigs(
                config.path("acceptable_recovery_lag").asLong(10_000),
                config.path("max_warmups").asInt(2),
                config.path("num_standbys").asInt(0),
                600_000L,
                tags,
                OptionalInt.of(config.path("rack_traffic_cost").asInt(10)),
                OptionalInt.of(config.path("rack_non_overlap_cost").asInt(1)),
                Map.of("min_cost", "min_traffic", "balanced_min_cost", "balance_subtopology").getOrDefault(strategy, strategy)
            );
        }
    }

    /** Answers what the brokers would say of changelog topics. */
    private static final class Described extends InternalTopicManager {
        private static final Admin NOBODY = (Admin) Proxy.newProxyInstance(
            Admin.class.getClassLoader(), new Class<?>[] {Admin.class}, (proxy, method, arguments) -> null);
        private static final StreamsConfig CONFIG = config();
        private final Map<String, List<TopicPartitionInfo>> topics = new HashMap<>();

        private Described(final Map<TopicPartition, List<Node>> replicas) {
            super(Time.SYSTEM, NOBODY, CONFIG);
            replicas.forEach((partition, theirs) -> topics.computeIfAbsent(partition.topic(), key -> new ArrayList<>())
                .add(new TopicPartitionInfo(partition.partition(), theirs.isEmpty() ? null : theirs.get(0), theirs, theirs)));
        }

        private static StreamsConfig config() {
            final Properties properties = new Properties();
            properties.put(StreamsConfig.APPLICATION_ID_CONFIG, "bench");
            properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "localhost:9092");
            return new StreamsConfig(properties);
        }

        @Override
        public Map<String, List<TopicPartitionInfo>> getTopicPartitionInfo(final Set<String> wanted) {
            final Map<String, List<TopicPartitionInfo>> found = new HashMap<>(topics);
            found.keySet().retainAll(wanted);
            return found;
        }
    }
}
