import io.equipoise.streams.EquipoiseTaskAssignor;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupAssignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.processor.assignment.ApplicationState;
import org.apache.kafka.streams.processor.assignment.TaskAssignor;
import org.junit.platform.launcher.LauncherSession;
import org.junit.platform.launcher.LauncherSessionListener;

/** The assignor of every application that names none, from the start of JUnit's session on. */
public final class Led implements TaskAssignor, LauncherSessionListener {
    private final EquipoiseTaskAssignor assignor = new EquipoiseTaskAssignor();

    @Override
    public void launcherSessionOpened(final LauncherSession session) {
        try {
            final var config = StreamsConfig.class.getDeclaredField("CONFIG");
            config.setAccessible(true);
            final var key = ((ConfigDef) config.get(null)).configKeys().get("task.assignor.class");
            final var value = key.getClass().getDeclaredField("defaultValue");
            value.setAccessible(true);
            value.set(key, Led.class.getName());
        } catch (final ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    public void configure(final Map<String, ?> configs) {
        final Map<String, Object> all = new HashMap<>(configs);
        all.put("equipoise.url", System.getProperty("equipoise.url"));
        assignor.configure(all);
    }

    @Override
    public TaskAssignment assign(final ApplicationState application) {
        return assignor.assign(application);
    }

    @Override
    public void onAssignmentComputed(final GroupAssignment assignment, final GroupSubscription subscription, final AssignmentError error) {
        assignor.onAssignmentComputed(assignment, subscription, error);
    }
}
