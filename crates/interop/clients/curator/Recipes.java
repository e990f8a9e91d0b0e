import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeoutException;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.atomic.AtomicValue;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.nodes.GroupMember;
import org.apache.curator.framework.recipes.queue.SimpleDistributedQueue;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.framework.recipes.shared.SharedCountListener;
import org.apache.curator.framework.recipes.shared.SharedCountReader;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryNTimes;

/** Leaders, counters, barriers, a queue, a group. */
final class Recipes {
    private Recipes() {}

    static void all() {
        Harness.check("leader latch: one leads, the next in order when it closes; all agree on leader and participants", Recipes::latch);
        Harness.check("leader selector: one leads at a time, and with autoRequeue each in its turn", Recipes::selector);
        Harness.check("atomic long: additions of several clients at once all count; compareAndSet, forceSet, initialize", Recipes::atomicLong);
        Harness.check("shared count: a change is seen by others, and one from an old value is refused", Recipes::sharedCount);
        Harness.check("barriers: set and removed; double: nobody in before all have come, nobody out before all leave", Recipes::barriers);
        Harness.check("queue: in order, each element to one consumer, and a poll that waits", Recipes::queue);
        Harness.check("group: members and their data, until they leave", Recipes::group);
    }

    private static void latch() throws Exception {
        String path = Harness.fresh();
        List<LeaderLatch> latches = new ArrayList<>();
        List<CuratorFramework> clients = new ArrayList<>();
        for (int number = 0; number < 4; number++) {
            CuratorFramework client = Harness.client();
            clients.add(client);
            LeaderLatch latch = new LeaderLatch(client, path, "member-" + number);
            latch.start();
            latches.add(latch);
            Harness.children(client, path, number + 1);
        }
        Harness.equal(latches.get(3).getParticipants().size(), 4, "participants");
        CuratorFramework last = clients.get(3);
        for (int number = 0; number < 4; number++) {
            LeaderLatch leading = latches.get(number);
            Harness.equal(leading.await(Harness.PATIENCE_S, SECONDS), true, "member " + number + " leads in its turn");
            Harness.equal(latches.stream().filter(LeaderLatch::hasLeadership).count(), 1L, "leaders");
            last.sync().forPath(path);
            Harness.equal(latches.get(3).getLeader().getId(), "member-" + number, "leader as the last sees it");
            leading.close();
        }
    }

    private static void selector() throws Exception {
        String path = Harness.fresh();
        BlockingQueue<String> leading = new LinkedBlockingQueue<>();
        Semaphore goOn = new Semaphore(0);
        Semaphore leaders = new Semaphore(1);
        List<LeaderSelector> selectors = new ArrayList<>();
        List<CuratorFramework> clients = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            String name = "member-" + number;
            CuratorFramework client = Harness.client();
            clients.add(client);
            LeaderSelector selector = new LeaderSelector(client, path, new LeaderSelectorListenerAdapter() {
                @Override
                public void takeLeadership(CuratorFramework zk) throws Exception {
                    if (!leaders.tryAcquire()) {
                        leading.add("two leaders");
                    }
                    leading.add(name);
                    goOn.acquire();
                    leaders.release();
                }
            });
            selector.setId(name);
            selector.autoRequeue();
            selector.start();
            selectors.add(selector);
            Harness.children(client, path, number + 1);
        }
        List<String> turns = new ArrayList<>();
        for (int turn = 0; turn < 6; turn++) {
            turns.add(leading.poll(Harness.PATIENCE_S, SECONDS));
            clients.get(0).sync().forPath(path);
            Harness.equal(selectors.get(0).getLeader().getId(), turns.get(turn), "leader as the first sees it");
            // The last leader queues again before the next one resigns, so that all take turns.
            Harness.until("all stand", () -> selectors.get(0).getParticipants().size() == 3);
            goOn.release();
        }
        Harness.equal(turns, List.of("member-0", "member-1", "member-2", "member-0", "member-1", "member-2"), "turns");
        selectors.forEach(LeaderSelector::close);
    }

    private static void atomicLong() throws Exception {
        String path = Harness.fresh();
        List<Future<Integer>> workers = new ArrayList<>();
        for (int number = 0; number < 4; number++) {
            DistributedAtomicLong value = new DistributedAtomicLong(Harness.client(), path, new RetryNTimes(200, 5));
            workers.add(Harness.background(() -> {
                int added = 0;
                while (added < 10) {
                    // Nothing was added if it failed.
                    added += value.increment().succeeded() ? 1 : 0;
                }
                return added;
            }));
        }
        for (Future<Integer> worker : workers) {
            Harness.join(worker);
        }
        CuratorFramework client = Harness.client();
        DistributedAtomicLong value = new DistributedAtomicLong(client, path, new RetryNTimes(3, 10));
        client.sync().forPath(path);
        Harness.equal(value.get().postValue(), 40L, "sum");
        AtomicValue<Long> changed = value.compareAndSet(40L, 7L);
        Harness.equal(List.of(changed.succeeded(), changed.preValue(), changed.postValue()), List.of(true, 40L, 7L), "compareAndSet");
        Harness.equal(value.compareAndSet(40L, 8L).succeeded(), false, "compareAndSet of an old value");
        Harness.equal(value.initialize(1L), false, "initialize of what is there");
        value.forceSet(100L);
        Harness.equal(value.subtract(1L).postValue(), 99L, "subtract");
    }

    private static void sharedCount() throws Exception {
        String path = Harness.fresh();
        SharedCount one = new SharedCount(Harness.client(), path, 5);
        SharedCount other = new SharedCount(Harness.client(), path, 0);
        one.start();
        other.start();
        BlockingQueue<Integer> seen = new LinkedBlockingQueue<>();
        other.addListener(new SharedCountListener() {
            @Override
            public void countHasChanged(SharedCountReader count, int now) {
                seen.add(now);
            }

            @Override
            public void stateChanged(CuratorFramework client, ConnectionState state) {}
        });
        Harness.until("the other sees the first value", () -> other.getCount() == 5);
        seen.clear();
        var old = one.getVersionedValue();
        one.setCount(6);
        Harness.equal(seen.poll(Harness.PATIENCE_S, SECONDS), 6, "told of");
        Harness.equal(one.trySetCount(old, 9), false, "a change from an old value");
        Harness.equal(other.trySetCount(other.getVersionedValue(), 7), true, "a change from the newest value");
        Harness.until("the first sees it", () -> one.getCount() == 7);
        one.close();
        other.close();
    }

    private static void barriers() throws Exception {
        String path = Harness.fresh();
        CuratorFramework one = Harness.client();
        CuratorFramework other = Harness.client();
        DistributedBarrier barrier = new DistributedBarrier(one, path);
        barrier.setBarrier();
        other.sync().forPath(path);
        DistributedBarrier seen = new DistributedBarrier(other, path);
        Harness.equal(seen.waitOnBarrier(300, MILLISECONDS), false, "a wait at a barrier that is set");
        Future<Boolean> waiting = Harness.background(() -> seen.waitOnBarrier(Harness.PATIENCE_S, SECONDS));
        barrier.removeBarrier();
        Harness.equal(Harness.join(waiting), true, "the same when it is removed");
        String meeting = Harness.fresh();
        List<DistributedDoubleBarrier> members = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            members.add(new DistributedDoubleBarrier(Harness.client(), meeting, 3));
        }
        List<Future<Boolean>> entering = new ArrayList<>();
        for (DistributedDoubleBarrier member : members.subList(0, 2)) {
            entering.add(Harness.background(() -> member.enter(Harness.PATIENCE_S, SECONDS)));
        }
        Harness.children(one, meeting, 2);
        Harness.equal(entering.stream().anyMatch(Future::isDone), false, "somebody is in before all have come");
        Harness.equal(members.get(2).enter(Harness.PATIENCE_S, SECONDS), true, "the last enters");
        for (Future<Boolean> entered : entering) {
            Harness.equal(Harness.join(entered), true, "entered");
        }
        List<Future<Boolean>> leaving = new ArrayList<>();
        for (DistributedDoubleBarrier member : members.subList(0, 2)) {
            leaving.add(Harness.background(() -> member.leave(Harness.PATIENCE_S, SECONDS)));
        }
        Harness.fails(TimeoutException.class, () -> leaving.get(0).get(300, MILLISECONDS));
        Harness.equal(members.get(2).leave(Harness.PATIENCE_S, SECONDS), true, "the last leaves");
        for (Future<Boolean> left : leaving) {
            Harness.equal(Harness.join(left), true, "left");
        }
    }

    private static void queue() throws Exception {
        String path = Harness.fresh();
        CuratorFramework one = Harness.client();
        CuratorFramework other = Harness.client();
        SimpleDistributedQueue put = new SimpleDistributedQueue(one, path);
        SimpleDistributedQueue take = new SimpleDistributedQueue(other, path);
        Future<byte[]> waiting = Harness.background(() -> take.poll(Harness.PATIENCE_S, SECONDS));
        put.offer("first".getBytes());
        Harness.equal(new String(Harness.join(waiting)), "first", "a poll that waited");
        for (int number = 0; number < 20; number++) {
            put.offer(String.valueOf(number).getBytes());
        }
        List<Integer> taken = Collections.synchronizedList(new ArrayList<>());
        List<Future<Void>> consumers = new ArrayList<>();
        for (SimpleDistributedQueue queue : List.of(take, new SimpleDistributedQueue(Harness.client(), path))) {
            consumers.add(Harness.background(() -> {
                for (byte[] element = queue.poll(1, SECONDS); element != null; element = queue.poll(1, SECONDS)) {
                    taken.add(Integer.valueOf(new String(element)));
                }
                return null;
            }));
        }
        for (Future<Void> consumer : consumers) {
            Harness.join(consumer);
        }
        Harness.equal(taken.size(), 20, "taken");
        Harness.equal(new TreeSet<>(taken).size(), 20, "different ones of them");
        Harness.equal(put.poll(), null, "what is left");
    }

    private static void group() throws Exception {
        String path = Harness.fresh();
        GroupMember one = new GroupMember(Harness.client(), path, "one", "1".getBytes());
        GroupMember other = new GroupMember(Harness.client(), path, "other", "2".getBytes());
        one.start();
        other.start();
        Harness.until("both are seen", () -> one.getCurrentMembers().size() == 2 && other.getCurrentMembers().size() == 2);
        Map<String, byte[]> members = one.getCurrentMembers();
        Harness.equal(new TreeSet<>(members.keySet()), new TreeSet<>(List.of("one", "other")), "members");
        Harness.equal(new String(members.get("other")), "2", "data");
        other.close();
        Harness.until("one is left", () -> one.getCurrentMembers().size() == 1);
        one.close();
    }
}
