"""One lock, different clients: kazoo, Curator and `lockkeeper lock` in the queue of one path, served in the order in
which they came. The names of their nodes decide which recipes can share a queue; the checks are of those that should.

The arguments are the command that starts Curator's Contender.
"""

import os
import pathlib
import re
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "kazoo"))

from kazoo.exceptions import BadArgumentsError, NoNodeError  # noqa: E402
from kazoo.recipe.lock import Lock  # noqa: E402

from harness import KAZOO_VERSION, check, client, equal, kill, main, raises, restart, until  # noqa: E402

LOCKKEEPER = os.environ["LOCKKEEPER_BIN"]
# How node names of Curator's mutex and of `lockkeeper lock` end, before their sequence.
CURATOR = "-lock-"

PIPE = subprocess.PIPE
curator = subprocess.Popen(sys.argv[1:], stdin=PIPE, stdout=PIPE, stderr=subprocess.DEVNULL, text=True)
entered = []
mutex = threading.Lock()
numbers = iter(range(1_000))


def enter(name):
    with mutex:
        entered.append(name)


def listen(stream):
    for line in stream:
        if line.startswith("in "):
            enter(line.split()[1])


threading.Thread(target=listen, args=[curator.stdout], daemon=True).start()


class CuratorNamedLock(Lock):
    """A kazoo lock with Curator's node names, so that Curator recognizes them."""

    _NODE_NAME = CURATOR
    _EXCLUDE_NAMES = [CURATOR]


class CuratorNamedReader(Lock):
    """A kazoo lock with the node names of readers of Curator's read-write lock."""

    _NODE_NAME = "-__READ__"
    _EXCLUDE_NAMES = ["__WRIT__"]


class CuratorNamedWriter(Lock):
    """The same for writers."""

    _NODE_NAME = "-__WRIT__"
    _EXCLUDE_NAMES = ["__READ__", "__WRIT__"]


class ByKazoo:
    def __init__(self, name, path, make):
        self._leave = threading.Event()
        lock = make(client(), path)

        def hold():
            with lock:
                enter(name)
                self._leave.wait(100)

        self._thread = threading.Thread(target=hold, daemon=True)
        self._thread.start()

    def leave(self):
        self._leave.set()


class ByCurator:
    def __init__(self, name, path, kind):
        self._name = name
        self._say(f"{kind} {name} {path}")

    def _say(self, line):
        curator.stdin.write(line + "\n")
        curator.stdin.flush()

    def leave(self):
        self._say(f"out {self._name}")


class ByLockkeeper:
    def __init__(self, name, path, *options):
        command = [LOCKKEEPER, "lock", *options, path.removeprefix("/locks/"), "--", "sh", "-c", f"echo in {name}; read _"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=listen, args=[self._process.stdout], daemon=True).start()

    def leave(self):
        self._process.stdin.write("\n")
        self._process.stdin.close()
        self._process.wait(30)


def kazoo(**more):
    return lambda name, path: ByKazoo(name, path, lambda zk, where: zk.Lock(where, name, **more))


def kazoo_named(name, path):
    return ByKazoo(name, path, CuratorNamedLock)


def by_curator(kind):
    return lambda name, path: ByCurator(name, path, kind)


def native(*options):
    return lambda name, path: ByLockkeeper(name, path, *options)


def standing(zk, path):
    """The queue's nodes. The directory of an empty queue is reaped."""
    try:
        return zk.get_children(path)
    except NoNodeError:
        return []


def queue_up(kinds):
    """Queues the clients one after the other and returns their names."""
    path = f"/locks/interop/{os.getpid()}/{next(numbers)}"
    zk = client()
    entered.clear()
    queued = []
    for place, kind in enumerate(kinds):
        queued.append(kind(str(place), path))

        def there(place=place):
            zk.sync("/")
            return len(standing(zk, path)) == place + 1

        until(there, f"contender {place} stands in the queue")
    return zk, path, queued


def one_by_one(kinds):
    zk, path, queued = queue_up(kinds)
    for place, one in enumerate(queued):
        until(lambda: len(entered) > place, f"contender {place} is in")
        # All predecessors have left, and no successor has entered.
        equal(entered, [str(number) for number in range(place + 1)], "who came in")
        one.leave()
    until(lambda: not standing(zk, path), "the queue is empty")
    equal(len(entered), len(kinds))


def together(kinds, first):
    """`first` enter at once; the others enter one by one after all of these have left."""
    _, _, queued = queue_up(kinds)
    until(lambda: len(entered) >= first, "the first are in together")
    equal(sorted(entered), [str(number) for number in range(first)], "who came in")
    for place, one in enumerate(queued):
        until(lambda: len(entered) > place, f"contender {place} is in")
        equal(len(entered), max(place + 1, first), "how many came in")
        one.leave()
    equal(entered[first:], [str(number) for number in range(first, len(kinds))], "who came in behind them")


@check("kazoo's Lock with Curator's node name, and lockkeeper lock: one after the other, in order")
def kazoo_and_native():
    one_by_one([kazoo_named, native(), kazoo_named] * 3)


@check("kazoo's Lock as it comes is refused at once where lockkeeper lock or Curator's mutex holds, and gets in when they have left")
def kazoo_behind_others():
    for kind in [native(), by_curator("mutex")]:
        zk, path, queued = queue_up([kind])
        until(lambda: entered == ["0"], "the first is in")
        for recipe in [zk.Lock, zk.ReadLock, zk.WriteLock]:
            raises(BadArgumentsError, recipe(path).acquire, timeout=30)
        equal(len(standing(zk, path)), 1, "nodes in the queue")
        queued[0].leave()
        until(lambda: not standing(zk, path), "the queue is empty")
        lock = zk.Lock(path)
        equal(lock.acquire(timeout=30), True)
        lock.release()


@check("lockkeeper lock and a lock with Curator's node names are refused where kazoo's Lock as it comes holds")
def others_behind_kazoo():
    zk, path, queued = queue_up([kazoo()])
    until(lambda: entered == ["0"], "the first is in")
    command = [LOCKKEEPER, "lock", path.removeprefix("/locks/"), "--", "true"]
    refused = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    equal(refused.returncode != 0 and "foreign_names" in refused.stderr, True, refused.stderr)
    raises(BadArgumentsError, CuratorNamedLock(zk, path).acquire, timeout=30)
    queued[0].leave()
    until(lambda: not standing(zk, path), "the queue is empty")
    subprocess.run(command, check=True, timeout=60)


@check("Curator's mutex and lockkeeper lock: one after the other, in order")
def curator_and_native():
    one_by_one([by_curator("mutex"), native(), native(), by_curator("mutex")] * 2)


@check("Curator's mutex, kazoo's Lock with Curator's node name, and lockkeeper lock: one after the other, in order")
def all_three():
    one_by_one([kazoo_named, by_curator("mutex"), native(), by_curator("mutex"), kazoo_named, native(), native(), kazoo_named])


@check("kazoo's readers and writers with Curator's node names, and lockkeeper lock --shared")
def kazoo_readers():
    def reader(name, path):
        return ByKazoo(name, path, CuratorNamedReader)

    def writer(name, path):
        return ByKazoo(name, path, CuratorNamedWriter)

    together([reader, native("--shared"), reader, writer, native("--shared"), writer], first=3)


@check("Curator's read-write lock and lockkeeper lock --shared")
def curator_readers():
    together([native("--shared"), by_curator("read"), native("--shared"), by_curator("write"), native("--shared")], first=3)


@check("a holder whose process is killed: the next in the queue gets in, whichever client it uses")
def killed_holder():
    _, _, queued = queue_up([native("--ttl", "4s"), kazoo_named, native()])
    until(lambda: entered == ["0"], "the first is in")
    queued[0]._process.kill()
    until(lambda: entered == ["0", "1"], "the next is in")
    queued[1].leave()
    until(lambda: entered == ["0", "1", "2"], "the last is in")
    queued[2].leave()


@check("with locks.foreign_names = allow, kazoo's Lock (extra_lock_patterns) and lockkeeper lock: one after the other, in order")
def allowed():
    os.environ["LOCKKEEPER_LOCKS__FOREIGN_NAMES"] = "allow"
    try:
        for node in (1, 2, 3):
            kill(node)
            restart(node)
        one_by_one([kazoo(extra_lock_patterns=[CURATOR]), native(), kazoo(extra_lock_patterns=[CURATOR])] * 3)
    finally:
        del os.environ["LOCKKEEPER_LOCKS__FOREIGN_NAMES"]
        for node in (1, 2, 3):
            kill(node)
            restart(node)


if __name__ == "__main__":
    server = subprocess.run([LOCKKEEPER, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[1]
    library = re.search(r"curator-recipes-([0-9.]+)\.jar", " ".join(sys.argv))
    failed = main(label="queue", version=f"kazoo {KAZOO_VERSION}, Curator {library[1] if library else '?'}, lockkeeper {server}")
    curator.stdin.close()
    curator.wait(30)
    sys.exit(1 if failed else 0)
