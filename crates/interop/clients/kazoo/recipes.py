"""Election, barriers, queues, counter, party, lease, partitioner."""

import datetime
import threading

from harness import Background, check, client, equal, fresh, until


@check("election: one leader at a time, in the order of standing, and cancel() gives up")
def election():
    path, led, going = fresh(), [], {}
    names = ["first", "second", "third"]
    zk = client()

    def lead(name):
        led.append(name)
        going[name].wait(60)

    standing = []
    elections = {}
    for count, name in enumerate(names, start=1):
        going[name] = threading.Event()
        elections[name] = client().Election(path, name)
        standing.append(Background(elections[name].run, lead, name))
        until(lambda: zk.exists(path) and len(zk.get_children(path)) == count, f"{name} stands")
    until(lambda: led, "somebody leads")
    equal(elections["first"].contenders(), names)
    equal(led, ["first"])
    elections["second"].cancel()
    standing[1].join()
    equal(led, ["first"])
    going["first"].set()
    until(lambda: len(led) == 2, "the third leads")
    equal(led, ["first", "third"])
    going["third"].set()
    standing[0].join()
    standing[2].join()
    equal(zk.get_children(path), [])


@check("barrier: wait() returns when the barrier is removed, and not before")
def barrier():
    path, one, other = fresh(), client(), client()
    one.Barrier(path).create()
    equal(other.Barrier(path).wait(0.2), False)
    wait = Background(other.Barrier(path).wait, 60)
    equal(wait.running, True)
    equal(one.Barrier(path).remove(), True)
    equal(wait.join(), True)
    equal(one.Barrier(path).remove(), False)
    equal(other.Barrier(path).wait(0), True)


@check("double barrier: nobody is in before all have come, and nobody out before all have left")
def double_barrier():
    path, members = fresh(), 3
    zk = client()
    barriers = [client().DoubleBarrier(path, members, f"member-{number}") for number in range(members)]
    entering = [Background(one.enter) for one in barriers[:-1]]
    until(lambda: zk.exists(path) and len(zk.get_children(path)) == members - 1, "all but one have come")
    equal([one.running for one in entering], [True, True])
    barriers[-1].enter()
    for one in entering:
        one.join()
    equal([one.participating for one in barriers], [True] * members)
    leaving = [Background(one.leave) for one in barriers[:-1]]
    until(lambda: not zk.exists(f"{path}/ready"), "one began to leave")
    equal([one.running for one in leaving], [True, True])
    barriers[-1].leave()
    for one in leaving:
        one.join()
    equal(zk.get_children(path), [])


@check("queue: in order, by priority, each entry to one consumer")
def queue():
    path = fresh()
    put = client().Queue(path)
    for value in (b"one", b"two", b"three"):
        put.put(value)
    put.put(b"urgent", priority=1)
    equal(len(put), 4)
    take = client().Queue(path)
    equal([take.get() for _ in range(5)], [b"urgent", b"one", b"two", b"three", None])
    for number in range(40):
        put.put(b"%d" % number)
    taken = []

    def consume(consumer):
        while (value := consumer.get()) is not None:
            taken.append(int(value))

    for consumer in [Background(consume, client().Queue(path)) for _ in range(3)]:
        consumer.join()
    equal(sorted(taken), list(range(40)))
    equal(len(put), 0)


@check("locking queue: what is taken is nobody else's until consumed, released or its session ends")
def locking_queue():
    path = fresh()
    zk = client()
    put, one, other = zk.LockingQueue(path), client().LockingQueue(path), client().LockingQueue(path)
    put.put_all([b"a", b"b"])
    put.put(b"first", priority=5)
    equal(len(put), 3)
    equal(one.get(20), b"first")
    equal(other.get(20), b"a")
    equal((one.holds_lock(), other.holds_lock()), (True, True))
    equal(one.consume(), True)
    equal(len(put), 2)
    equal(one.get(20), b"b")
    waiting = client().LockingQueue(path)
    equal(waiting.get(0.3), None)
    wait = Background(waiting.get, 60)
    equal(other.release(), True)
    equal(wait.join(), b"a")
    equal(other.consume(), False)
    again = Background(other.get, 60)
    waiting.client.stop()
    equal(again.join(), b"a")
    equal(other.consume(), True)
    equal(one.consume(), True)
    equal(len(put), 0)


@check("counter: additions of several clients at once all count; whole numbers, fractions, and Curator's format")
def counter():
    path = fresh()

    def add(zk, times):
        mine = zk.Counter(path)
        for _ in range(times):
            mine += 1

    for one in [Background(add, client(), 10) for _ in range(4)]:
        one.join()
    zk = client()
    equal(zk.Counter(path).value, 40)
    half = zk.Counter(fresh(), default=1.0)
    half += 2.5
    half -= 1.0
    equal((half.pre_value, half.post_value, half.value), (3.5, 2.5, 2.5))
    shared = zk.Counter(curator := fresh(), support_curator=True)
    shared += 258
    equal(zk.get(curator)[0], b"\x00\x00\x01\x02")


@check("party: members are those who joined and whose session lasts")
def party():
    path = fresh()
    one, other = client(), client()
    first, second = one.Party(path, "first"), other.Party(path, "second")
    first.join()
    second.join()
    equal(sorted(first), ["first", "second"])
    equal(len(second), 2)
    equal(first.leave(), True)
    equal(first.leave(), False)
    equal(list(second), ["second"])
    shallow = one.ShallowParty(path + "-shallow", "name")
    shallow.join()
    equal(list(shallow), ["name"])
    other.stop()
    until(lambda: len(first) == 0, "the member whose session ended is none")


@check("lease: another holder is refused until it ends, the holder itself may renew")
def lease():
    path, one, other = fresh(), client(), client()
    now = datetime.datetime(2026, 1, 1)
    hour, later = datetime.timedelta(hours=1), datetime.timedelta(minutes=90)
    equal(bool(one.NonBlockingLease(path, hour, "one", utcnow=lambda: now)), True)
    equal(bool(other.NonBlockingLease(path, hour, "other", utcnow=lambda: now)), False)
    equal(bool(one.NonBlockingLease(path, hour, "one", utcnow=lambda: now)), True)
    equal(bool(other.NonBlockingLease(path, hour, "other", utcnow=lambda: now + later)), True)


@check("partitioner: members share a set out, each item to one, and again when a member leaves")
def partitioner():
    path, items = fresh(), tuple(range(6))
    clients = [client(), client()]
    parts = [zk.SetPartitioner(path, items, identifier=f"member-{n}", time_boundary=0.5) for n, zk in enumerate(clients)]

    def drive(which, done):
        def step():
            for part in which:
                assert not part.failed, "a partitioner failed"
                if part.release:
                    part.release_set()
                elif part.allocating:
                    part.wait_for_acquire(0.5)
            return all(part.acquired for part in which) and done()

        until(step, "the set is shared out", limit_s=60)

    drive(parts, lambda: sorted(list(parts[0]) + list(parts[1])) == list(items) and len(list(parts[0])) == 3)
    parts[1].finish()
    clients[1].stop()
    drive(parts[:1], lambda: list(parts[0]) == list(items))
