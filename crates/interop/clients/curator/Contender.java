import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;

/**
 * Curator's part in a queue that others share. It reads "mutex|read|write NAME PATH" to queue for a lock with a session of its own, says
 * "in NAME" when it has it, and gives it back at "out NAME".
 */
public final class Contender {
    private Contender() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, CountDownLatch> leave = new ConcurrentHashMap<>();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            String name = words[1];
            if (words[0].equals("out")) {
                leave.get(name).countDown();
                continue;
            }
            leave.put(name, new CountDownLatch(1));
            InterProcessLock lock = lock(words[0], words[2]);
            Harness.background(() -> {
                lock.acquire();
                System.out.println("in " + name);
                leave.get(name).await();
                lock.release();
                return null;
            });
        }
        System.exit(0);
    }

    private static InterProcessLock lock(String kind, String path) throws Exception {
        var client = Harness.client();
        switch (kind) {
            case "mutex": return new InterProcessMutex(client, path);
            case "read": return new InterProcessReadWriteLock(client, path).readLock();
            case "write": return new InterProcessReadWriteLock(client, path).writeLock();
            default: throw new IllegalArgumentException(kind);
        }
    }
}
