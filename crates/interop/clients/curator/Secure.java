import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;

import java.nio.charset.StandardCharsets;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.zookeeper.KeeperException.NoAuthException;

/**
 * Curator with one identity, where access control is enforced: `secure/interop_secure.py` runs it once for each.
 * ZooKeeper's properties of the JVM give TLS and the certificate.
 *
 * <p>Arguments: the name below which the identity may use locks and nodes, or "-" for none; one below which it may not;
 * and USER:PASSWORD for the scheme digest, if it has them.
 */
public final class Secure {
    private static String credentials;

    private Secure() {}

    public static void main(String[] arguments) {
        credentials = arguments.length > 2 ? arguments[2] : null;
        Harness.check("secure", () -> {
            CuratorFramework zk = connect();
            if (!arguments[0].equals("-")) {
                may(zk, arguments[0]);
            }
            mayNot(zk, arguments[1]);
        });
        // Clients may leave threads running.
        System.exit(Harness.sum("") ? 0 : 1);
    }

    private static CuratorFramework connect() throws Exception {
        CuratorFrameworkFactory.Builder builder = Harness.builder(String.join(",", Harness.HOSTS));
        if (credentials != null) {
            builder.authorization("digest", credentials.getBytes(StandardCharsets.UTF_8));
        }
        return Harness.start(builder);
    }

    private static String lock(String name) {
        return "/locks/secure/" + name + "/curator";
    }

    private static String node(String name) {
        return "/secure-" + name + "/curator";
    }

    private static void may(CuratorFramework zk, String mine) throws Exception {
        InterProcessMutex held = new InterProcessMutex(zk, lock(mine));
        Harness.equal(held.acquire(Harness.PATIENCE_S, SECONDS), true, "the first session's turn");
        InterProcessMutex rival = new InterProcessMutex(connect(), lock(mine));
        Harness.equal(rival.acquire(300, MILLISECONDS), false, "a second session's try");
        zk.create().creatingParentsIfNeeded().forPath(node(mine), new byte[] {1});
        Harness.equal(zk.getData().forPath(node(mine)), new byte[] {1}, "data");
        held.release();
        Harness.equal(rival.acquire(Harness.PATIENCE_S, SECONDS), true, "the second session's turn");
        rival.release();
    }

    private static void mayNot(CuratorFramework zk, String other) {
        Harness.fails(NoAuthException.class, new InterProcessMutex(zk, lock(other))::acquire);
        Harness.fails(NoAuthException.class, () -> zk.create().forPath("/secure-" + other, new byte[0]));
        Harness.fails(NoAuthException.class, () -> zk.getData().forPath(node(other)));
    }
}
