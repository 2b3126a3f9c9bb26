import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a consumer group, with settings NAME=VALUE: prints "assigned P..." at each change, and "read P OFFSET" for each
 * record. SIGTERM: it leaves the group.
 */
public class PrintingConsumer {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        for (int index = 1; index < arguments.length; index++) {
            String[] setting = arguments[index].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        Thread main = Thread.currentThread();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            Runtime.getRuntime().addShutdownHook(new Thread(() -> {
                consumer.wakeup();
                try {
                    main.join();
                } catch (InterruptedException ended) {
                    main.interrupt();
                }
            }));
            consumer.subscribe(List.of(arguments[0]));
            Set<Integer> before = Set.of();
            while (true) {
                consumer.poll(Duration.ofMillis(100)).forEach(record -> System.out.println("read " + record.partition() + " " + record.offset()));
                Set<Integer> assigned = consumer.assignment().stream().map(TopicPartition::partition).collect(Collectors.toCollection(TreeSet::new));
                if (!assigned.equals(before)) {
                    System.out.println("assigned " + assigned.stream().map(String::valueOf).collect(Collectors.joining(" ")));
                    before = assigned;
                }
                System.out.flush();
            }
        } catch (WakeupException ended) {
            System.out.flush();
        }
    }
}
