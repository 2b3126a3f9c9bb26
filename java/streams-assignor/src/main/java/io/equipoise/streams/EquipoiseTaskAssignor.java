package io.equipoise.streams;

import java.lang.management.ManagementFactory;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import javax.management.JMException;
import javax.management.MBeanServer;
import javax.management.ObjectName;
import javax.management.StandardMBean;
import org.apache.kafka.streams.processor.assignment.ApplicationState;
import org.apache.kafka.streams.processor.assignment.KafkaStreamsAssignment;
import org.apache.kafka.streams.processor.assignment.TaskAssignor;
import org.apache.kafka.streams.processor.assignment.assignors.StickyTaskAssignor;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Asks an equipoise worker who runs what (KIP-924). Two settings of the application make it so:
 *
 * <pre>
 * task.assignor.class=io.equipoise.streams.EquipoiseTaskAssignor
 * equipoise.url=http://127.0.0.1:8090
 * </pre>
 *
 * <p>{@code equipoise.url} may name several workers, with commas. {@code equipoise.token} is the
 * worker's {@code http_token}. {@code equipoise.timeout.ms} (3000) is the longest wait for an answer,
 * for all workers together. Without an answer in time that can be used, Kafka Streams' own
 * StickyTaskAssignor decides: every task stays where it runs, and what nobody runs goes to a standby
 * or to the process with the most room. {@code equipoise.retry.ms} (30000) later equipoise is asked
 * again.
 */
public final class EquipoiseTaskAssignor implements TaskAssignor {
    public static final String URL = "equipoise.url";
    public static final String TOKEN = "equipoise.token";
    public static final String TIMEOUT_MS = "equipoise.timeout.ms";
    public static final String RETRY_MS = "equipoise.retry.ms";

    private static final Logger LOG = LoggerFactory.getLogger(EquipoiseTaskAssignor.class);
    private static final int MOST_ANSWER_BYTES = 16_000_000;
    private static final HttpClient CLIENT = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private static final Map<String, Status> STATUS = new ConcurrentHashMap<>();

    private List<String> urls = List.of();
    private String token = "";
    private String application = "";
    private long timeoutMs = 3_000;
    private long retryMs = 30_000;
    private Status status = new Status();

    @Override
    public void configure(final Map<String, ?> configs) {
        urls = new ArrayList<>();
        for (final String url : text(configs, URL, "").split(",")) {
            if (!url.isBlank()) {
                urls.add(url.strip().replaceAll("/+$", ""));
            }
        }
        if (urls.isEmpty()) {
            throw new IllegalArgumentException(URL + " is not set; name a worker of equipoise, as http://127.0.0.1:8090");
        }
        token = text(configs, TOKEN, "");
        timeoutMs = number(configs, TIMEOUT_MS, timeoutMs);
        retryMs = number(configs, RETRY_MS, retryMs);
        application = text(configs, "application.id", text(configs, "group.id", ""));
        if (application.isEmpty()) {
            throw new IllegalArgumentException("application.id is not among the settings");
        }
        status = STATUS.computeIfAbsent(application, Status::registered);
    }

    private static String text(final Map<String, ?> configs, final String name, final String otherwise) {
        final Object value = configs.get(name);
        return value == null ? otherwise : value.toString();
    }

    private static long number(final Map<String, ?> configs, final String name, final long otherwise) {
        final String value = text(configs, name, Long.toString(otherwise));
        try {
            final long parsed = Long.parseLong(value.strip());
            if (parsed > 0) {
                return parsed;
            }
        } catch (final NumberFormatException error) {
            // said below
        }
        throw new IllegalArgumentException(name + " is " + value + "; it must be a whole number of milliseconds above 0");
    }

    @Override
    public TaskAssignment assign(final ApplicationState application) {
        final long beganNs = System.nanoTime();
        String problem;
        try {
            final String round = UUID.randomUUID().toString();
            final String answer = ask(Json.write(Question.of(application, round)), beganNs);
            final TaskAssignment assignment = Answer.of(Json.read(answer), application, round, Instant.now());
            status.answered(passedMs(beganNs));
            LOG.info("equipoise decided the round in {} ms", passedMs(beganNs));
            return assignment;
        } catch (final InterruptedException error) {
            Thread.currentThread().interrupt();
            problem = "interrupted";
        } catch (final Exception error) { // whatever it is, the application goes on
            problem = error instanceof Answer.WrongAnswerException || error instanceof RefusedException
                ? error.getMessage()
                : error.getClass().getSimpleName() + ": " + error.getMessage();
        }
        status.fellBack(problem);
        LOG.warn("equipoise did not decide this round, so every task stays where it runs; asked again in {} ms: {}", retryMs, problem);
        return otherwise(application);
    }

    /** What Kafka Streams decides by itself, with a follow-up in which equipoise is asked again. */
    private TaskAssignment otherwise(final ApplicationState application) {
        final List<KafkaStreamsAssignment> assignments = new ArrayList<>();
        for (final KafkaStreamsAssignment each : new StickyTaskAssignor(true).assign(application).assignment()) {
            final KafkaStreamsAssignment plain = KafkaStreamsAssignment.of(each.processId(), new java.util.HashSet<>(each.tasks().values()));
            assignments.add(assignments.isEmpty() ? plain.withFollowupRebalance(Instant.now().plusMillis(retryMs)) : plain);
        }
        return new TaskAssignment(assignments);
    }

    private static long passedMs(final long beganNs) {
        return TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - beganNs);
    }

    /** A worker said that it does not answer this question. */
    private static final class RefusedException extends Exception {
        private static final long serialVersionUID = 1L;

        RefusedException(final String problem) {
            super(problem);
        }
    }

    private String ask(final String question, final long beganNs) throws Exception {
        Exception last = new RefusedException("no worker was asked");
        for (final String url : urls) {
            final long leftMs = timeoutMs - passedMs(beganNs);
            if (leftMs <= 0) {
                break;
            }
            try {
                return askOne(url, question, leftMs);
            } catch (final InterruptedException error) {
                throw error;
            } catch (final Exception error) {
                last = error;
            }
        }
        throw last;
    }

    private String askOne(final String url, final String question, final long leftMs) throws Exception {
        final String group = URLEncoder.encode(application, StandardCharsets.UTF_8).replace("+", "%20");
        final HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url + "/v1/groups/" + group + "/rounds"))
            .timeout(Duration.ofMillis(leftMs))
            .header("Content-Type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString(question));
        if (!token.isEmpty()) {
            request.header("Authorization", "Bearer " + token);
        }
        // The request's own timeout ends with the first byte of the answer; this one with the last.
        final HttpResponse<byte[]> response;
        try {
            response = CLIENT.sendAsync(request.build(), HttpResponse.BodyHandlers.ofByteArray()).get(leftMs, TimeUnit.MILLISECONDS);
        } catch (final TimeoutException error) {
            throw new RefusedException(url + " did not answer within " + leftMs + " ms");
        } catch (final java.util.concurrent.ExecutionException error) {
            throw new RefusedException(url + ": " + error.getCause());
        }
        final byte[] body = response.body();
        if (response.statusCode() != 200) {
            final String said = new String(body, 0, Math.min(body.length, 500), StandardCharsets.UTF_8);
            throw new RefusedException(url + " answered " + response.statusCode() + ": " + said);
        }
        if (body.length > MOST_ANSWER_BYTES) {
            throw new RefusedException(url + " answered " + body.length + " bytes");
        }
        return new String(body, StandardCharsets.UTF_8);
    }

    /** Counts the rounds of one application in this process. */
    static final class Status implements AssignorStatusMXBean {
        private long answered;
        private long fallbacks;
        private long lastMs;
        private String problem = "";

        static Status registered(final String application) {
            final Status status = new Status();
            try {
                final MBeanServer server = ManagementFactory.getPlatformMBeanServer();
                final ObjectName name = new ObjectName("io.equipoise:type=streams-assignor,application=" + ObjectName.quote(application));
                if (!server.isRegistered(name)) {
                    server.registerMBean(new StandardMBean(status, AssignorStatusMXBean.class, true), name);
                }
            } catch (final JMException error) {
                LOG.warn("no metrics over JMX: {}", error.toString());
            }
            return status;
        }

        synchronized void answered(final long ms) {
            answered++;
            lastMs = ms;
            problem = "";
        }

        synchronized void fellBack(final String why) {
            fallbacks++;
            problem = why;
        }

        @Override
        public synchronized long getRoundsAnswered() {
            return answered;
        }

        @Override
        public synchronized long getRoundsByFallback() {
            return fallbacks;
        }

        @Override
        public synchronized long getLastAnswerMs() {
            return lastMs;
        }

        @Override
        public synchronized String getProblem() {
            return problem;
        }
    }
}
