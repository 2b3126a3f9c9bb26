import java.io.BufferedReader;
import java.io.FileReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.StreamPartitioner;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.processor.api.RecordMetadata;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;

/**
 * A Kafka Streams application as plain as one can be: records counted per key, in a RocksDB store with a changelog.
 *
 * <p>{@code java CountPerKey FILE}: a properties file, in which {@code input}, {@code output} (topics) and {@code instance} (its name) are ours and
 * all else is Kafka Streams' own. With {@code beside}, a topic, it has tasks without state, too, that read it and do nothing. The store is {@code counts}: 8 bytes of count, and behind them whatever stood there before. For each record it
 * writes {@code "<partition> <offset> <instance> <count>"} to the output, to the partition that the record came from.
 * With {@code window.ms} and {@code keys} it counts by key and window, and says the count as if a window began with that of the one before.
 *
 * <p>A line on stdin ends it: {@code close} as KafkaStreams.close() does, {@code leave} with a request to leave the group. So does the end of stdin.
 * On stdout: its states, as {@code state RUNNING}.
 */
public class CountPerKey {
  private static final String STORE = "counts";

  public static void main(final String[] args) throws Exception {
    final Properties given = new Properties();
    try (FileReader file = new FileReader(args[0])) {
      given.load(file);
    }
    final String input = (String) given.remove("input");
    final String output = (String) given.remove("output");
    final String instance = (String) given.remove("instance");
    final StreamPartitioner<byte[], byte[]> whereItCameFrom =
        (topic, key, value, partitions) -> Optional.of(Set.of(Integer.parseInt(text(value).split(" ", 2)[0])));
    final String windowMs = (String) given.remove("window.ms");
    final String keys = (String) given.remove("keys");
    final String beside = (String) given.remove("beside");
    final Topology topology =
        windowMs == null
            ? perKey(input, output, instance, whereItCameFrom)
            : perWindow(input, output, instance, whereItCameFrom, Long.parseLong(windowMs), Long.parseLong(keys));
    if (beside != null) {
      final var bytes = Serdes.ByteArray();
      topology.addSource("beside", bytes.deserializer(), bytes.deserializer(), beside);
      topology.addProcessor("nothing", Nothing::new, "beside");
    }

    final KafkaStreams streams = new KafkaStreams(topology, given);
    streams.setStateListener((now, before) -> say("state " + now));
    streams.setUncaughtExceptionHandler(
        error -> {
          error.printStackTrace();
          return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.REPLACE_THREAD;
        });
    streams.start();
    final String asked = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8)).readLine();
    final var how =
        "leave".equals(asked) ? CloseOptions.GroupMembershipOperation.LEAVE_GROUP : CloseOptions.GroupMembershipOperation.REMAIN_IN_GROUP;
    streams.close(CloseOptions.groupMembershipOperation(how));
    say("closed");
    System.exit(0);
  }

  private static Topology perKey(
      final String input, final String output, final String instance, final StreamPartitioner<byte[], byte[]> whereItCameFrom) {
    final Topology topology = new Topology();
    final var bytes = Serdes.ByteArray();
    topology.addSource("in", bytes.deserializer(), bytes.deserializer(), input);
    topology.addProcessor("count", () -> new Count(instance), "in");
    topology.addStateStore(Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore(STORE), bytes, bytes), "count");
    topology.addSink("out", output, bytes.serializer(), bytes.serializer(), whereItCameFrom, "count");
    return topology;
  }

  /** The DSL's windows, behind each other, without grace. The time of a record is its offset. */
  private static Topology perWindow(
      final String input,
      final String output,
      final String instance,
      final StreamPartitioner<byte[], byte[]> whereItCameFrom,
      final long windowMs,
      final long keys) {
    final var bytes = Serdes.ByteArray();
    final StreamsBuilder builder = new StreamsBuilder();
    builder.stream(input, Consumed.with(bytes, bytes).withTimestampExtractor((record, before) -> record.offset()))
        .processValues(Place::new)
        .groupByKey(Grouped.with(bytes, bytes))
        .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofMillis(windowMs)))
        .aggregate(
            () -> new byte[Long.BYTES],
            (key, place, before) -> {
              final byte[] after = new byte[Long.BYTES + place.length];
              ByteBuffer.wrap(after).putLong(ByteBuffer.wrap(before).getLong() + 1).put(place);
              return after;
            },
            Materialized.<byte[], byte[], WindowStore<Bytes, byte[]>>as(STORE)
                .withKeySerde(bytes)
                .withValueSerde(bytes)
                .withCachingDisabled()
                .withRetention(Duration.ofMillis(windowMs)))
        .toStream()
        .map(
            (window, kept) -> {
              final long count = window.window().start() / keys + ByteBuffer.wrap(kept).getLong();
              final String place = text(Arrays.copyOfRange(kept, Long.BYTES, kept.length));
              return KeyValue.pair(window.key(), (place + " " + instance + " " + count).getBytes(StandardCharsets.US_ASCII));
            })
        .to(output, Produced.with(bytes, bytes, whereItCameFrom));
    return builder.build();
  }

  private static String text(final byte[] value) {
    return new String(value, StandardCharsets.US_ASCII);
  }

  private static synchronized void say(final String line) {
    System.out.println(line);
    System.out.flush();
  }

  private static final class Count implements Processor<byte[], byte[], byte[], byte[]> {
    private final String instance;
    private ProcessorContext<byte[], byte[]> context;
    private KeyValueStore<byte[], byte[]> store;

    Count(final String instance) {
      this.instance = instance;
    }

    @Override
    public void init(final ProcessorContext<byte[], byte[]> given) {
      context = given;
      store = given.getStateStore(STORE);
    }

    @Override
    public void process(final Record<byte[], byte[]> record) {
      final byte[] before = store.get(record.key());
      final byte[] after = before == null ? new byte[Long.BYTES] : Arrays.copyOf(before, before.length);
      final long count = ByteBuffer.wrap(after).getLong() + 1;
      ByteBuffer.wrap(after).putLong(count);
      store.put(record.key(), after);
      final RecordMetadata from = context.recordMetadata().orElseThrow();
      final String said = from.partition() + " " + from.offset() + " " + instance + " " + count;
      context.forward(record.withValue(said.getBytes(StandardCharsets.US_ASCII)));
    }
  }

  private static final class Nothing implements Processor<byte[], byte[], Void, Void> {
    @Override
    public void process(final Record<byte[], byte[]> record) {}
  }

  /** Its partition and offset in the place of a record's value. */
  private static final class Place implements FixedKeyProcessor<byte[], byte[], byte[]> {
    private FixedKeyProcessorContext<byte[], byte[]> context;

    @Override
    public void init(final FixedKeyProcessorContext<byte[], byte[]> given) {
      context = given;
    }

    @Override
    public void process(final FixedKeyRecord<byte[], byte[]> record) {
      final RecordMetadata from = context.recordMetadata().orElseThrow();
      context.forward(record.withValue((from.partition() + " " + from.offset()).getBytes(StandardCharsets.US_ASCII)));
    }
  }
}
