import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.io.FileReader;
import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;

/** examples/pageviews.py in the DSL of Kafka Streams. {@code java PageViews SETTINGS.properties}. */
public class PageViews {
  static final ObjectMapper MAPPER = new ObjectMapper();
  static final Serde<String> TEXT = Serdes.String();
  static final Serde<JsonNode> JSON = Serdes.serdeFrom((topic, value) -> bytes(value), (topic, data) -> tree(data));

  public static void main(final String[] args) throws Exception {
    final Properties settings = new Properties();
    settings.load(new FileReader(args[0]));
    final String outputs = settings.getProperty("application.id");
    final StreamsBuilder builder = new StreamsBuilder();
    final var users = builder.table("users", Consumed.with(TEXT, JSON));
    final var clicks = builder.stream("clicks", Consumed.with(TEXT, JSON));
    clicks
        .groupByKey(Grouped.with(TEXT, JSON))
        .windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofSeconds(30), Duration.ofSeconds(5)))
        .aggregate(
            () -> (JsonNode) MAPPER.createArrayNode(),
            (user, click, pages) -> last(pages, MAPPER.createArrayNode().add(click.get("page"))),
            (user, one, other) -> last(one, other),
            Materialized.with(TEXT, JSON))
        .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
        .toStream()
        .map((visit, pages) -> KeyValue.pair(visit.key(), session(visit.window().start(), visit.window().end(), pages)))
        .to(outputs + "-sessions", Produced.with(TEXT, JSON));
    clicks
        .leftJoin(users, (click, user) -> user == null ? "??" : user.get("country").asText())
        .groupBy((user, country) -> country, Grouped.with(TEXT, TEXT))
        .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMinutes(1), Duration.ofDays(1)))
        .count()
        .toStream()
        .map((minute, views) -> KeyValue.pair(minute.key(), count(minute.window().start(), views)))
        .to(outputs + "-counts", Produced.with(TEXT, JSON));
    final KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
    streams.start();
  }

  static JsonNode last(final JsonNode one, final JsonNode other) {
    final ArrayNode pages = ((ArrayNode) one.deepCopy()).addAll((ArrayNode) other);
    while (pages.size() > 5) pages.remove(0);
    return pages;
  }

  static JsonNode session(final long start, final long end, final JsonNode pages) {
    return MAPPER.createObjectNode().put("start", start).put("end", end).set("pages", pages);
  }

  static JsonNode count(final long minute, final long views) {
    return MAPPER.createObjectNode().put("minute", minute).put("views", views);
  }

  static byte[] bytes(final JsonNode value) {
    try {
      return value == null ? null : MAPPER.writeValueAsBytes(value);
    } catch (final Exception error) {
      throw new IllegalArgumentException(error);
    }
  }

  static JsonNode tree(final byte[] data) {
    try {
      return data == null ? null : MAPPER.readTree(data);
    } catch (final Exception error) {
      throw new IllegalArgumentException(error);
    }
  }
}
