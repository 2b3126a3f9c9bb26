import java.io.BufferedReader;
import java.io.FileReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.StreamPartitioner;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.processor.api.RecordMetadata;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * A Kafka Streams application as plain as one can be: records counted per key, in a RocksDB store with a changelog.
 *
 * <p>{@code java CountPerKey FILE}: a properties file, in which {@code input}, {@code output} (topics) and {@code instance} (its name) are ours and
 * all else is Kafka Streams' own. The store is {@code counts}: 8 bytes of count, and behind them whatever stood there before. For each record it
 * writes {@code "<partition> <offset> <instance> <count>"} to the output, to the partition that the record came from.
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
    final Topology topology = new Topology();
    final var bytes = Serdes.ByteArray();
    topology.addSource("in", bytes.deserializer(), bytes.deserializer(), input);
    topology.addProcessor("count", () -> new Count(instance), "in");
    topology.addStateStore(Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore(STORE), bytes, bytes), "count");
    topology.addSink("out", output, bytes.serializer(), bytes.serializer(), whereItCameFrom, "count");

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
}
