"""Lock, ReadLock, WriteLock and Semaphore."""

import threading

from kazoo.exceptions import LockTimeout

from harness import Background, check, client, equal, fresh, raises, until


def contenders(zk, path, count):
    """Waits until so many nodes stand in a queue."""
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
