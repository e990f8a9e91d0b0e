"""Lock, ReadLock, WriteLock and Semaphore."""

import threading

from kazoo.exceptions import CancelledError, LockTimeout

from harness import Background, check, client, equal, fresh, raises, until


def contenders(zk, path, count):
    """Waits until a queue has this many nodes."""
    until(lambda: zk.exists(path) and len(zk.get_children(path)) == count, f"{count} contenders at {path}")


@check("lock: one holder at a time, and the counter behind it loses no update")
def lock_excludes():
    path, rounds, members = fresh(), 20, 4
    value = inside = 0

    def work(zk):
        nonlocal value, inside
        lock = zk.Lock(path)
        for _ in range(rounds):
            with lock:
                inside += 1
                equal(inside, 1, "holders")
                read = value
                zk.sync(path)
                value = read + 1
                inside -= 1

    workers = [Background(work, client()) for _ in range(members)]
    for worker in workers:
        worker.join()
    equal(value, rounds * members)


@check("lock: contenders get it in the order in which they queued, and contenders() lists them so")
def lock_is_fair():
    path, order, mutex = fresh(), [], threading.Lock()
    holder = client()
    first = holder.Lock(path, "holder")
    first.acquire()

    def work(zk, name):
        with zk.Lock(path, name):
            with mutex:
                order.append(name)

    names = [f"contender-{number}" for number in range(6)]
    waiting = []
    for count, name in enumerate(names, start=2):
        waiting.append(Background(work, client(), name))
        contenders(holder, path, count)
    equal(first.contenders(), ["holder", *names])
    equal(order, [])
    first.release()
    for one in waiting:
        one.join()
    equal(order, names)
    equal(holder.get_children(path), [])


@check("lock: a wait with a timeout ends in LockTimeout and leaves no node behind")
def lock_times_out():
    path, one, other = fresh(), client(), client()
    held = one.Lock(path)
    equal(held.acquire(), True)
    raises(LockTimeout, other.Lock(path).acquire, timeout=0.3)
    equal(other.Lock(path).acquire(blocking=False), False)
    equal(len(one.get_children(path)), 1, "nodes in the queue")
    held.release()
    equal(other.Lock(path).acquire(timeout=20), True)


@check("lock: cancel() ends a wait in CancelledError and leaves no node behind")
def lock_is_cancelled():
    path, one, other = fresh(), client(), client()
    held, waiting = one.Lock(path), other.Lock(path)
    held.acquire()
    wait = Background(lambda: raises(CancelledError, waiting.acquire))
    contenders(one, path, 2)
    waiting.cancel()
    wait.join()
    equal(len(one.get_children(path)), 1, "nodes in the queue")


@check("lock: the session of a holder that goes ends its hold, and the next gets in")
def lock_of_a_dead_session():
    path, one, other = fresh(), client(), client()
    one.Lock(path).acquire()
    next_one = other.Lock(path)
    wait = Background(next_one.acquire)
    contenders(other, path, 2)
    equal(wait.running, True)
    one.stop()
    equal(wait.join(), True)


@check("read and write locks: readers together, a writer alone, and a later reader waits behind a writer")
def readers_and_writers():
    path = fresh()
    readers = [client().ReadLock(path, f"reader-{number}") for number in range(3)]
    for reader in readers:
        equal(reader.acquire(timeout=20), True)
    zk = client()
    writer = zk.WriteLock(path, "writer")
    wait = Background(writer.acquire)
    contenders(zk, path, 4)
    late = client().ReadLock(path, "late")
    late_wait = Background(late.acquire)
    contenders(zk, path, 5)
    equal(writer.contenders(), ["reader-0", "reader-1", "reader-2", "writer", "late"])
    for reader in readers:
        equal((wait.running, late_wait.running), (True, True))
        reader.release()
    equal(wait.join(), True)
    equal(late_wait.running, True)
    equal(client().WriteLock(path).acquire(blocking=False), False)
    writer.release()
    equal(late_wait.join(), True)


@check("semaphore: no more holders than leases, and a release lets one in")
def semaphore_counts():
    path = fresh()
    zk = client()
    held = [client().Semaphore(path, f"holder-{number}", max_leases=3) for number in range(3)]
    for one in held:
        equal(one.acquire(timeout=20), True)
    equal(sorted(held[0].lease_holders()), ["holder-0", "holder-1", "holder-2"])
    equal(zk.get(path)[0], b"3")
    fourth = client().Semaphore(path, "fourth", max_leases=3)
    equal(fourth.acquire(blocking=False), False)
    raises(LockTimeout, fourth.acquire, timeout=0.3)
    wait = Background(fourth.acquire)
    contenders(zk, f"{path}-__lock__", 1)
    equal(wait.running, True)
    held[1].release()
    equal(wait.join(), True)
    equal(sorted(fourth.lease_holders()), ["fourth", "holder-0", "holder-2"])
    raises(ValueError, client().Semaphore(path, max_leases=2).acquire)
