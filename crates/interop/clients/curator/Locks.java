import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;

/** Mutexes, read-write locks and semaphores. */
final class Locks {
    private Locks() {}

    static void all() {
        Harness.check("mutex: one holder at a time, and the counter behind it loses no update", Locks::excludes);
        Harness.check("mutex: contenders get it in the order in which they queued; its nodes are named as Curator's", Locks::order);
        Harness.check("mutex: re-entrant; a wait with a limit ends without a node; its owner can be asked to give it up", Locks::details);
        Harness.check("multi lock: all or none", Locks::several);
        Harness.check("read-write lock: readers together, a writer alone, a writer may read too", Locks::readWrite);
        Harness.check("semaphore: no more holders than leases, several at once, and a return lets the next in", Locks::semaphore);
        Harness.check("semaphore mutex: one holder", Locks::semaphoreMutex);
    }

    private static void excludes() throws Exception {
        String path = Harness.fresh();
        AtomicInteger inside = new AtomicInteger();
        int[] value = new int[1];
        List<Future<Void>> workers = new ArrayList<>();
        for (int number = 0; number < 4; number++) {
            CuratorFramework client = Harness.client();
            workers.add(Harness.background(() -> {
                InterProcessMutex mutex = new InterProcessMutex(client, path);
                for (int round = 0; round < 15; round++) {
                    mutex.acquire();
                    Harness.equal(inside.incrementAndGet(), 1, "holders");
                    int read = value[0];
                    client.sync().forPath(path);
                    value[0] = read + 1;
                    inside.decrementAndGet();
                    mutex.release();
                }
                return null;
            }));
        }
        for (Future<Void> worker : workers) {
            Harness.join(worker);
        }
        Harness.equal(value[0], 60, "counter");
    }

    private static void order() throws Exception {
        String path = Harness.fresh();
        CuratorFramework holder = Harness.client();
        InterProcessMutex held = new InterProcessMutex(holder, path);
        held.acquire();
        List<Integer> order = Collections.synchronizedList(new ArrayList<>());
        List<Future<Void>> waiting = new ArrayList<>();
        for (int number = 0; number < 6; number++) {
            CuratorFramework client = Harness.client();
            int own = number;
            waiting.add(Harness.background(() -> {
                InterProcessMutex mutex = new InterProcessMutex(client, path);
                mutex.acquire();
                order.add(own);
                mutex.release();
                return null;
            }));
            Harness.children(holder, path, number + 2);
        }
        List<String> names = held.getParticipantNodes().stream().map(node -> node.substring(path.length() + 1)).collect(Collectors.toList());
        for (int number = 0; number < 7; number++) {
            String expected = "_c_[0-9a-f-]{36}-lock-000000000" + number;
            Harness.equal(names.get(number).matches(expected), true, names.get(number));
        }
        Harness.equal(order, List.of(), "who got in");
        held.release();
        for (Future<Void> one : waiting) {
            Harness.join(one);
        }
        Harness.equal(order, List.of(0, 1, 2, 3, 4, 5), "order");
    }

    private static void details() throws Exception {
        String path = Harness.fresh();
        CuratorFramework one = Harness.client();
        CuratorFramework other = Harness.client();
        InterProcessMutex mutex = new InterProcessMutex(one, path);
        InterProcessMutex rival = new InterProcessMutex(other, path);
        AtomicBoolean asked = new AtomicBoolean();
        mutex.makeRevocable(held -> asked.set(true));
        mutex.acquire();
        mutex.acquire();
        Harness.equal(one.getChildren().forPath(path).size(), 1, "nodes of a lock held twice");
        Harness.equal(rival.acquire(300, MILLISECONDS), false, "the rival's try");
        Harness.children(one, path, 1);
        mutex.release();
        Harness.equal(rival.acquire(0, MILLISECONDS), false, "the rival's try at a lock released once of twice");
        Revoker.attemptRevoke(other, mutex.getParticipantNodes().iterator().next());
        Harness.until("the holder is asked", asked::get);
        mutex.release();
        Harness.equal(rival.acquire(Harness.PATIENCE_S, SECONDS), true, "the rival's turn");
        Harness.equal(rival.isOwnedByCurrentThread(), true, "owner");
        rival.release();
        Harness.fails(IllegalMonitorStateException.class, rival::release);
    }

    private static void several() throws Exception {
        CuratorFramework one = Harness.client();
        CuratorFramework other = Harness.client();
        String first = Harness.fresh();
        String second = Harness.fresh();
        InterProcessMutex blocking = new InterProcessMutex(other, second);
        blocking.acquire();
        InterProcessMultiLock both = new InterProcessMultiLock(one, List.of(first, second));
        Harness.equal(both.acquire(300, MILLISECONDS), false, "both, while one is held");
        Harness.equal(new InterProcessMutex(other, first).acquire(Harness.PATIENCE_S, SECONDS), true, "the other of them is free");
        CuratorFramework third = Harness.client();
        blocking.release();
        Harness.equal(new InterProcessMutex(third, first).acquire(0, SECONDS), false, "the first is held");
        Harness.equal(new InterProcessMutex(third, second).acquire(Harness.PATIENCE_S, SECONDS), true, "the second is free");
    }

    private static void readWrite() throws Exception {
        String path = Harness.fresh();
        CuratorFramework one = Harness.client();
        CuratorFramework other = Harness.client();
        CuratorFramework third = Harness.client();
        InterProcessReadWriteLock first = new InterProcessReadWriteLock(one, path);
        InterProcessReadWriteLock second = new InterProcessReadWriteLock(other, path);
        InterProcessReadWriteLock late = new InterProcessReadWriteLock(third, path);
        first.readLock().acquire();
        Harness.equal(second.readLock().acquire(Harness.PATIENCE_S, SECONDS), true, "a second reader");
        Future<Boolean> writing = Harness.background(() -> {
            InterProcessReadWriteLock lock = new InterProcessReadWriteLock(third, path);
            lock.writeLock().acquire();
            // A writer may also read; a reader may not write.
            lock.readLock().acquire();
            lock.readLock().release();
            lock.writeLock().release();
            return true;
        });
        Harness.children(one, path, 3);
        Future<Boolean> reading = Harness.background(() -> late.readLock().acquire(Harness.PATIENCE_S, SECONDS));
        Harness.children(one, path, 4);
        Harness.equal(List.of(writing.isDone(), reading.isDone()), List.of(false, false), "a writer, and a reader behind it, while two read");
        first.readLock().release();
        Harness.equal(List.of(writing.isDone(), reading.isDone()), List.of(false, false), "the same, while one reads");
        second.readLock().release();
        Harness.equal(Harness.join(writing), true, "the writer");
        Harness.equal(Harness.join(reading), true, "the reader behind it");
        Harness.equal(first.writeLock().acquire(300, MILLISECONDS), false, "a writer while one reads");
    }

    private static void semaphore() throws Exception {
        String path = Harness.fresh();
        CuratorFramework zk = Harness.client();
        InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(zk, path, 3);
        List<Lease> two = new ArrayList<>(semaphore.acquire(2));
        InterProcessSemaphoreV2 other = new InterProcessSemaphoreV2(Harness.client(), path, 3);
        Lease third = other.acquire(Harness.PATIENCE_S, SECONDS);
        Harness.equal(third != null, true, "the third lease");
        Harness.equal(other.acquire(300, MILLISECONDS), null, "a fourth lease of three");
        Harness.until("3 nodes", () -> semaphore.getParticipantNodes().size() == 3);
        InterProcessSemaphoreV2 waiting = new InterProcessSemaphoreV2(Harness.client(), path, 3);
        Future<Lease> next = Harness.background(waiting::acquire);
        Harness.children(zk, path + "/leases", 4);
        Harness.equal(next.isDone(), false, "the fourth has a lease");
        semaphore.returnLease(two.get(0));
        Harness.equal(Harness.join(next) != null, true, "the fourth, after a return");
        semaphore.returnLease(two.get(1));
        other.returnLease(third);
        Harness.equal(semaphore.acquire(2, Harness.PATIENCE_S, SECONDS).size(), 2, "two at once");
    }

    private static void semaphoreMutex() throws Exception {
        String path = Harness.fresh();
        InterProcessSemaphoreMutex one = new InterProcessSemaphoreMutex(Harness.client(), path);
        InterProcessSemaphoreMutex other = new InterProcessSemaphoreMutex(Harness.client(), path);
        one.acquire();
        Harness.equal(other.acquire(300, MILLISECONDS), false, "a second holder");
        one.release();
        Harness.equal(other.acquire(Harness.PATIENCE_S, SECONDS), true, "the next holder");
    }
}
