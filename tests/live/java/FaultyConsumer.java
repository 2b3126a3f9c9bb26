import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a consumer group, with settings NAME=VALUE, which does not poll for so long after a line "nap SECONDS" on its
 * standard input, takes so long to give up its partitions the next time after "revoke SECONDS", and joins again after
 * "rejoin 0". SIGTERM: it leaves the group.
 */
public class FaultyConsumer {
    private static volatile double nap = 0;
    private static volatile double revoke = 0;
    private static volatile boolean rejoin = false;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        for (int index = 1; index < arguments.length; index++) {
            String[] setting = arguments[index].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        Thread main = Thread.currentThread();
        Thread listening = new Thread(FaultyConsumer::listen);
        listening.setDaemon(true);
        listening.start();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            Runtime.getRuntime().addShutdownHook(new Thread(() -> {
                consumer.wakeup();
                try {
                    main.join();
                } catch (InterruptedException ended) {
                    main.interrupt();
                }
            }));
            consumer.subscribe(List.of(arguments[0]), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
                    long forMs = (long) (revoke * 1000);
                    revoke = 0;
                    sleep(forMs);
                }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
                    // nothing is to be done for them
                }
            });
            while (true) {
                if (nap > 0) {
                    long forMs = (long) (nap * 1000);
                    nap = 0;
                    Thread.sleep(forMs);
                }
                if (rejoin) {
                    rejoin = false;
                    consumer.enforceRebalance("asked on standard input");
                }
                consumer.poll(Duration.ofMillis(100));
            }
        } catch (WakeupException ended) {
            System.out.flush();
        }
    }

    private static void sleep(long forMs) {
        try {
            Thread.sleep(forMs);
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    private static void listen() {
        try {
            BufferedReader reader = new BufferedReader(new InputStreamReader(System.in));
            for (String line = reader.readLine(); line != null; line = reader.readLine()) {
                double seconds = Double.parseDouble(line.split(" ")[1]);
                switch (line.split(" ")[0]) {
                    case "revoke" -> revoke = seconds;
                    case "rejoin" -> rejoin = true;
                    default -> nap = seconds;
                }
            }
        } catch (IOException ended) {
            nap = 0;
        }
    }
}
