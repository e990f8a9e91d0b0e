"""ZooKeeper's own shell, zkCli.sh, against a cluster: types the commands of commands.script and compares the answers.

The shell says nothing when a command is done. Behind each goes one whose answer is known and of one line.
"""

import os
import pathlib
import queue
import re
import subprocess
import sys
import threading

SHELL = os.environ.get("ZKCLI", "/usr/share/zookeeper/bin/zkCli.sh")
HOSTS = os.environ["INTEROP_HOSTS"]
SCRIPT = pathlib.Path(__file__).parent / "commands.script"
# The script calls it ROOT_SAYS.
ROOT, ROOT_SAYS = f"/zkcli-{os.getpid()}", "/zkcli"
DONE, DONE_SAYS = "printwatches", "printwatches is on"
PATIENCE_S = 60.0
JVM = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]


def program(arguments, options=()):
    environment = dict(os.environ, CLIENT_JVMFLAGS=" ".join([*JVM, *options]), TZ="UTC")
    return dict(args=[SHELL, "-waitforconnection", "-server", *arguments], env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


class Shell:
    """The shell, with its replies as lines and its watch events apart from them. `options` are for the JVM."""

    def __init__(self, options=()):
        self.process = subprocess.Popen(stdin=subprocess.PIPE, **program([HOSTS], options))
        self.lines, self.events = queue.Queue(), queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            line = line.rstrip("\n")
            if event := re.fullmatch(r"WatchedEvent state:(\w+) type:(\w+) path:(\S+)", line):
                if event[2] != "None":
                    self.events.put(f"{event[2]} {event[3].replace(ROOT, ROOT_SAYS)}")
            elif line and line != "WATCHER::" and not line.startswith("SLF4J:"):
                self.lines.put(line)
        self.lines.put(None)

    def type(self, command):
        self.process.stdin.write(f"{command}\n{DONE}\n")
        self.process.stdin.flush()
        answer = []
        while (line := self.lines.get(timeout=PATIENCE_S)) != DONE_SAYS:
            if line is None:
                raise EOFError(f"the shell ended after {command!r}: {answer}")
            answer.append(line)
        return [plain(line) for line in answer]

    def quit(self):
        """Ends the shell, whose session ends with it."""
        self.process.stdin.write("quit\n")
        self.process.stdin.flush()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()


def plain(line):
    """Removes what differs between runs: times, zxids, session ids, addresses of members."""
    line = re.sub(r"^([cmp]Zxid) = 0x[0-9a-f]+$", r"\1 = ZXID", line)
    line = re.sub(r"^([cm]time) = .*$", r"\1 = TIME", line)
    line = re.sub(r"^ephemeralOwner = 0x[1-9a-f][0-9a-f]*$", "ephemeralOwner = SESSION", line)
    for number, host in enumerate(HOSTS.split(","), start=1):
        line = line.replace(f";{host}", f";MEMBER{number}")
    line = line.replace(ROOT, ROOT_SAYS)
    return re.sub(r"^(server\.\d+)=[\d.]+:\d+:\d+:", r"\1=PEER:", line)


def any_order(lines):
    """The lines with the text in brackets sorted."""
    return sorted("[" + ", ".join(sorted(line[1:-1].split(", "))) + "]" if line.startswith("[") else line for line in lines)


def parts():
    """Each part of the script: its name, and pairs of a command or wait and the expected reply."""
    name, steps = None, []
    for line in SCRIPT.read_text().splitlines():
        if line.startswith("## "):
            if name:
                yield name, steps
            name, steps = line[3:], []
        elif line.startswith(("> ", "~ ", "! ")):
            steps.append((line, []))
        elif line and not line.startswith("# "):
            steps[-1][1].append(line)
    yield name, steps


def run(shell, steps):
    """The errors in the replies to one part."""
    for step, expected in steps:
        if step.startswith("! "):
            seen, expected = [shell.events.get(timeout=PATIENCE_S)], [step[2:]]
        else:
            seen = shell.type(step[2:].replace("HOSTS", HOSTS).replace(ROOT_SAYS, ROOT))
        if step.startswith("~ "):
            seen, expected = any_order(seen), any_order(expected)
        if seen != expected:
            return f"{step}: expected {expected}, saw {seen}"
    if not shell.events.empty():
        return f"an event that nobody expects: {shell.events.get()}"
    return None


def single():
    """Runs one command given as arguments."""
    done = subprocess.run(**program([HOSTS, "get", f"{ROOT}-single"]), timeout=PATIENCE_S, stdin=subprocess.DEVNULL)
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith(("SLF4J:", "Connecting", "WATCHER", "Watched"))]
    return None if (lines, done.returncode) == (["once"], 0) else f"expected ['once'] and exit code 0, saw {lines} and {done.returncode}"


def main():
    shell, failed, done = Shell(), 0, 0
    # The welcome messages.
    shell.type("")
    version = shell.type("version")[0].split(": ")[1].split("-")[0]

    def report(name, check):
        nonlocal failed, done
        done += 1
        try:
            wrong = check()
        except (EOFError, OSError, queue.Empty, subprocess.TimeoutExpired) as error:
            wrong = f"{type(error).__name__}: {error}"
        failed += bool(wrong)
        print(f"not ok zkcli {name}: {wrong}" if wrong else f"ok zkcli {name}", flush=True)

    for name, steps in parts():
        report(name, lambda steps=steps: run(shell, steps))
    report("command line: one command as arguments, its answer and exit code", single)
    shell.process.stdin.write(f"deleteall {ROOT}-single\n")
    shell.quit()
    print(f"zkcli {version}: {done - failed} of {done} checks", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
