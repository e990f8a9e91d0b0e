"""One lock, different clients: kazoo, Curator and `lockkeeper lock` in the queue of one path, one after the other, in the order in which
they came. Which of their recipes can share a queue follows from the names of their nodes; what is checked here is what should.

The arguments are the command that starts Curator's Contender.
"""

import os
import pathlib
import re
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "kazoo"))

from kazoo.exceptions import NoNodeError  # noqa: E402
from kazoo.recipe.lock import Lock  # noqa: E402

from harness import KAZOO_VERSION, check, client, equal, main, until  # noqa: E402

LOCKKEEPER = os.environ["LOCKKEEPER_BIN"]
# What the nodes of Curator's mutex and of `lockkeeper lock` end in, before their numbers.
CURATOR = "-lock-"

curator = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
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
    """A kazoo lock whose nodes are named as Curator's: then Curator sees them too."""

    _NODE_NAME = CURATOR
    _EXCLUDE_NAMES = [CURATOR]


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
    """The queue's nodes. An empty queue's directory is reaped."""
    try:
        return zk.get_children(path)
    except NoNodeError:
        return []


def queue_up(kinds):
    """Queues one after the other, and names them."""
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
        # Everybody before has left, and nobody behind has come in.
        equal(entered, [str(number) for number in range(place + 1)], "who came in")
        one.leave()
    until(lambda: not standing(zk, path), "the queue is empty")
    equal(len(entered), len(kinds))


def together(kinds, first):
    """`first` are in at once; then the rest, one by one, when all of those have left."""
    _, _, queued = queue_up(kinds)
    until(lambda: len(entered) >= first, "the first are in together")
    equal(sorted(entered), [str(number) for number in range(first)], "who came in")
    for place, one in enumerate(queued):
        until(lambda: len(entered) > place, f"contender {place} is in")
        equal(len(entered), max(place + 1, first), "how many came in")
        one.leave()
    equal(entered[first:], [str(number) for number in range(first, len(kinds))], "who came in behind them")


@check("kazoo's Lock (extra_lock_patterns) and lockkeeper lock: one after the other, in order")
def kazoo_and_native():
    one_by_one([kazoo(extra_lock_patterns=[CURATOR]), native(), kazoo(extra_lock_patterns=[CURATOR])] * 3)


@check("Curator's mutex and lockkeeper lock: one after the other, in order")
def curator_and_native():
    one_by_one([by_curator("mutex"), native(), native(), by_curator("mutex")] * 2)


@check("Curator's mutex, kazoo's Lock with Curator's node name, and lockkeeper lock: one after the other, in order")
def all_three():
    one_by_one([kazoo_named, by_curator("mutex"), native(), by_curator("mutex"), kazoo_named, native(), native(), kazoo_named])


@check("kazoo's ReadLock and WriteLock, and lockkeeper lock with and without --shared")
def kazoo_readers():
    def reader(name, path):
        return ByKazoo(name, path, lambda zk, where: zk.ReadLock(where, name, extra_lock_patterns=[CURATOR, "__WRIT__"]))

    def writer(name, path):
        return ByKazoo(name, path, lambda zk, where: zk.WriteLock(where, name, extra_lock_patterns=[CURATOR, "__WRIT__", "__READ__"]))

    together([reader, native("--shared"), reader, writer, native(), writer], first=3)


@check("Curator's read-write lock and lockkeeper lock --shared")
def curator_readers():
    together([native("--shared"), by_curator("read"), native("--shared"), by_curator("write"), native("--shared")], first=3)


@check("a holder whose process is killed: the next in the queue gets in, whichever client it uses")
def killed_holder():
    _, _, queued = queue_up([native("--ttl", "4s"), kazoo(extra_lock_patterns=[CURATOR]), native()])
    until(lambda: entered == ["0"], "the first is in")
    queued[0]._process.kill()
    until(lambda: entered == ["0", "1"], "the next is in")
    queued[1].leave()
    until(lambda: entered == ["0", "1", "2"], "the last is in")
    queued[2].leave()


if __name__ == "__main__":
    server = subprocess.run([LOCKKEEPER, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-1]
    library = re.search(r"curator-recipes-([0-9.]+)\.jar", " ".join(sys.argv))
    failed = main(label="queue", version=f"kazoo {KAZOO_VERSION}, Curator {library[1] if library else '?'}, lockkeeper {server}")
    curator.stdin.close()
    curator.wait(30)
    sys.exit(1 if failed else 0)
