import java.time.Instant;
import org.apache.kafka.tools.consumer.group.ConsumerGroupCommand;

/**
 * Prints what kafka-consumer-groups prints of all groups, again and again: the time, the offsets, and the members.
 * Arguments: bootstrap servers, and seconds between two looks.
 */
public class Describing {
    public static void main(String[] arguments) throws Exception {
        long everyMs = (long) (Double.parseDouble(arguments[1]) * 1000);
        while (true) {
            System.out.println(Instant.now());
            ConsumerGroupCommand.main(new String[] {"--bootstrap-server", arguments[0], "--all-groups", "--describe"});
            Thread.sleep(everyMs);
        }
    }
}
