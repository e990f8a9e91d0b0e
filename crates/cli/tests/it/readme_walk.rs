//! Runs the README's shell blocks and the curl commands of `docs/http.md` unchanged against three real processes.
//! `scripts/interop` runs the README's blocks in other languages; the client's documentation tests compile the Rust
//! block.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const README: &str = include_str!("../../../../README.md");
const HTTP: &str = include_str!("../../../../docs/http.md");
const MARK: &str = "# → ";

/// A `lockkeeper dev` cluster, stopped when dropped.
struct DevCluster(Child);

impl Drop for DevCluster {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.0.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT);
        let _ = self.0.wait();
    }
}

fn start_dev() -> (DevCluster, Vec<String>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_lockkeeper"))
        .args(["dev", "--nodes", "3"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("dev starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let dev = DevCluster(child);
    let line = lines.map_while(Result::ok).find(|line| line.contains("LOCKKEEPER_ENDPOINTS="));
    let line = line.expect("dev says how to reach it");
    let list = line.split("LOCKKEEPER_ENDPOINTS=").nth(1).expect("just found").trim();
    (dev, list.split(',').map(str::to_owned).collect())
}

/// The shell block under a heading.
fn block(page: &'static str, heading: &str) -> &'static str {
    let after = page.split(heading).nth(1).expect("the page has the heading");
    after.split("```bash\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block of bash is below it")
}

/// Runs a script, which must succeed, with the built `lockkeeper`. Returns its output.
fn printed(script: &str, endpoints: &[String]) -> String {
    let programs = Path::new(env!("CARGO_BIN_EXE_lockkeeper")).parent().expect("it is in a directory");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").expect("there is a PATH"));
    let directory = tempfile::tempdir().expect("a directory");
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .env("PATH", path)
        .env("LOCKKEEPER_ENDPOINTS", endpoints.join(","))
        .current_dir(&directory)
        .output()
        .expect("bash and curl are installed");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "the script failed: {}\n{printed}", String::from_utf8_lossy(&output.stderr));
    printed
}

#[test]
fn the_readmes_blocks_take_the_lock_under_rising_tokens() {
    let (_dev, endpoints) = start_dev();
    let mut last = 0;
    for heading in ["### Shell", "### curl"] {
        let printed = printed(block(README, heading), &endpoints);
        let token = printed.lines().find_map(|line| line.strip_prefix("write under token "));
        let token: u64 = token.and_then(|token| token.parse().ok()).unwrap_or_else(|| panic!("{heading}: {printed}"));
        assert!(token > last, "{heading}: {token} after {last}");
        last = token;
    }
}

#[test]
fn the_walk_prints_what_the_page_says() {
    let (_dev, endpoints) = start_dev();
    let walk = block(HTTP, "## A walk with curl");
    let script = walk.replace("http://127.0.0.1:7001", &endpoints[0]).replace("http://127.0.0.1:7002", &endpoints[1]);
    assert!(script.contains(&endpoints[0]) && script.contains(&endpoints[1]), "the walk talks to two nodes");
    let printed = printed(&script, &endpoints);
    let mut rest = &*printed;
    for line in walk.lines().filter_map(|line| line.strip_prefix(MARK)) {
        let at = rest.find(line).unwrap_or_else(|| panic!("{line:?} is missing, or out of order, in:\n{printed}"));
        rest = &rest[at + line.len()..];
    }
}
