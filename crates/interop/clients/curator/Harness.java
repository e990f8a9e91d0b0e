import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** What the checks share: clients, faults, comparing and waiting for conditions. */
final class Harness {
    /** How long anything may take that should happen at once, on a machine that does other things too. */
    static final int PATIENCE_S = 30;
    private static final int CHECK_LIMIT_S = 120;
    static final List<String> HOSTS = List.of(System.getenv("INTEROP_HOSTS").split(","));

    private static final List<CuratorFramework> clients = new ArrayList<>();
    private static final AtomicInteger paths = new AtomicInteger();
    private static final ExecutorService threads = Executors.newCachedThreadPool(task -> {
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        return thread;
    });
    private static int passed;
    private static int done;

    private Harness() {}

    interface Body {
        void run() throws Exception;
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    static String only = "";

    /** Runs a check, says how it ended, and ends the clients that it made. */
    static void check(String name, Body body) {
        if (!name.contains(only)) {
            return;
        }
        done++;
        Future<?> running = threads.submit(() -> {
            body.run();
            return null;
        });
        try {
            running.get(CHECK_LIMIT_S, TimeUnit.SECONDS);
            passed++;
            System.out.println("ok curator " + name);
        } catch (ExecutionException | InterruptedException | TimeoutException error) {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            StringBuilder where = new StringBuilder();
            for (StackTraceElement frame : cause.getStackTrace()) {
                if (frame.getClassName().matches("[A-Z][a-z]+(\\$.*)?")) {
                    where.append(' ').append(frame.getFileName()).append(':').append(frame.getLineNumber());
                }
            }
            System.out.println("not ok curator " + name + ": " + cause + where);
            running.cancel(true);
        }
        synchronized (clients) {
            clients.forEach(CuratorFramework::close);
            clients.clear();
        }
    }

    /** Says how many passed; true if all did. */
    static boolean sum(String version) {
        System.out.println("curator " + version + ": " + passed + " of " + done + " checks");
        return passed == done;
    }

    static CuratorFrameworkFactory.Builder builder(String hosts) {
        return CuratorFrameworkFactory.builder().connectString(hosts).sessionTimeoutMs(20_000).connectionTimeoutMs(10_000)
                .retryPolicy(new ExponentialBackoffRetry(100, 8));
    }

    static CuratorFramework start(CuratorFrameworkFactory.Builder builder) throws Exception {
        CuratorFramework client = builder.build();
        synchronized (clients) {
            clients.add(client);
        }
        client.start();
        if (!client.blockUntilConnected(PATIENCE_S, TimeUnit.SECONDS)) {
            throw new AssertionError("not connected after " + PATIENCE_S + " s");
        }
        return client;
    }

    static CuratorFramework client() throws Exception {
        return start(builder(String.join(",", HOSTS)));
    }

    /** A path that nobody has used. */
    static String fresh() {
        return "/curator-" + ProcessHandle.current().pid() + "/" + paths.incrementAndGet();
    }

    /** At which node, from 1, a client is attached. */
    static int nodeOf(CuratorFramework client) throws Exception {
        Matcher remote = Pattern.compile("remoteserver:[^:]*:(\\d+)").matcher(client.getZookeeperClient().getZooKeeper().toString());
        if (!remote.find()) {
            return 0;
        }
        for (int number = 1; number <= HOSTS.size(); number++) {
            if (HOSTS.get(number - 1).endsWith(":" + remote.group(1))) {
                return number;
            }
        }
        return 0;
    }

    static void cluster(String what, int number) throws Exception {
        Process process = new ProcessBuilder(System.getenv("INTEROP_CLUSTER_SCRIPT"), what, String.valueOf(number), "--dir",
                System.getenv("INTEROP_CLUSTER_DIR")).redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
        equal(process.waitFor(), 0, "exit code of the cluster's " + what);
    }

    static void equal(Object seen, Object expected, String what) {
        if (!Objects.deepEquals(seen, expected)) {
            throw new AssertionError(what + ": expected " + expected + ", saw " + seen);
        }
    }

    /** Exactly this failure. */
    static <E extends Throwable> E fails(Class<E> kind, Body body) {
        try {
            body.run();
        } catch (Throwable error) {
            if (error.getClass() == kind) {
                return kind.cast(error);
            }
            throw new AssertionError("expected " + kind.getSimpleName() + ", saw " + error);
        }
        throw new AssertionError("expected " + kind.getSimpleName() + ", but it was done");
    }

    static void until(String what, Condition condition) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (!condition.holds()) {
            if (System.nanoTime() > end) {
                throw new AssertionError("after " + PATIENCE_S + " s not yet: " + what);
            }
            Thread.sleep(20);
        }
    }

    static <T> Future<T> background(Callable<T> task) {
        return threads.submit(task);
    }

    static <T> T join(Future<T> running) throws Exception {
        return running.get(PATIENCE_S, TimeUnit.SECONDS);
    }

    /** Waits until so many nodes are below a path. */
    static void children(CuratorFramework client, String path, int count) throws Exception {
        until(count + " nodes below " + path,
                () -> client.checkExists().forPath(path) != null && client.getChildren().forPath(path).size() == count);
    }
}
