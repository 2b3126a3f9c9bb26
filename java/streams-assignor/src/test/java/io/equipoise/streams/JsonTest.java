package io.equipoise.streams;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class JsonTest {
    @Test
    void writtenValuesAreReadAgain() {
        final Map<String, Object> value = new LinkedHashMap<>();
        value.put("text \"\\\n\u0001é", List.of(1L, -2L, true, false, 2.5));
        value.put("nothing", null);
        value.put("empty", Arrays.asList(Map.of(), List.of()));
        assertEquals(value, Json.read(Json.write(value)));
    }

    @Test
    void escapesAndSpacesAreRead() {
        assertEquals(Map.of("a", List.of("é/\t")), Json.read(" { \"a\" : [ \"\\u00e9\\/\\t\" ] } "));
    }

    @Test
    void textThatIsNotJsonIsRefused() {
        for (final String text : List.of("", "{", "[1,]", "{\"a\" 1}", "tru", "\"", "\"\\u12\"", "\"\\x\"", "1 2", "--1", "[".repeat(100), "<html>")) {
            assertThrows(Json.JsonException.class, () -> Json.read(text), text);
        }
    }
}
