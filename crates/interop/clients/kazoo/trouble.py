"""Sessions that end, and killed nodes."""

import time

from kazoo.client import KazooState

from harness import HOSTS, Background, check, client, equal, fresh, kill, node_of, restart, until, word


@check("session: its ephemeral nodes vanish when it is closed, and its watchers hear of it")
def close_removes():
    one, other, path = client(), client(), fresh()
    one.ensure_path(path)
    names = [f"{path}/{number}" for number in range(20)]
    for name in names:
        one.create(name, ephemeral=True)
    other.sync(path)
    equal(other.exists(names[0]).ephemeralOwner, one.client_id[0])
    seen = []
    other.exists(names[0], watch=lambda event: seen.append((event.type, event.path)))
    one.stop()
    until(lambda: seen, "the watch fires")
    equal(seen, [("DELETED", names[0])])
    equal(other.get_children(path), [])


@check("session: one that is silent for its timeout expires: ephemeral nodes gone, and it cannot be used again")
def expiry():
    one, other, path = client(timeout_s=4.0), client(), fresh()
    one.ensure_path(path)
    one.create(f"{path}/e", ephemeral=True)
    other.sync(path)
    equal(other.exists(f"{path}/e") is not None, True)
    identity = one.client_id
    # Its socket is closed without closing the session.
    silence(one)
    silent_since = time.monotonic()
    until(lambda: other.exists(f"{path}/e") is None, "the ephemeral node goes", limit_s=20)
    # Its last ping was at most a third of its timeout ago.
    assert time.monotonic() - silent_since > 2.0, "the session expired too early"
    late = client(client_id=identity)
    assert late.client_id[0] != identity[0], "an expired session was used again"


def silence(zk):
    """Ends a client's connection without closing its session, as if its process had died."""
    zk._stopped.set()
    zk._connection._socket.shutdown(2)


@check("session: another client with its id and password goes on with it, and a wrong password is refused")
def adoption():
    one, path = client(), fresh()
    one.create(path, ephemeral=True, makepath=True)
    session, password = one.client_id
    silence(one)
    stranger = client(client_id=(session, b"\x01" * 16))
    assert stranger.client_id[0] != session, "a wrong password was let in"
    equal(stranger.exists(path) is not None, True)
    heir = client(client_id=(session, password))
    equal(heir.client_id, (session, password))
    heir.delete(path)
    stranger.sync(path)
    equal(stranger.exists(path), None)


@check("session: moves from node to node, and goes on there")
def moves():
    path = fresh()
    one = client(hosts=HOSTS[0])
    one.create(path, b"before", ephemeral=True, makepath=True)
    identity = one.client_id
    silence(one)
    moved = client(hosts=HOSTS[1], client_id=identity)
    equal((moved.client_id, node_of(moved)), (identity, 2))
    equal(moved.get(path)[0], b"before")
    moved.set(path, b"after")
    equal(client(hosts=HOSTS[2]).exists(path).ephemeralOwner, identity[0])


def lives_through(kill_leader):
    path = fresh()
    leader = next(number for number in (1, 2, 3) if is_leader(number))
    victim = leader if kill_leader else leader % 3 + 1
    rest = [host for number, host in enumerate(HOSTS, start=1) if number != victim]
    # The first of its hosts will be killed.
    zk = client(hosts=",".join([HOSTS[victim - 1], *rest]), timeout_s=20.0)
    other = client(hosts=",".join(rest))
    equal(node_of(zk), victim)
    states, fired, children = [], [], []
    zk.add_listener(states.append)
    zk.create(f"{path}/mine", b"kept", ephemeral=True, makepath=True)
    zk.create(f"{path}/watched", b"old")
    # kazoo drops plain watches with the connection and reports it; its recipes set theirs again.
    plain = []
    zk.get(f"{path}/watched", watch=lambda event: plain.append((event.type, event.path)))
    zk.DataWatch(f"{path}/watched", lambda data, stat: fired.append(("watched", data)))
    zk.DataWatch(f"{path}/missed", lambda data, stat: fired.append(("missed", data)))
    zk.ChildrenWatch(path, lambda names: children.append(sorted(names)))
    lock = zk.Lock(f"{path}-lock")
    lock.acquire()
    session = zk.client_id
    try:
        kill(victim)
        # A change while it is disconnected or reconnecting must not be missed.
        other.retry(other.create, f"{path}/missed")
        until(lambda: zk.connected and node_of(zk) != victim, "attached elsewhere")
        other.retry(other.set, f"{path}/watched", b"new")
        until(lambda: ("watched", b"new") in fired and ("missed", b"") in fired, "both watches have caught up")
        equal([data for name, data in fired if name == "missed"], [None, b""])
        equal(plain, [("NONE", None)])
        until(lambda: children[-1] == ["mine", "missed", "watched"], "the children watch has caught up")
        equal(zk.client_id, session)
        equal(zk.get(f"{path}/mine")[0], b"kept")
        equal(zk.exists(f"{path}/mine").ephemeralOwner, session[0])
        equal(other.Lock(f"{path}-lock").acquire(blocking=False), False)
        lock.release()
        equal(other.Lock(f"{path}-lock").acquire(timeout=20), True)
        assert KazooState.LOST not in states, states
        equal(states[:2], [KazooState.SUSPENDED, KazooState.CONNECTED])
    finally:
        restart(victim)


def is_leader(number):
    return "Mode: leader\n" in word(number, "srvr")


@check("reconnection: the attached follower is killed: session, ephemeral node, lock and watches go on elsewhere")
def follower_dies():
    lives_through(kill_leader=False)


@check("reconnection: the attached leader is killed: session, ephemeral node, lock and watches go on elsewhere")
def leader_dies():
    lives_through(kill_leader=True)


@check("reconnection: a lock's waiter whose node is killed keeps its place and gets the lock")
def waiter_dies():
    path = fresh()
    leader = next(number for number in (1, 2, 3) if is_leader(number))
    victim = leader % 3 + 1
    rest = [host for number, host in enumerate(HOSTS, start=1) if number != victim]
    holder, later = client(hosts=",".join(rest)), client(hosts=",".join(rest))
    waiter = client(hosts=",".join([HOSTS[victim - 1], *rest]), timeout_s=20.0)
    order = []

    def take(zk, name):
        with zk.Lock(path, name):
            order.append(name)

    held = holder.Lock(path, "holder")
    held.acquire()
    waits = []
    for count, (zk, name) in enumerate(((waiter, "waiter"), (later, "later")), start=2):
        waits.append(Background(take, zk, name))
        until(lambda: len(holder.get_children(path)) == count, f"{name} is in the queue")
    try:
        kill(victim)
        until(lambda: waiter.connected and node_of(waiter) != victim, "attached elsewhere")
        equal(held.contenders(), ["holder", "waiter", "later"])
        held.release()
        for wait in waits:
            wait.join()
        equal(order, ["waiter", "later"])
    finally:
        restart(victim)
