"""What every check of kazoo uses: clients of the cluster, faults, waiting for conditions, and the report.

A check compares with what stands in it, waits for conditions and never for time, and is never run twice.
"""

import os
import signal
import socket
import subprocess
import threading
import time
import traceback

from kazoo.client import KazooClient
from kazoo.version import __version__ as KAZOO_VERSION

HOSTS = os.environ["INTEROP_HOSTS"].split(",")
CLUSTER = [os.environ["INTEROP_CLUSTER_SCRIPT"]]
CLUSTER_DIR = ["--dir", os.environ["INTEROP_CLUSTER_DIR"]]
# Time limit for anything that should happen at once, on a busy machine.
PATIENCE_S = 30.0
# Time limit of a check.
CHECK_LIMIT_S = 120

_checks = []
_clients = []
_numbers = iter(range(1_000_000))


def check(name):
    """Registers a function as a check."""

    def enter(function):
        _checks.append((name, function))
        return function

    return enter


def client(hosts=None, timeout_s=10.0, **more):
    """A client with a new session, connected to the first of `hosts` that answers; closed at the end of the check."""
    made = KazooClient(hosts=hosts or ",".join(HOSTS), timeout=timeout_s, randomize_hosts=False, **more)
    _clients.append(made)
    made.start(timeout=PATIENCE_S)
    return made


def fresh():
    """An unused path; its parent exists after the first client has created it."""
    return f"/interop/kazoo-{os.getpid()}/{next(_numbers)}"


def node_of(zk):
    """The member (from 1) that a client is connected to."""
    host, port = zk._connection._socket.getpeername()[:2]
    return HOSTS.index(f"{host}:{port}") + 1


def kill(node):
    """Kills a member with kill -9."""
    subprocess.run([*CLUSTER, "kill", str(node), *CLUSTER_DIR], check=True, stdout=subprocess.DEVNULL)


def restart(node):
    """Starts a member again and waits until it is ready."""
    subprocess.run([*CLUSTER, "restart", str(node), *CLUSTER_DIR], check=True, stdout=subprocess.DEVNULL)


def word(node, name):
    """A member's reply to a four-letter word."""
    host, port = HOSTS[node - 1].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as stream:
        stream.sendall(name.encode())
        parts = []
        while part := stream.recv(65536):
            parts.append(part)
    return b"".join(parts).decode()


def equal(seen, expected, what=""):
    """Compares two values."""
    assert seen == expected, f"{what or 'compared'}: expected {expected!r}, saw {seen!r}"


def raises(kind, function, *arguments, **more):
    """Expects exactly this error, not a subclass of it."""
    try:
        came = function(*arguments, **more)
    except Exception as error:
        assert type(error) is kind, f"expected {kind.__name__}, saw {type(error).__name__}: {error}"
        return error
    raise AssertionError(f"expected {kind.__name__}, saw the result {came!r}")


def until(condition, what, limit_s=PATIENCE_S):
    """Waits until a condition holds."""
    end = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < end, f"after {limit_s} s not yet: {what}"
        time.sleep(0.02)
    return value


class Background:
    """Runs a function in a thread; its exception is raised when it is joined."""

    def __init__(self, function, *arguments):
        self._error = None
        self.value = None
        self._thread = threading.Thread(target=self._run, args=(function, arguments), daemon=True)
        self._thread.start()

    def _run(self, function, arguments):
        try:
            self.value = function(*arguments)
        except BaseException as error:  # Raised again in join.
            self._error = error

    @property
    def running(self):
        return self._thread.is_alive()

    def join(self):
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"it still runs after {PATIENCE_S} s"
        if self._error:
            raise self._error
        return self.value


def _give_up(_signal, _frame):
    raise TimeoutError(f"the check took more than {CHECK_LIMIT_S} s")


def _end_clients():
    for one in _clients:
        try:
            one.stop()
            one.close()
        except Exception:  # A client that cannot end well has nothing more to say about the server.
            pass
    _clients.clear()


def main(only=None, label="kazoo", version=KAZOO_VERSION):
    """Runs every check and returns the number of failures."""
    signal.signal(signal.SIGALRM, _give_up)
    failed = done = 0
    for name, function in _checks:
        if only and only not in name:
            continue
        done += 1
        signal.alarm(CHECK_LIMIT_S)
        try:
            function()
            print(f"ok {label} {name}", flush=True)
        except Exception as error:
            failed += 1
            where = traceback.extract_tb(error.__traceback__)
            lines = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(where))
            print(f"not ok {label} {name}: {type(error).__name__}: {error} ({lines})", flush=True)
        finally:
            signal.alarm(0)
            _end_clients()
    print(f"{label} {version}: {done - failed} of {done} checks", flush=True)
    return failed
