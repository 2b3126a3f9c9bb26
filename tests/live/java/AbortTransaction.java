import java.util.Collection;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.common.TopicPartition;

/** kafka-transactions.sh --bootstrap-server HOST:PORT abort --topic T --partition P --start-offset O */
public final class AbortTransaction {
    public static void main(String[] words) throws Exception {
        TopicPartition place = new TopicPartition(words[1], Integer.parseInt(words[2]));
        long start = Long.parseLong(words[3]);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", words[0]))) {
            Collection<ProducerState> producers =
                admin.describeProducers(List.of(place)).partitionResult(place).get().activeProducers();
            for (ProducerState each : producers) {
                if (each.currentTransactionStartOffset().orElse(-1) == start) {
                    admin.abortTransaction(new AbortTransactionSpec(
                        place, each.producerId(), (short) each.producerEpoch(), each.coordinatorEpoch().orElse(0))).all().get();
                }
            }
        }
    }
}
