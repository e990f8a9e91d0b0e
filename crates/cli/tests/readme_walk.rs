//! Runs the README's curl walk as it is printed, against three real processes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

const README: &str = include_str!("../../../README.md");
const MARK: &str = "# → ";

/// A `lockkeeper dev` cluster that ends with the test.
struct Dev(Child);

impl Drop for Dev {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.0.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT);
        let _ = self.0.wait();
    }
}

fn start_dev() -> (Dev, Vec<String>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_lockkeeper"))
        .args(["dev", "--nodes", "3"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("dev starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let dev = Dev(child);
    let line = lines.map_while(Result::ok).find(|line| line.contains("LOCKKEEPER_ENDPOINTS="));
    let line = line.expect("dev says how to reach it");
    let list = line.split("LOCKKEEPER_ENDPOINTS=").nth(1).expect("just found").trim();
    (dev, list.split(',').map(str::to_owned).collect())
}

fn walk() -> &'static str {
    let after = README.split("### The same by hand").nth(1).expect("the README has the walk");
    after.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).expect("the walk is a block of sh")
}

#[test]
fn the_walk_prints_what_the_readme_says() {
    let (_dev, endpoints) = start_dev();
    let script = walk().replace("http://127.0.0.1:7001", &endpoints[0]).replace("http://127.0.0.1:7002", &endpoints[1]);
    assert!(script.contains(&endpoints[0]) && script.contains(&endpoints[1]), "the walk talks to two nodes");

    let directory = tempfile::tempdir().expect("a directory");
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &script])
        .current_dir(&directory)
        .output()
        .expect("bash and curl are installed");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "the walk failed: {}\n{printed}", String::from_utf8_lossy(&output.stderr));

    let mut rest = &*printed;
    for line in walk().lines().filter_map(|line| line.strip_prefix(MARK)) {
        let at = rest.find(line).unwrap_or_else(|| panic!("{line:?} is missing, or out of order, in:\n{printed}"));
        rest = &rest[at + line.len()..];
    }
}
