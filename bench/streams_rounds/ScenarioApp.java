import java.io.BufferedReader;
import java.io.FileReader;
import java.io.FileWriter;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.LongAdder;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.StandbyUpdateListener;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * The application of the recorded scenarios (replay/data/README.md): 12 tasks with a store, 8 with a store behind a repartition topic, and 6 without
 * state.
 *
 * <p>{@code java ScenarioApp FILE}: a properties file; {@code prefix} (of the topics), {@code instance} and {@code samples} (a file) are ours. Every
 * 100 ms a line for each task that handled a record since: {@code <ms of the first> <ms of the last> <task> <instance> <largest gap>}, and for
 * each store that a task restored before it ran {@code <ms of the begin> <ms of the end> <changelog> <instance> <records> restored}, for copies
 * {@code <ms> <ms> - <instance> <records> copied}. A line on stdin ends it: {@code close} or {@code leave}.
 */
public class ScenarioApp {
  private static final ConcurrentHashMap<TaskId, long[]> SEEN = new ConcurrentHashMap<>();
  private static final LongAdder COPIED = new LongAdder();

  public static void main(final String[] args) throws Exception {
    final Properties given = new Properties();
    try (FileReader file = new FileReader(args[0])) {
      given.load(file);
    }
    final String prefix = (String) given.remove("prefix");
    final String instance = (String) given.remove("instance");
    final PrintWriter samples = new PrintWriter(new FileWriter((String) given.remove("samples"), true), false);
    final var bytes = Serdes.ByteArray();
    final Topology topology = new Topology();
    topology.addSource("orders", bytes.deserializer(), bytes.deserializer(), prefix + "-orders");
    topology.addProcessor("store-order", () -> new Store("orders-store", true), "orders");
    topology.addStateStore(Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("orders-store"), bytes, bytes), "store-order");
    topology.addSink("by-customer", prefix + "-by-customer", bytes.serializer(), bytes.serializer(), "store-order");
    topology.addSource("customers", bytes.deserializer(), bytes.deserializer(), prefix + "-by-customer");
    topology.addProcessor("store-customer", () -> new Store("customer-store", false), "customers");
    topology.addStateStore(Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("customer-store"), bytes, bytes), "store-customer");
    topology.addSource("clicks", bytes.deserializer(), bytes.deserializer(), prefix + "-clicks");
    topology.addProcessor("pass", Pass::new, "clicks");
    topology.addSink("clicks-out", prefix + "-clicks-out", bytes.serializer(), bytes.serializer(), "pass");

    final KafkaStreams streams = new KafkaStreams(topology, given);
    streams.setStateListener((now, before) -> say("state " + now));
    streams.setGlobalStateRestoreListener(new Restores(samples, instance));
    streams.setStandbyUpdateListener(new Copies());
    final Thread writer = new Thread(() -> write(samples, instance));
    writer.setDaemon(true);
    writer.start();
    streams.start();
    final String asked = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8)).readLine();
    final var how =
        "leave".equals(asked) ? CloseOptions.GroupMembershipOperation.LEAVE_GROUP : CloseOptions.GroupMembershipOperation.REMAIN_IN_GROUP;
    streams.close(CloseOptions.groupMembershipOperation(how));
    flush(samples, instance);
    say("closed");
    System.exit(0);
  }

  private static synchronized void say(final String line) {
    System.out.println(System.currentTimeMillis() + " " + line);
    System.out.flush();
  }

  private static void handled(final TaskId task) {
    final long now = System.currentTimeMillis();
    SEEN.compute(task, (key, was) -> {
      if (was == null) {
        return new long[] {now, now, 0};
      }
      was[2] = Math.max(was[2], now - was[1]);
      was[1] = now;
      return was;
    });
  }

  private static void write(final PrintWriter samples, final String instance) {
    try {
      while (true) {
        Thread.sleep(100);
        flush(samples, instance);
      }
    } catch (final InterruptedException end) {
      Thread.currentThread().interrupt();
    }
  }

  private static synchronized void flush(final PrintWriter samples, final String instance) {
    for (final TaskId task : new TreeMap<>(SEEN).keySet()) {
      final long[] was = SEEN.remove(task);
      samples.println(was[0] + " " + was[1] + " " + task + " " + instance + " " + was[2]);
    }
    final long copied = COPIED.sumThenReset();
    if (copied > 0) {
      final long now = System.currentTimeMillis();
      samples.println(now + " " + now + " - " + instance + " " + copied + " copied");
    }
    samples.flush();
  }

  private static final class Restores implements StateRestoreListener {
    private final PrintWriter samples;
    private final String instance;
    private final ConcurrentHashMap<TopicPartition, Long> begun = new ConcurrentHashMap<>();

    Restores(final PrintWriter samples, final String instance) {
      this.samples = samples;
      this.instance = instance;
    }

    @Override
    public void onRestoreStart(final TopicPartition changelog, final String store, final long from, final long to) {
      begun.put(changelog, System.currentTimeMillis());
    }

    @Override
    public void onBatchRestored(final TopicPartition changelog, final String store, final long end, final long count) {
    }

    @Override
    public void onRestoreEnd(final TopicPartition changelog, final String store, final long count) {
      final long now = System.currentTimeMillis();
      final Long since = begun.remove(changelog);
      samples.println((since == null ? now : since) + " " + now + " " + changelog + " " + instance + " " + count + " restored");
    }

    @Override
    public void onRestoreSuspended(final TopicPartition changelog, final String store, final long count) {
      onRestoreEnd(changelog, store, count);
    }
  }

  private static final class Copies implements StandbyUpdateListener {
    @Override
    public void onUpdateStart(final TopicPartition changelog, final String store, final long from) {
    }

    @Override
    public void onBatchLoaded(
        final TopicPartition changelog, final String store, final TaskId task, final long until, final long count, final long end) {
      COPIED.add(count);
    }

    @Override
    public void onUpdateSuspended(
        final TopicPartition changelog, final String store, final long until, final long end, final StandbyUpdateListener.SuspendReason why) {
    }
  }

  private static final class Store implements Processor<byte[], byte[], byte[], byte[]> {
    private final String name;
    private final boolean forwards;
    private ProcessorContext<byte[], byte[]> context;
    private KeyValueStore<byte[], byte[]> store;

    Store(final String name, final boolean forwards) {
      this.name = name;
      this.forwards = forwards;
    }

    @Override
    public void init(final ProcessorContext<byte[], byte[]> given) {
      context = given;
      store = given.getStateStore(name);
    }

    @Override
    public void process(final Record<byte[], byte[]> record) {
      handled(context.taskId());
      store.put(record.key(), record.value());
      if (forwards) {
        final String key = new String(record.key(), StandardCharsets.US_ASCII);
        context.forward(record.withKey(("c" + Math.floorMod(key.hashCode(), 60_000)).getBytes(StandardCharsets.US_ASCII)));
      }
    }
  }

  private static final class Pass implements Processor<byte[], byte[], byte[], byte[]> {
    private ProcessorContext<byte[], byte[]> context;

    @Override
    public void init(final ProcessorContext<byte[], byte[]> given) {
      context = given;
    }

    @Override
    public void process(final Record<byte[], byte[]> record) {
      handled(context.taskId());
      context.forward(record);
    }
  }
}
