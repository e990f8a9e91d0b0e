import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.net.Socket;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Curator's contenders for a lock that guards a counter: each takes the lock, reads the counter, waits, writes it plus one under its token
 * (the czxid of its lock node) and lets go, until the counter says stop. They are judged by what the counter was asked, not by what
 * they say of themselves; jepsen-style-tests has the counter.
 *
 * <p>Arguments: HOSTS PATH COUNTER_PORT HOW_MANY HOLD_MS
 */
public final class Contenders {
    private static final int TIMEOUT_MS = 10_000;
    private static String hosts;
    private static String path;
    private static int port;
    private static long holdMs;

    private Contenders() {}

    /** The counter behind the lock. */
    private static final class Counter {
        private final BufferedReader answers;
        private final PrintWriter questions;

        Counter(int number) throws IOException {
            Socket socket = new Socket("127.0.0.1", port);
            answers = new BufferedReader(new InputStreamReader(socket.getInputStream()));
            questions = new PrintWriter(socket.getOutputStream(), false);
            say("hello curator " + number);
        }

        String say(String line) throws IOException {
            // In one write: a line and its end in two writes would wait for an acknowledgement.
            questions.write(line + "\n");
            questions.flush();
            String answer = answers.readLine();
            if (answer == null) {
                throw new IOException("the counter is gone");
            }
            return answer;
        }

        void failed(Exception error) throws IOException {
            String text = ("failed " + error).replace('\n', ' ');
            say(text.substring(0, Math.min(300, text.length())));
        }
    }

    /** A mutex that tells which node is its. */
    private static final class Mutex extends InterProcessMutex {
        Mutex(CuratorFramework client) {
            super(client, path);
        }

        String node() {
            return getLockPath();
        }
    }

    private static final class Contender {
        private final AtomicBoolean lost = new AtomicBoolean();
        private final AtomicInteger suspended = new AtomicInteger();
        private final CuratorFramework client;

        Contender(int number) {
            // Each starts with another host, if the library permits it.
            List<String> rotated = new ArrayList<>(List.of(hosts.split(",")));
            Collections.rotate(rotated, number);
            client = CuratorFrameworkFactory.builder()
                    .connectString(String.join(",", rotated))
                    .sessionTimeoutMs(TIMEOUT_MS)
                    .connectionTimeoutMs(TIMEOUT_MS)
                    .retryPolicy(new ExponentialBackoffRetry(20, 10, 500))
                    .build();
            client.getConnectionStateListenable().addListener((unused, state) -> {
                if (state == ConnectionState.SUSPENDED) {
                    suspended.incrementAndGet();
                }
                if (state == ConnectionState.LOST) {
                    lost.set(true);
                }
            });
            client.start();
        }

        /** One increment; false where the session is over and a new one is needed. */
        boolean turn(Counter counter) throws Exception {
            Mutex mutex = new Mutex(client);
            mutex.acquire();
            long token = client.checkExists().forPath(mutex.node()).getCzxid();
            long value = Long.parseLong(counter.say("read " + token));
            Thread.sleep(holdMs);
            if (lost.get()) {
                counter.say("lost " + token + " the session is over");
                return false;
            }
            counter.say("write " + token + " " + (value + 1));
            mutex.release();
            int times = suspended.getAndSet(0);
            if (times > 0) {
                counter.say("suspended " + times);
            }
            return !lost.get();
        }

        void end() {
            client.close();
        }
    }

    private static void contend(int number) throws Exception {
        Contender contender = new Contender(number);
        contender.client.blockUntilConnected();
        Counter counter = new Counter(number);
        while (counter.say("ask").equals("go")) {
            boolean usable = false;
            try {
                contender = contender == null ? new Contender(number) : contender;
                usable = contender.turn(counter);
            } catch (InterruptedException error) {
                throw error;
            } catch (Exception error) {
                // After any exception: a new session and a new request.
                counter.failed(error);
            }
            if (!usable && contender != null) {
                contender.end();
                contender = null;
            }
        }
        if (contender != null) {
            contender.end();
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        hosts = arguments[0];
        path = arguments[1];
        port = Integer.parseInt(arguments[2]);
        holdMs = Long.parseLong(arguments[4]);
        AtomicInteger failed = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < Integer.parseInt(arguments[3]); number++) {
            int own = number;
            Thread thread = new Thread(() -> {
                try {
                    contend(own);
                } catch (Exception error) {
                    error.printStackTrace();
                    failed.incrementAndGet();
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.exit(failed.get() == 0 ? 0 : 1);
    }
}
