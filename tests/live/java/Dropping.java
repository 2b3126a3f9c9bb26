import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.sink.SinkConnector;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.sink.SinkTask;

/** A sink for Kafka Connect that keeps nothing. */
public class Dropping extends SinkConnector {
  private Map<String, String> given;

  @Override
  public void start(final Map<String, String> settings) {
    given = settings;
  }

  @Override
  public Class<? extends Task> taskClass() {
    return DroppingTask.class;
  }

  @Override
  public List<Map<String, String>> taskConfigs(final int most) {
    return Collections.nCopies(most, given);
  }

  @Override
  public void stop() {}

  @Override
  public ConfigDef config() {
    return new ConfigDef();
  }

  @Override
  public String version() {
    return "1";
  }

  /** One task. */
  public static class DroppingTask extends SinkTask {
    @Override
    public void start(final Map<String, String> settings) {}

    @Override
    public void put(final Collection<SinkRecord> records) {}

    @Override
    public void stop() {}

    @Override
    public String version() {
      return "1";
    }
  }
}
