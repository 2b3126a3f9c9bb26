package io.equipoise.broker;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.*;

/**
 * What equipoise wants changed against "everybody keeps what he has", as one line of text (equipoise/lead/broker_seat/broker_plan.py has the grammar).
 *
 * <pre>equipoise/1;12;h;0123456789abcdef;3:0=1-4_7;-:0=5;+3:1=0;~2:1=0</pre>
 *
 * @param holds what nobody has stays with nobody, whoever the members are
 * @param madeFor hash of the members and topics that it was made for
 * @param entries kind, member, topic, first and last partition of each
 */
record Plan(long number, boolean holds, String madeFor, List<int[]> entries) {
    /** Begins every plan of every version, and the rack id of each member that carries one. */
    static final String MARK = "equipoise/";
    static final int MOVE = 0, HOLD = 1, COPY = 2, DROP = 3;
    /** Of the kinds from HOLD on. */
    private static final String SIGNS = "-+~";
    /** Partitions that one plan may name: a forged one must not take long. */
    static final int MOST_NAMED = 200_000;

    /** Returns the plan with the highest number, the first of equals; null: none of the texts is a plan. */
    static Plan newest(final Iterable<String> texts) {
        Plan newest = null;
        for (final String text : texts) {
            final Plan plan = read(text);
            newest = plan == null || newest != null && plan.number <= newest.number ? newest : plan;
        }
        return newest;
    }

    /** Returns the plan; null: the text is none of this version. */
    static Plan read(final String text) {
        final String[] fields = text == null || !text.startsWith(MARK + "1;") ? new String[0] : text.split(";", -1);
        if (fields.length < 4) {
            return null;
        }
        final long number = digits(fields[1], 18);
        final String flags = fields[2];
        if (number < 0 || !(flags.equals("-") || flags.equals("h") || flags.equals("r") || flags.equals("hr")) || !fields[3].matches("[0-9a-f]{16}")) {
            return null;
        }
        final List<int[]> entries = new ArrayList<>();
        long named = 0;
        for (int index = 4; index < fields.length; index++) {
            named += readEntry(fields[index], entries);
            if (named < 0 || named > MOST_NAMED) {
                return null;
            }
        }
        return new Plan(number, flags.startsWith("h"), fields[3], entries);
    }

    /** Adds the entry's ranges. Returns how many partitions they have; a very low number: it is no entry. */
    private static long readEntry(final String text, final List<int[]> entries) {
        final int colon = text.indexOf(':'), equals = text.indexOf('=', colon + 1);
        if (colon < 1 || equals < 0) {
            return Integer.MIN_VALUE;
        }
        final int kind = SIGNS.indexOf(text.charAt(0)) + 1;
        final String who = text.substring(kind == MOVE ? 0 : 1, colon);
        final long member = kind == HOLD ? (who.isEmpty() ? 0 : -1) : digits(who, 9), topic = digits(text.substring(colon + 1, equals), 9);
        if (member < 0 || topic < 0) {
            return Integer.MIN_VALUE;
        }
        long named = 0;
        for (final String range : text.substring(equals + 1).split("_", -1)) {
            final int dash = range.indexOf('-');
            final long first = digits(dash < 0 ? range : range.substring(0, dash), 9), last = dash < 0 ? first : digits(range.substring(dash + 1), 9);
            if (first < 0 || last < first || dash >= 0 && last == first) {
                return Integer.MIN_VALUE;
            }
            named += last - first + 1;
            entries.add(new int[] {kind, (int) member, (int) topic, (int) first, (int) last});
        }
        return named;
    }

    /** Returns a number of at most so many digits, without zeros before it; -1: the text is none. */
    private static long digits(final String text, final int most) {
        long number = text.isEmpty() || text.length() > most || text.length() > 1 && text.charAt(0) == '0' ? -1 : 0;
        for (int at = 0; at < text.length() && number >= 0; at++) {
            final char each = text.charAt(at);
            number = each >= '0' && each <= '9' ? 10 * number + each - '0' : -1;
        }
        return number;
    }

    /** Returns the hash of members and topics, both sorted: the first eight bytes of SHA-256 over each text after its length, as hex. */
    static String hash(final String[] members, final int count, final List<String> topics) {
        try {
            final MessageDigest digest = MessageDigest.getInstance("SHA-256");
            add(digest, Arrays.asList(members).subList(0, count));
            add(digest, topics);
            return HexFormat.of().formatHex(digest.digest(), 0, 8);
        } catch (final NoSuchAlgorithmException error) {
            return ""; // every Java has it; no plan fits then
        }
    }

    private static void add(final MessageDigest digest, final List<String> texts) {
        digest.update((texts.size() + ";").getBytes(StandardCharsets.UTF_8));
        for (final String text : texts) {
            final byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
            digest.update((bytes.length + ":").getBytes(StandardCharsets.UTF_8));
            digest.update(bytes);
        }
    }
}
