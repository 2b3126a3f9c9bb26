import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/** A source for Kafka Connect: each of its tasks writes a record a second to {@code topic}. */
public class Ticking extends SourceConnector {
  private Map<String, String> given;

  @Override
  public void start(final Map<String, String> settings) {
    given = settings;
  }

  @Override
  public Class<? extends Task> taskClass() {
    return TickingTask.class;
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
  public static class TickingTask extends SourceTask {
    private String topic;

    @Override
    public void start(final Map<String, String> settings) {
      topic = settings.get("topic");
    }

    @Override
    public List<SourceRecord> poll() throws InterruptedException {
      Thread.sleep(1000);
      return List.of(new SourceRecord(Map.of(), Map.of(), topic, Schema.STRING_SCHEMA, "tick"));
    }

    @Override
    public void stop() {}

    @Override
    public String version() {
      return "1";
    }
  }
}
