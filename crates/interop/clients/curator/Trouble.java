import static java.util.concurrent.TimeUnit.SECONDS;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.cache.CuratorCacheListener;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.nodes.PersistentNode;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.ZooKeeper;

/** Nodes that are killed, sessions that end. */
final class Trouble {
    private Trouble() {}

    static void all() {
        Harness.check("reconnection: the attached node is killed: SUSPENDED, RECONNECTED; session, mutex, latch and cache go on", Trouble::nodeDies);
        Harness.check("session: its end elsewhere: LOST, RECONNECTED; a node and a leadership are taken up again by the new one", Trouble::expires);
    }

    private static String others(int victim) {
        List<String> hosts = new ArrayList<>(Harness.HOSTS);
        hosts.remove(victim - 1);
        return String.join(",", hosts);
    }

    private static void nodeDies() throws Exception {
        int victim = 2;
        // It is given the node that will be killed, and learns the others from the configuration.
        CuratorFramework zk = Harness.start(Harness.builder(Harness.HOSTS.get(victim - 1)));
        Harness.equal(Harness.nodeOf(zk), victim, "attached to");
        Harness.until("it has learnt all addresses", () -> zk.getZookeeperClient().getCurrentConnectionString().split(",").length == 3);
        CuratorFramework other = Harness.start(Harness.builder(others(victim)).ensembleTracker(false));
        List<ConnectionState> states = Collections.synchronizedList(new ArrayList<>());
        zk.getConnectionStateListenable().addListener((client, state) -> states.add(state));
        String path = Harness.fresh();
        InterProcessMutex mutex = new InterProcessMutex(zk, path + "/lock");
        mutex.acquire();
        String held = mutex.getParticipantNodes().iterator().next();
        LeaderLatch latch = new LeaderLatch(zk, path + "/latch", "first");
        latch.start();
        Harness.equal(latch.await(Harness.PATIENCE_S, SECONDS), true, "the first leads");
        LeaderLatch next = new LeaderLatch(other, path + "/latch", "next");
        next.start();
        Harness.children(other, path + "/latch", 2);
        zk.create().forPath(path + "/tree");
        zk.create().forPath(path + "/tree/gone");
        CuratorCache cache = CuratorCache.build(zk, path + "/tree");
        CountDownLatch filled = new CountDownLatch(1);
        cache.listenable().addListener(CuratorCacheListener.builder().forInitialized(filled::countDown).build());
        cache.start();
        Harness.equal(filled.await(Harness.PATIENCE_S, SECONDS), true, "the cache is filled");
        long session = zk.getZookeeperClient().getZooKeeper().getSessionId();
        try {
            Harness.cluster("kill", victim);
            for (int number = 0; number < 10; number++) {
                other.create().orSetData().forPath(path + "/tree/" + number, new byte[] {(byte) number});
            }
            other.delete().quietly().forPath(path + "/tree/gone");
            Harness.until("connected again", () -> states.contains(ConnectionState.RECONNECTED));
            Harness.equal(states.subList(0, 2), List.of(ConnectionState.SUSPENDED, ConnectionState.RECONNECTED), "states");
            Harness.equal(states.contains(ConnectionState.LOST), false, "lost");
            Harness.equal(zk.getZookeeperClient().getZooKeeper().getSessionId(), session, "session");
            Harness.equal(other.checkExists().forPath(held).getEphemeralOwner(), session, "owner of the lock's node");
            Harness.equal(new InterProcessMutex(other, path + "/lock").acquire(0, SECONDS), false, "a rival's try");
            TreeSet<String> expected = new TreeSet<>(other.getChildren().forPath(path + "/tree"));
            Harness.equal(expected.size(), 10, "nodes");
            Harness.until("the cache has everything", () -> cache.stream().map(node -> node.getPath())
                    .filter(one -> one.length() > path.length() + 5).map(one -> one.substring(path.length() + 6))
                    .collect(Collectors.toCollection(TreeSet::new)).equals(expected));
            // A latch loses leadership in SUSPENDED, and queues again or keeps its place.
            Harness.until("one leads", () -> latch.hasLeadership() != next.hasLeadership());
            mutex.release();
            Harness.equal(new InterProcessMutex(other, path + "/lock").acquire(Harness.PATIENCE_S, SECONDS), true, "the rival's turn");
        } finally {
            cache.close();
            Harness.cluster("restart", victim);
        }
    }

    private static void expires() throws Exception {
        CuratorFramework zk = Harness.client();
        CuratorFramework other = Harness.client();
        List<ConnectionState> states = Collections.synchronizedList(new ArrayList<>());
        zk.getConnectionStateListenable().addListener((client, state) -> states.add(state));
        String path = Harness.fresh();
        PersistentNode node = new PersistentNode(zk, CreateMode.EPHEMERAL, false, path + "/n", "here".getBytes());
        node.start();
        Harness.equal(node.waitForInitialCreate(Harness.PATIENCE_S, TimeUnit.SECONDS), true, "made");
        LeaderLatch latch = new LeaderLatch(zk, path + "/latch", "first");
        latch.start();
        Harness.equal(latch.await(Harness.PATIENCE_S, SECONDS), true, "it leads");
        ZooKeeper first = zk.getZookeeperClient().getZooKeeper();
        long session = first.getSessionId();
        // Another connection closes the session.
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper thief = new ZooKeeper(String.join(",", Harness.HOSTS), 20_000, event -> connected.countDown(), session, first.getSessionPasswd());
        Harness.equal(connected.await(Harness.PATIENCE_S, SECONDS), true, "the other connection");
        thief.close();
        Harness.until("it is lost and found", () -> states.contains(ConnectionState.LOST) && states.indexOf(ConnectionState.RECONNECTED) > states.indexOf(ConnectionState.LOST));
        long now = zk.getZookeeperClient().getZooKeeper().getSessionId();
        Harness.equal(now != session, true, "another session");
        Harness.until("the node is made again", () -> other.checkExists().forPath(path + "/n") != null
                && other.checkExists().forPath(path + "/n").getEphemeralOwner() == now);
        Harness.equal(latch.await(Harness.PATIENCE_S, SECONDS), true, "it leads again");
        Harness.until("one node in the queue, of the new session", () -> {
            List<String> queue = other.getChildren().forPath(path + "/latch");
            return queue.size() == 1 && other.checkExists().forPath(path + "/latch/" + queue.get(0)).getEphemeralOwner() == now;
        });
        node.close();
        latch.close();
    }
}
