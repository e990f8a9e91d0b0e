import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.stream.Collectors;
import org.apache.curator.framework.AuthInfo;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.api.transaction.CuratorTransactionResult;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.cache.CuratorCacheListener;
import org.apache.curator.framework.recipes.nodes.PersistentNode;
import org.apache.curator.framework.recipes.nodes.PersistentTtlNode;
import org.apache.curator.framework.recipes.watch.PersistentWatcher;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.OpResult;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.data.ACL;
import org.apache.zookeeper.data.Id;
import org.apache.zookeeper.data.Stat;

/** Nodes, caches, watches, transactions, access control, configuration. */
final class Nodes {
    private Nodes() {}

    static void all() {
        Harness.check("nodes: create with parents and with protection, read, write, delete guaranteed and with children", Nodes::nodes);
        Harness.check("transaction: all with their results, or none with the code of each", Nodes::transaction);
        Harness.check("curator cache: a whole tree by a recursive watch, and every change of it in order", Nodes::cache);
        Harness.check("persistent watcher: each change of a subtree, in order", Nodes::watcher);
        Harness.check("watches: one-time and persistent, and none after their removal", Nodes::watches);
        Harness.check("persistent node: made again when another deletes it, gone when it is closed", Nodes::persistentNode);
        Harness.check("containers and TTL nodes: go when they are empty or outlived, and not before", Nodes::shortLived);
        Harness.check("acl: digest for the creator; NoAuth for everybody else", Nodes::access);
        Harness.check("config: a client that knows one node learns the others from /zookeeper/config", Nodes::config);
        Harness.check("background: calls without waiting are answered in order", Nodes::background);
    }

    private static void nodes() throws Exception {
        CuratorFramework zk = Harness.client();
        String path = Harness.fresh();
        Harness.fails(KeeperException.NoNodeException.class, () -> zk.create().forPath(path + "/a/b"));
        Stat made = new Stat();
        Harness.equal(zk.create().storingStatIn(made).creatingParentsIfNeeded().forPath(path + "/a/b", "one".getBytes()), path + "/a/b", "name");
        Stat stat = new Stat();
        Harness.equal(new String(zk.getData().storingStatIn(stat).forPath(path + "/a/b")), "one", "data");
        Harness.equal(stat, made, "stat of the create and of the read");
        String name = zk.create().withProtection().withMode(CreateMode.EPHEMERAL_SEQUENTIAL).forPath(path + "/lock-");
        Harness.equal(name.matches(path + "/_c_[0-9a-f-]{36}-lock-0000000001"), true, name);
        Harness.equal(zk.checkExists().forPath(name).getEphemeralOwner(), zk.getZookeeperClient().getZooKeeper().getSessionId(), "owner");
        Harness.equal(zk.setData().withVersion(0).forPath(path + "/a/b", "2".getBytes()).getVersion(), 1, "version");
        Harness.fails(KeeperException.BadVersionException.class, () -> zk.setData().withVersion(0).forPath(path + "/a/b"));
        Harness.fails(KeeperException.NodeExistsException.class, () -> zk.create().forPath(path));
        Harness.equal(zk.create().orSetData().forPath(path + "/a/b", "3".getBytes()), path + "/a/b", "create or set");
        Harness.equal(zk.create().idempotent().forPath(path + "/idempotent", "x".getBytes()), path + "/idempotent", "idempotent");
        Harness.equal(zk.create().idempotent().forPath(path + "/idempotent", "x".getBytes()), path + "/idempotent", "the same again");
        Harness.fails(KeeperException.NotEmptyException.class, () -> zk.delete().forPath(path));
        Harness.fails(KeeperException.BadVersionException.class, () -> zk.delete().withVersion(7).forPath(path + "/a/b"));
        zk.delete().guaranteed().forPath(name);
        zk.delete().guaranteed().deletingChildrenIfNeeded().forPath(path);
        Harness.equal(zk.checkExists().forPath(path), null, "what is left");
        zk.delete().quietly().forPath(path);
    }

    private static void transaction() throws Exception {
        CuratorFramework zk = Harness.client();
        String path = Harness.fresh();
        zk.create().creatingParentsIfNeeded().forPath(path);
        var ops = zk.transactionOp();
        List<CuratorTransactionResult> results = zk.transaction().forOperations(
                ops.check().withVersion(0).forPath(path),
                ops.create().withMode(CreateMode.PERSISTENT_SEQUENTIAL).forPath(path + "/s-", "1".getBytes()),
                ops.create().forPath(path + "/a", "1".getBytes()),
                ops.setData().withVersion(0).forPath(path + "/a", "22".getBytes()),
                ops.delete().forPath(path + "/a"));
        Harness.equal(results.size(), 5, "results");
        Harness.equal(results.get(1).getResultPath(), path + "/s-0000000000", "name");
        Harness.equal(results.get(3).getResultStat().getVersion(), 1, "version");
        KeeperException failure = Harness.fails(KeeperException.BadVersionException.class, () -> zk.transaction().forOperations(
                ops.create().forPath(path + "/b"),
                ops.check().withVersion(4).forPath(path),
                ops.delete().forPath(path)));
        List<Integer> codes = failure.getResults().stream().map(result -> ((OpResult.ErrorResult) result).getErr()).collect(Collectors.toList());
        Harness.equal(codes, List.of(0, KeeperException.Code.BADVERSION.intValue(), KeeperException.Code.RUNTIMEINCONSISTENCY.intValue()), "codes");
        Harness.equal(zk.getChildren().forPath(path), List.of("s-0000000000"), "what is there");
    }

    private static void cache() throws Exception {
        CuratorFramework zk = Harness.client();
        CuratorFramework other = Harness.client();
        String path = Harness.fresh();
        other.create().creatingParentsIfNeeded().forPath(path + "/a/b", "deep".getBytes());
        zk.sync().forPath(path);
        BlockingQueue<String> events = new LinkedBlockingQueue<>();
        CountDownLatch filled = new CountDownLatch(1);
        try (CuratorCache cache = CuratorCache.build(zk, path)) {
            cache.listenable().addListener(CuratorCacheListener.builder().afterInitialized()
                    .forCreates(node -> events.add("created " + node.getPath()))
                    .forChanges((old, node) -> events.add("changed " + node.getPath() + " " + new String(node.getData())))
                    .forDeletes(node -> events.add("deleted " + node.getPath())).build());
            cache.listenable().addListener(CuratorCacheListener.builder().forInitialized(filled::countDown).build());
            cache.start();
            Harness.equal(filled.await(Harness.PATIENCE_S, SECONDS), true, "filled");
            Set<String> paths = cache.stream().map(node -> node.getPath()).collect(Collectors.toCollection(TreeSet::new));
            Harness.equal(paths, new TreeSet<>(List.of(path, path + "/a", path + "/a/b")), "paths");
            Harness.equal(new String(cache.get(path + "/a/b").get().getData()), "deep", "data");
            List<String> expected = new ArrayList<>();
            other.create().forPath(path + "/c");
            expected.add("created " + path + "/c");
            next(events, expected.get(0));
            for (int number = 0; number < 10; number++) {
                other.setData().forPath(path + "/a/b", String.valueOf(number).getBytes());
                next(events, "changed " + path + "/a/b " + number);
            }
            other.create().forPath(path + "/a/b/c");
            next(events, "created " + path + "/a/b/c");
            other.delete().deletingChildrenIfNeeded().forPath(path + "/a");
            for (String gone : List.of("/a/b/c", "/a/b", "/a")) {
                next(events, "deleted " + path + gone);
            }
            Harness.equal(cache.size(), 2, "nodes left");
        }
    }

    private static void next(BlockingQueue<String> events, String expected) throws Exception {
        Harness.equal(events.poll(Harness.PATIENCE_S, SECONDS), expected, "event");
    }

    private static void watcher() throws Exception {
        CuratorFramework zk = Harness.client();
        CuratorFramework other = Harness.client();
        String path = Harness.fresh();
        other.create().creatingParentsIfNeeded().forPath(path);
        zk.sync().forPath(path);
        BlockingQueue<String> events = new LinkedBlockingQueue<>();
        CountDownLatch set = new CountDownLatch(1);
        try (PersistentWatcher watcher = new PersistentWatcher(zk, path, true)) {
            watcher.getListenable().addListener(event -> events.add(event.getType() + " " + event.getPath()));
            watcher.getResetListenable().addListener(set::countDown);
            watcher.start();
            Harness.equal(set.await(Harness.PATIENCE_S, SECONDS), true, "set");
            for (int number = 0; number < 5; number++) {
                other.create().forPath(path + "/" + number);
                other.setData().forPath(path + "/" + number, new byte[1]);
                other.delete().forPath(path + "/" + number);
            }
            other.setData().forPath(path, new byte[1]);
            for (int number = 0; number < 5; number++) {
                next(events, "NodeCreated " + path + "/" + number);
                next(events, "NodeDataChanged " + path + "/" + number);
                next(events, "NodeDeleted " + path + "/" + number);
            }
            next(events, "NodeDataChanged " + path);
        }
        Harness.equal(events.stream().filter(event -> !event.startsWith("None") && !event.startsWith("PersistentWatchRemoved")).count(), 0L, "more events");
    }

    private static void watches() throws Exception {
        CuratorFramework zk = Harness.client();
        String path = Harness.fresh();
        zk.create().creatingParentsIfNeeded().forPath(path);
        BlockingQueue<String> events = new LinkedBlockingQueue<>();
        org.apache.curator.framework.api.CuratorWatcher once = event -> events.add("once " + event.getType());
        org.apache.curator.framework.api.CuratorWatcher always = event -> events.add("always " + event.getType());
        zk.getData().usingWatcher(once).forPath(path);
        zk.setData().forPath(path);
        zk.setData().forPath(path);
        next(events, "once NodeDataChanged");
        zk.watchers().add().withMode(org.apache.zookeeper.AddWatchMode.PERSISTENT).usingWatcher(always).forPath(path);
        zk.setData().forPath(path);
        zk.create().forPath(path + "/a");
        next(events, "always NodeDataChanged");
        next(events, "always NodeChildrenChanged");
        zk.watchers().remove(always).forPath(path);
        next(events, "always PersistentWatchRemoved");
        zk.setData().forPath(path);
        zk.getChildren().usingWatcher(once).forPath(path);
        zk.watchers().remove(once).forPath(path);
        next(events, "once ChildWatchRemoved");
        zk.create().forPath(path + "/b");
        zk.getData().forPath(path);
        Harness.fails(KeeperException.NoWatcherException.class, () -> zk.watchers().remove(once).forPath(path));
        Harness.equal(events.size(), 0, "more events");
    }

    private static void persistentNode() throws Exception {
        CuratorFramework zk = Harness.client();
        CuratorFramework other = Harness.client();
        String path = Harness.fresh();
        PersistentNode node = new PersistentNode(zk, CreateMode.EPHEMERAL, true, path + "/n", "here".getBytes());
        node.start();
        Harness.equal(node.waitForInitialCreate(Harness.PATIENCE_S, SECONDS), true, "made");
        String actual = node.getActualPath();
        Harness.equal(actual.matches(path + "/_c_[0-9a-f-]{36}-n"), true, actual);
        other.sync().forPath(actual);
        long first = other.checkExists().forPath(actual).getCzxid();
        other.delete().forPath(actual);
        Harness.until("it is made again", () -> {
            Stat stat = other.checkExists().forPath(node.getActualPath());
            return stat != null && stat.getCzxid() > first;
        });
        Harness.equal(new String(other.getData().forPath(node.getActualPath())), "here", "data");
        node.close();
        Harness.until("it goes", () -> other.getChildren().forPath(path).isEmpty());
    }

    private static void shortLived() throws Exception {
        CuratorFramework zk = Harness.client();
        String path = Harness.fresh();
        zk.create().creatingParentContainersIfNeeded().forPath(path + "/container/child");
        zk.create().withTtl(1_500).creatingParentsIfNeeded().withMode(CreateMode.PERSISTENT_WITH_TTL).forPath(path + "-short");
        zk.create().withTtl(600_000).withMode(CreateMode.PERSISTENT_WITH_TTL).forPath(path + "-long");
        PersistentTtlNode kept = new PersistentTtlNode(zk, path + "-kept", 3_000, new byte[0]);
        kept.start();
        Harness.until("the outlived node goes", () -> zk.checkExists().forPath(path + "-short") == null);
        Harness.equal(zk.checkExists().forPath(path + "/container") != null, true, "a container with a child");
        zk.delete().forPath(path + "/container/child");
        Harness.until("the empty container goes, and the one around it", () -> zk.checkExists().forPath(path) == null);
        Harness.equal(zk.checkExists().forPath(path + "-long") != null, true, "a node that has time to live");
        Harness.equal(zk.checkExists().forPath(path + "-kept") != null, true, "a node that is kept alive");
        kept.close();
    }

    private static void access() throws Exception {
        CuratorFramework owner = Harness.start(Harness.builder(String.join(",", Harness.HOSTS))
                .authorization(List.of(new AuthInfo("digest", "bob:secret".getBytes()))));
        CuratorFramework anybody = Harness.client();
        String path = Harness.fresh();
        owner.create().creatingParentsIfNeeded().withACL(ZooDefs.Ids.CREATOR_ALL_ACL, false).forPath(path, "x".getBytes());
        List<ACL> expected = List.of(new ACL(ZooDefs.Perms.ALL, new Id("digest", "bob:fyVmFCwVbTJYrznoSu1koqYEYF0=")));
        Harness.equal(owner.getACL().forPath(path), expected, "acl");
        anybody.sync().forPath(path);
        Harness.fails(KeeperException.NoAuthException.class, () -> anybody.getData().forPath(path));
        Harness.fails(KeeperException.NoAuthException.class, () -> anybody.setData().forPath(path));
        Harness.fails(KeeperException.NoAuthException.class, () -> anybody.create().forPath(path + "/a"));
        Harness.equal(owner.setACL().withVersion(0).withACL(ZooDefs.Ids.READ_ACL_UNSAFE).forPath(path).getAversion(), 1, "version");
        anybody.sync().forPath(path);
        Harness.equal(new String(anybody.getData().forPath(path)), "x", "data");
        Harness.fails(KeeperException.NoAuthException.class, () -> owner.setData().forPath(path));
        Harness.fails(KeeperException.InvalidACLException.class,
                () -> anybody.create().withACL(ZooDefs.Ids.CREATOR_ALL_ACL).forPath(path + "-b"));
    }

    private static void config() throws Exception {
        CuratorFramework zk = Harness.start(Harness.builder(Harness.HOSTS.get(1)));
        String text = new String(zk.getConfig().forEnsemble());
        List<String> clients = text.lines().filter(line -> line.contains(";")).map(line -> line.split(";")[1]).collect(Collectors.toList());
        Harness.equal(clients, Harness.HOSTS, "addresses");
        Harness.until("it has learnt all addresses", () -> {
            String known = zk.getZookeeperClient().getCurrentConnectionString();
            return new TreeSet<>(List.of(known.split(","))).equals(new TreeSet<>(Harness.HOSTS));
        });
    }

    private static void background() throws Exception {
        CuratorFramework zk = Harness.client();
        String path = Harness.fresh();
        zk.create().creatingParentsIfNeeded().forPath(path);
        List<Integer> versions = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch all = new CountDownLatch(300);
        for (int number = 1; number <= 300; number++) {
            zk.setData().inBackground((client, event) -> {
                versions.add(event.getStat() == null ? event.getResultCode() : event.getStat().getVersion());
                all.countDown();
            }).forPath(path);
        }
        Harness.equal(all.await(Harness.PATIENCE_S, SECONDS), true, "all are answered");
        List<Integer> expected = new ArrayList<>();
        for (int number = 1; number <= 300; number++) {
            expected.add(number);
        }
        Harness.equal(versions, expected, "versions");
    }
}
