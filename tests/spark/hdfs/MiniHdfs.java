import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/**
 * A real HDFS, of one name node and one data node in this process, in the folder that is named: prints
 * the port of the name node, and ends when its standard input does.
 */
public final class MiniHdfs {
    public static void main(String[] arguments) throws Exception {
        var settings = new HdfsConfiguration();
        settings.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, arguments[0]);
        var cluster = new MiniDFSCluster.Builder(settings).numDataNodes(1).build();
        cluster.waitActive();
        System.out.println(cluster.getNameNodePort());
        while (System.in.read() >= 0) {
        }
        Runtime.getRuntime().halt(0);
    }
}
