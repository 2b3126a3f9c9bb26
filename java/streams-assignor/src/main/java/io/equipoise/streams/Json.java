package io.equipoise.streams;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** JSON as maps, lists, strings, longs, doubles, booleans and null: what a round needs, no more. */
final class Json {
    private static final int MOST_DEPTH = 64;

    private final String text;
    private int at;

    private Json(final String text) {
        this.text = text;
    }

    /** Text that is not JSON. */
    static final class JsonException extends RuntimeException {
        private static final long serialVersionUID = 1L;

        JsonException(final String problem) {
            super(problem);
        }
    }

    static String write(final Object value) {
        final StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    private static void write(final Object value, final StringBuilder out) {
        if (value instanceof Map<?, ?> map) {
            char before = '{';
            for (final Map.Entry<?, ?> entry : map.entrySet()) {
                out.append(before);
                quote(entry.getKey().toString(), out);
                out.append(':');
                write(entry.getValue(), out);
                before = ',';
            }
            out.append(before == '{' ? "{}" : "}");
        } else if (value instanceof Iterable<?> items) {
            char before = '[';
            for (final Object item : items) {
                out.append(before);
                write(item, out);
                before = ',';
            }
            out.append(before == '[' ? "[]" : "]");
        } else if (value == null || value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else {
            quote(value.toString(), out);
        }
    }

    private static void quote(final String text, final StringBuilder out) {
        out.append('"');
        for (int index = 0; index < text.length(); index++) {
            final char letter = text.charAt(index);
            if (letter == '"' || letter == '\\') {
                out.append('\\').append(letter);
            } else if (letter < ' ') {
                out.append(String.format("\\u%04x", (int) letter));
            } else {
                out.append(letter);
            }
        }
        out.append('"');
    }

    static Object read(final String text) {
        final Json json = new Json(text);
        final Object value = json.value(0);
        json.skip();
        if (json.at != text.length()) {
            throw json.wrong("more behind the value");
        }
        return value;
    }

    private JsonException wrong(final String problem) {
        return new JsonException(problem + " at character " + at);
    }

    private void skip() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private char next() {
        if (at >= text.length()) {
            throw wrong("unexpected end");
        }
        return text.charAt(at++);
    }

    private boolean takes(final char wanted) {
        skip();
        if (at < text.length() && text.charAt(at) == wanted) {
            at++;
            return true;
        }
        return false;
    }

    private void expect(final char wanted) {
        if (!takes(wanted)) {
            throw wrong("no '" + wanted + "'");
        }
    }

    private Object value(final int depth) {
        if (depth > MOST_DEPTH) {
            throw wrong("nested too deep");
        }
        skip();
        final char first = next();
        switch (first) {
            case '{':
                return object(depth);
            case '[':
                return array(depth);
            case '"':
                return string();
            case 't':
                return word("true", Boolean.TRUE);
            case 'f':
                return word("false", Boolean.FALSE);
            case 'n':
                return word("null", null);
            default:
                at--;
                return number();
        }
    }

    private Map<String, Object> object(final int depth) {
        final Map<String, Object> map = new LinkedHashMap<>();
        if (takes('}')) {
            return map;
        }
        do {
            expect('"');
            final String key = string();
            expect(':');
            map.put(key, value(depth + 1));
        } while (takes(','));
        expect('}');
        return map;
    }

    private List<Object> array(final int depth) {
        final List<Object> list = new ArrayList<>();
        if (takes(']')) {
            return list;
        }
        do {
            list.add(value(depth + 1));
        } while (takes(','));
        expect(']');
        return list;
    }

    private Object word(final String wanted, final Object meaning) {
        if (!text.startsWith(wanted, at - 1)) {
            throw wrong("no JSON value");
        }
        at += wanted.length() - 1;
        return meaning;
    }

    private Object number() {
        final int from = at;
        while (at < text.length() && "+-.0123456789eE".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        final String digits = text.substring(from, at);
        try {
            return digits.matches("-?\\d+") ? (Object) Long.valueOf(digits) : (Object) Double.valueOf(digits);
        } catch (final NumberFormatException error) {
            throw wrong("no number");
        }
    }

    private String string() {
        final StringBuilder out = new StringBuilder();
        while (true) {
            final char letter = next();
            if (letter == '"') {
                return out.toString();
            }
            if (letter < ' ') {
                throw wrong("a control character in a text");
            }
            out.append(letter == '\\' ? escaped() : letter);
        }
    }

    private char escaped() {
        final char code = next();
        switch (code) {
            case 'n':
                return '\n';
            case 't':
                return '\t';
            case 'r':
                return '\r';
            case 'b':
                return '\b';
            case 'f':
                return '\f';
            case '"':
            case '\\':
            case '/':
                return code;
            case 'u':
                try {
                    at += 4;
                    return (char) Integer.parseInt(text.substring(at - 4, at), 16);
                } catch (final IndexOutOfBoundsException | NumberFormatException error) {
                    throw wrong("no \\u escape");
                }
            default:
                throw wrong("no escape");
        }
    }
}
