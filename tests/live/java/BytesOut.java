import com.sun.tools.attach.VirtualMachine;
import java.util.Set;
import javax.management.MBeanServerConnection;
import javax.management.ObjectName;
import javax.management.remote.JMXConnectorFactory;
import javax.management.remote.JMXServiceURL;

/** What brokers have sent to clients, by their own count: for each process id given, a line "pid topic bytes" for each topic. */
public class BytesOut {
    public static void main(String[] pids) throws Exception {
        for (String pid : pids) {
            VirtualMachine machine = VirtualMachine.attach(pid);
            String address = machine.startLocalManagementAgent();
            machine.detach();
            try (var connector = JMXConnectorFactory.connect(new JMXServiceURL(address))) {
                MBeanServerConnection beans = connector.getMBeanServerConnection();
                ObjectName names = new ObjectName("kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec,topic=*");
                for (ObjectName name : (Set<ObjectName>) beans.queryNames(names, null)) {
                    System.out.println(pid + " " + name.getKeyProperty("topic") + " " + beans.getAttribute(name, "Count"));
                }
            }
        }
    }
}
