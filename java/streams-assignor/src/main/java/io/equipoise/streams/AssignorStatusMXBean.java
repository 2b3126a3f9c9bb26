package io.equipoise.streams;

/** Who decided the rounds of this process, as JMX: {@code io.equipoise:type=streams-assignor,application=...}. */
public interface AssignorStatusMXBean {
    /** Rounds that equipoise decided. */
    long getRoundsAnswered();

    /** Rounds that the assignor of Kafka Streams decided, because there was no answer to use. */
    long getRoundsByFallback();

    /** Milliseconds from the question to the answer, of the last round that was answered. */
    long getLastAnswerMs();

    /** Why the last fallback was; empty: the last round was answered. */
    String getProblem();
}
