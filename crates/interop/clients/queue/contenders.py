"""kazoo's contenders for a lock that guards a counter: each takes the lock, reads the counter, waits, writes it plus
one under its token (the czxid of its lock node) and releases the lock, until the counter says stop. They are judged by
the requests to the counter, which `jepsen-style-tests` has, not by their own account.

usage: contenders.py HOSTS PATH COUNTER_PORT HOW_MANY HOLD_MS curator|own

The last word says how their nodes are named: as Curator's, or as kazoo's own, which Curator does not see.
"""

import socket
import sys
import threading
import time
import traceback

from kazoo.client import KazooClient, KazooState
from kazoo.recipe.lock import Lock

TIMEOUT_S = 10.0
HOSTS, PATH, COUNTER_PORT, HOW_MANY, HOLD_MS, NAMES = sys.argv[1:]


class CuratorNamedLock(Lock):
    """A kazoo lock with Curator's node names, so that Curator recognizes them."""

    _NODE_NAME = "-lock-"
    _EXCLUDE_NAMES = ["-lock-"]


class Counter:
    """The counter that the lock protects."""

    def __init__(self, number):
        self._stream = socket.create_connection(("127.0.0.1", int(COUNTER_PORT))).makefile("rw", newline="\n")
        self.say(f"hello kazoo {number}")

    def say(self, line):
        self._stream.write(line + "\n")
        self._stream.flush()
        answer = self._stream.readline()
        if not answer:
            raise SystemExit("the counter is gone")
        return answer.strip()

    def failed(self, error):
        self.say(f"failed {type(error).__name__}: {error}".replace("\n", " ")[:300])


class Contender:
    def __init__(self, number):
        self._number = number
        self._lost = threading.Event()
        self._suspended = 0
        # Each starts with another host, so that all nodes serve some.
        hosts = HOSTS.split(",")
        first = number % len(hosts)
        self._zk = KazooClient(hosts=",".join(hosts[first:] + hosts[:first]), timeout=TIMEOUT_S, randomize_hosts=False)
        self._zk.add_listener(self._told)
        self._zk.start(timeout=60)

    def _told(self, state):
        if state == KazooState.SUSPENDED:
            self._suspended += 1
        if state == KazooState.LOST:
            self._lost.set()

    def turn(self, counter):
        """Increments once. False if the session has ended and a new one is needed."""
        lock = (CuratorNamedLock if NAMES == "curator" else Lock)(self._zk, PATH, f"kazoo {self._number}")
        lock.acquire()
        token = self._zk.retry(self._zk.get, f"{PATH}/{lock.node}")[1].czxid
        value = int(counter.say(f"read {token}"))
        time.sleep(int(HOLD_MS) / 1000)
        if self._lost.is_set():
            counter.say(f"lost {token} the session is over")
            return False
        counter.say(f"write {token} {value + 1}")
        lock.release()
        if self._suspended:
            counter.say(f"suspended {self._suspended}")
            self._suspended = 0
        return not self._lost.is_set()

    def end(self):
        self._zk.stop()
        self._zk.close()


def contend(number):
    contender = Contender(number)
    counter = Counter(number)
    while counter.say("ask") == "go":
        usable = False
        try:
            contender = contender or Contender(number)
            usable = contender.turn(counter)
        except Exception as error:  # Whatever its library raises: then a new session, and a new request.
            counter.failed(error)
        if not usable and contender:
            contender.end()
            contender = None
    if contender:
        contender.end()
    ended.append(number)


ended = []


def main():
    def run(number):
        try:
            contend(number)
        except BaseException:
            traceback.print_exc()

    threads = [threading.Thread(target=run, args=[number]) for number in range(int(HOW_MANY))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0 if len(ended) == len(threads) else 1


if __name__ == "__main__":
    sys.exit(main())
