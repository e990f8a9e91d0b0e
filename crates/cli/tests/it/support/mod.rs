//! Helpers for the tests of the command line: a cluster of real processes and commands against it.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// A library that shifts the wall clock of the process into which it is preloaded.
pub(crate) fn shifted_clock(directory: &Path) -> PathBuf {
    let shim = directory.join("stepped_clock.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/stepped_clock.c");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&shim).arg(source).output().unwrap();
    assert!(compiled.status.success(), "{compiled:?}");
    shim
}

/// The program, which ignores no signal, also where the tests run in the background of a script.
pub(crate) fn lockkeeper() -> Command {
    by_env(&["--default-signal"])
}

/// The program, after `env` has set it up so.
pub(crate) fn by_env(arguments: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.args(arguments).arg(PROGRAM);
    let of_tls = ["LOCKKEEPER_CA", "LOCKKEEPER_CERT", "LOCKKEEPER_KEY"];
    for variable in [
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "LOCKKEEPER_ENDPOINTS",
        "LOCKKEEPER_TOKEN_FILE",
        "LOCKKEEPER_ACCESS_TOKEN",
        "LOCKKEEPER_HELD",
    ]
    .iter()
    .chain(&of_tls)
    {
        command.env_remove(variable);
    }
    command.stdin(Stdio::null());
    command
}

pub(crate) fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().try_into().unwrap())
}

/// Waits for a condition, up to a generous time limit.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let give_up_at = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < give_up_at, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process runs; a zombie does not.
pub(crate) fn alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(')').unwrap().1.trim_start().starts_with(['Z', 'X']))
}

pub(crate) fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e} in {output:?}"))
}

/// The only line that a failing command may print.
pub(crate) fn complaint(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "one line was expected: {text}");
    text
}

/// A child process, killed when dropped.
pub(crate) struct Killed(pub(crate) Child);

impl Killed {
    pub(crate) fn pid(&self) -> Pid {
        pid_of(&self.0)
    }

    /// As a shell reports it: 128 + n if signal n killed it.
    pub(crate) fn code(&mut self) -> Option<i32> {
        let status = self.0.wait().unwrap();
        status.code().or_else(|| status.signal().map(|signal| 128 + signal))
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = kill(self.pid(), Signal::SIGCONT);
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A `lockkeeper dev` process, stopped gracefully when dropped.
pub(crate) struct Dev {
    pub(crate) process: Child,
    pub(crate) endpoints: Vec<String>,
    pub(crate) zookeeper: Vec<String>,
    pub(crate) pids: Vec<Pid>,
    pub(crate) data: PathBuf,
}

impl Dev {
    pub(crate) fn start(nodes: u8, arguments: &[&str]) -> Self {
        Self::by(lockkeeper(), nodes, arguments)
    }

    /// The same by this program.
    pub(crate) fn by(mut command: Command, nodes: u8, arguments: &[&str]) -> Self {
        command.args(["dev", "--free-ports", "--json", "--nodes", &nodes.to_string()]).args(arguments);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = process.stdout.take().unwrap();
        // From here on dropping it stops it gracefully.
        let (endpoints, zookeeper, pids) = (Vec::new(), Vec::new(), Vec::new());
        let mut dev = Self { process, endpoints, zookeeper, pids, data: PathBuf::new() };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let told: serde_json::Value = serde_json::from_str(&line).expect("dev says where it is");
        let strings =
            |v: &serde_json::Value| v.as_array().unwrap().iter().map(|s| s.as_str().unwrap().to_owned()).collect();
        let pids = told["nodes"].as_array().unwrap().iter();
        dev.pids = pids.map(|node| Pid::from_raw(node["pid"].as_i64().unwrap().try_into().unwrap())).collect();
        dev.endpoints = strings(&told["endpoints"]);
        dev.zookeeper = strings(&told["zookeeper"]);
        dev.data = Path::new(told["data"].as_str().unwrap()).to_path_buf();
        dev
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.as_client(lockkeeper(), arguments)
    }

    /// The program with these arguments, as a client of this cluster.
    pub(crate) fn as_client(&self, mut program: Command, arguments: &[&str]) -> Command {
        program.args(["--endpoints", &self.endpoints.join(",")]).args(arguments);
        program
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// A `lock` command that runs a shell script.
    pub(crate) fn lock(&self, options: &[&str], script: &str) -> Command {
        let mut command = self.command(&["lock"]);
        command.args(options).args(["--", "sh", "-c", script]);
        command
    }

    pub(crate) fn signal(&self, which: Signal) {
        for pid in &self.pids {
            kill(*pid, which).unwrap();
        }
    }

    pub(crate) fn holders(&self, lock: &str) -> usize {
        json(&self.run(&["--json", "locks", lock]))["holders"].as_array().unwrap().len()
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = kill(pid_of(&self.process), Signal::SIGTERM);
        let _ = self.process.wait();
    }
}

/// Reads the numbers that a script wrote to a file, one per line.
pub(crate) fn numbers(path: &Path) -> Vec<i32> {
    std::fs::read_to_string(path).unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect()
}
