"""The C library and the tools of Debian's zookeeper-bin against a cluster: cli_mt, load_gen and interop_c.c.

The argument is the program that was built of interop_c.c.
"""

import os
import re
import subprocess
import sys

HOSTS = os.environ["INTEROP_HOSTS"]
TOOLS = "/usr/lib/zookeeper/bin"
ROOT = f"/c-tools-{os.getpid()}"
CYCLES = 3
NOISE = re.compile(r"\d{4}-\d\d-\d\d |Watcher SESSION|Got a new session|Creating |time = |\s*[cm]time ?=|\s*[cm]zxid ?=|Stat:")

# Commands for cli_mt and its replies, without times and zxids.
CLI = [
    (f"create {ROOT}", ["[ROOT]: rc = 0", "name = ROOT"]),
    (f"create +e {ROOT}/e", ["[ROOT/e]: rc = 0", "name = ROOT/e"]),
    (f"ls {ROOT}", ["ROOT: rc = 0", "e"]),
    # Its watch and that of the get fire before the reply.
    (f"create +s {ROOT}/s-", ["Watcher CHILD_EVENT state = CONNECTED_STATE for path ROOT", "[ROOT/s-]: rc = 0", "name = ROOT/s-0000000001"]),
    (f"create {ROOT}", ["[ROOT]: rc = -110"]),
    (f"create2 {ROOT}/two", ["[ROOT/two]: rc = 0", "name = ROOT/two", "version=0 aversion=0", "ephemeralOwner = 0"]),
    (f"get {ROOT}/two", ["ROOT/two: rc = 0", "value_len = 3", "new", "version=0 aversion=0", "ephemeralOwner = 0"]),
    (f"set {ROOT}/two data", ["Watcher CHANGED_EVENT state = CONNECTED_STATE for path ROOT/two", "ROOT/two: rc = 0 Stat:",
                              "version=1 aversion=0", "ephemeralOwner = 0"]),
    (f"delete {ROOT}", ["ROOT: rc = -111"]),
    (f"delete {ROOT}/two", ["ROOT/two: rc = 0"]),
    (f"ls {ROOT}/nothing", ["ROOT/nothing: rc = -101"]),
    (f"sync {ROOT}", ["[ROOT]: rc = 0", "name = ROOT"]),
]


def cli():
    command = [f"{TOOLS}/cli_mt", HOSTS]
    pipe = subprocess.PIPE
    shell = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True)
    shell.stdin.write("".join(f"{command}\n" for command, _ in CLI))
    shell.stdin.flush()
    seen = []
    # The last reply is recognized by its name.
    for line in shell.stdout:
        if not NOISE.match(line):
            seen.append(" ".join(line.replace(ROOT, "ROOT").split()))
        if line.startswith(f"[{ROOT}]") and len(seen) > 3:
            ends = sum(f"[{ROOT}]" in one.replace("ROOT", ROOT) for one in seen)
            if ends == 3:
                break
    seen.append(" ".join(shell.stdout.readline().replace(ROOT, "ROOT").split()))
    shell.stdin.write("quit\n")
    shell.stdin.close()
    shell.wait(60)
    return seen, [line for _, lines in CLI for line in lines]


def load():
    """load_gen repeatedly creates, writes, reads and deletes 200 nodes."""
    running = subprocess.Popen([f"{TOOLS}/load_gen", HOSTS, f"{ROOT}-load", "200"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    cycles = errors = 0
    for line in running.stdout:
        cycles += "Starting the delete cycle" in line
        errors += "ZOO_ERROR" in line
        if cycles == CYCLES or errors:
            break
    running.kill()
    running.wait()
    command = [f"{TOOLS}/load_gen", HOSTS, f"{ROOT}-load", "clean"]
    clean = subprocess.run(command, timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return (cycles, errors, clean.returncode, "Successfully deleted a subtree" in clean.stdout), (CYCLES, 0, 0, True)


def main():
    passed = done = 0
    for name, check in (("cli_mt: create, create2, ls, get, set, delete, sync, with their codes and watches", cli),
                        ("load_gen: three cycles over 200 nodes without an error, then its clean", load)):
        seen, expected = check()
        done += 1
        passed += seen == expected
        print(f"ok c {name}" if seen == expected else f"not ok c {name}: expected {expected}, saw {seen}", flush=True)
    library = subprocess.run([sys.argv[1]], stdout=subprocess.PIPE, text=True)
    print(library.stdout, end="")
    passed += library.stdout.count("\nok c ") + library.stdout.startswith("ok c ")
    done += library.stdout.count("ok c ")
    version = subprocess.run(["dpkg-query", "--show", "--showformat=${Version}", "libzookeeper-mt2"], stdout=subprocess.PIPE, text=True).stdout
    print(f"c {version.split('-')[0]}: {passed} of {done} checks", flush=True)
    return passed != done or library.returncode != 0


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
