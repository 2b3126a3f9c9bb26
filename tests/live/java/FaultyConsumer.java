import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a consumer group, with settings NAME=VALUE, which does not poll for so long after a line "nap SECONDS" on its
 * standard input. SIGTERM: it leaves the group.
 */
public class FaultyConsumer {
    private static volatile double nap = 0;

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
            consumer.subscribe(List.of(arguments[0]));
            while (true) {
                if (nap > 0) {
                    long forMs = (long) (nap * 1000);
                    nap = 0;
                    Thread.sleep(forMs);
                }
                consumer.poll(Duration.ofMillis(100));
            }
        } catch (WakeupException ended) {
            System.out.flush();
        }
    }

    private static void listen() {
        try {
            BufferedReader reader = new BufferedReader(new InputStreamReader(System.in));
            for (String line = reader.readLine(); line != null; line = reader.readLine()) {
                nap = Double.parseDouble(line.split(" ")[1]);
            }
        } catch (IOException ended) {
            nap = 0;
        }
    }
}
