package io.equipoise.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.junit.jupiter.api.Test;

class EquipoiseConsumerAssignorTest {
    private static List<String> vectors(final String name) throws IOException {
        final Path path = Path.of("..", "..", "tests", "data", name);
        assumeTrue(Files.exists(path.getParent()), "not in a clone of the repository, which has the vectors");
        return Files.readAllLines(path);
    }

    @Test
    @SuppressWarnings("unchecked")
    void answersEveryVectorAsPythonDoes() throws Exception {
        final List<String> lines = vectors("broker_plans.jsonl");
        for (final String line : lines) {
            final Cases.Group group = new Cases.Group((Map<String, Object>) Cases.read(line));
            assertEquals(group.expected, Cases.answer(group), line);
        }
        assertTrue(lines.size() > 20);
    }

    @Test
    @SuppressWarnings("unchecked")
    void answersEveryVectorOfTasksAsPythonDoes() throws Exception {
        final List<String> lines = vectors("broker_tasks.jsonl");
        for (final String line : lines) {
            final TaskCases group = new TaskCases((Map<String, Object>) Cases.read(line));
            assertEquals(group.expected, group.answer(), line);
        }
        assertTrue(lines.size() > 8);
        assertEquals(Map.of(), new EquipoiseStreamsAssignor().assign(null, null).members());
    }

    @Test
    @SuppressWarnings("unchecked")
    void keepsEverythingWhereTheBrokerAnswersNothing() {
        final Cases.Group group = new Cases.Group((Map<String, Object>) Cases.read(
            "{\"topics\":[{\"id\":\"00000000000000000000000000000001\",\"partitions\":1,\"racks\":[]}],"
                + "\"members\":[{\"id\":\"a\",\"rack\":\"\",\"topics\":[0],\"held\":[[0,[0]]]}],\"answer\":\"\"}"));
        final var answer = new EquipoiseConsumerAssignor().assign(group, null);
        assertEquals(Map.of(new Uuid(0, 1), java.util.Set.of(0)), answer.members().get("a").partitions());
        assertEquals(Map.of(), new EquipoiseConsumerAssignor().assign(null, null).members());
    }
}
