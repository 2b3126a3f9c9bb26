package org.apache.kafka.connect.runtime.distributed;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.function.Supplier;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.connect.runtime.distributed.WorkerCoordinator.ConnectorsAndTasks;
import org.apache.kafka.connect.storage.ClusterConfigState;
import org.apache.kafka.connect.util.ConnectorTaskId;

/**
 * Plays scripts of joins, leaves, configuration and time on the published IncrementalCooperativeAssignor.
 *
 * <p>One JSON object a line on stdin, {"maxDelay": ms, "steps": [...]}, one a line on stdout, {"rounds": [...]}. Steps, by "op": join, leave (w), conf
 * (c, n), del (c), sleep (ms), sleepdelay, claim (w, from: w says that it runs what the other runs, too); and the rounds: rebalance, fail (nobody gets
 * the assignment), mismatch (the leader has lost the last generation).
 */
public class ConnectDriver {
    static class Clock implements Time {
        long now = 1_000_000;
        public long milliseconds() { return now; }
        public long nanoseconds() { return now * 1_000_000; }
        public void sleep(long ms) { now += ms; }
        public void waitObject(Object o, Supplier<Boolean> done, long deadline) { }
    }

    static class Worker {
        LinkedHashSet<String> connectors = new LinkedHashSet<>();
        LinkedHashSet<ConnectorTaskId> tasks = new LinkedHashSet<>();
    }

    public static void main(String[] args) throws Exception {
        ObjectMapper json = new ObjectMapper();
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) out.println(json.writeValueAsString(play(json, json.readTree(line))));
    }

    static ObjectNode play(ObjectMapper json, JsonNode script) {
        Clock clock = new Clock();
        IncrementalCooperativeAssignor assignor = new IncrementalCooperativeAssignor(new LogContext(), clock, script.get("maxDelay").asInt());
        int generation = 1000;
        assignor.previousGenerationId = generation;
        TreeMap<String, Worker> workers = new TreeMap<>();
        TreeMap<String, Integer> connectors = new TreeMap<>();
        ObjectNode answer = json.createObjectNode();
        ArrayNode rounds = answer.putArray("rounds");
        for (JsonNode step : script.get("steps")) {
            String op = step.get("op").asText();
            String w = step.path("w").asText();
            switch (op) {
                case "join": workers.putIfAbsent(w, new Worker()); break;
                case "leave": workers.remove(w); break;
                case "conf": connectors.put(step.get("c").asText(), step.get("n").asInt()); break;
                case "del": connectors.remove(step.get("c").asText()); break;
                case "sleep": clock.now += step.get("ms").asLong(); break;
                case "sleepdelay": clock.now += assignor.delay; break;
                case "claim":
                    Worker from = workers.get(step.get("from").asText());
                    if (from != null && workers.containsKey(w)) {
                        workers.get(w).connectors.addAll(from.connectors);
                        workers.get(w).tasks.addAll(from.tasks);
                    }
                    break;
                default:
                    Map<String, ConnectorsAndTasks> reported = new HashMap<>();
                    workers.forEach((id, has) -> reported.put(id, new ConnectorsAndTasks.Builder()
                        .with(new ArrayList<>(has.connectors), new ArrayList<>(has.tasks)).build()));
                    Map<String, Map<String, String>> configs = new HashMap<>();
                    connectors.keySet().forEach(c -> configs.put(c, Map.of()));
                    ClusterConfigState state = new ClusterConfigState(16, null, new HashMap<>(connectors), configs, Map.of(), Map.of(), Map.of(),
                        Map.of(), Map.of(), Set.of(), Set.of());
                    int completed = op.equals("mismatch") ? generation - 2 : generation;
                    generation++;
                    IncrementalCooperativeAssignor.ClusterAssignment said = assignor.performTaskAssignment(state, completed, generation, reported);
                    ObjectNode round = rounds.addObject();
                    round.put("delay", assignor.delay);
                    round.put("scheduled", assignor.scheduledRebalance);
                    ObjectNode all = round.putObject("w");
                    for (String id : workers.keySet()) {
                        ObjectNode one = all.putObject(id);
                        said.newlyAssignedConnectors(id).forEach(one.putArray("ac")::add);
                        said.newlyAssignedTasks(id).forEach(t -> one.withArray("at").add(t.toString()));
                        one.withArray("at");
                        new TreeSet<>(said.newlyRevokedConnectors(id)).forEach(one.putArray("rc")::add);
                        one.putArray("rt");
                        new TreeSet<>(said.newlyRevokedTasks(id)).forEach(t -> one.withArray("rt").add(t.toString()));
                        if (!op.equals("fail")) {
                            Worker has = workers.get(id);
                            has.connectors.removeAll(said.newlyRevokedConnectors(id));
                            has.tasks.removeAll(said.newlyRevokedTasks(id));
                            has.connectors.addAll(said.newlyAssignedConnectors(id));
                            has.tasks.addAll(said.newlyAssignedTasks(id));
                        }
                    }
            }
        }
        return answer;
    }
}
