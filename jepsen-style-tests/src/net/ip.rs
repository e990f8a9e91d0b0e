//! The program `ip`.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::verdict::{Failed, cannot_run};

/// An interface is up long before.
const UP_WITHIN: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

/// Runs `ip`.
pub(super) fn ip(arguments: &[&str]) -> Result<String, Failed> {
    let output = Command::new("ip").args(arguments).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    cannot_run(format!("`ip {}`: {why}", arguments.join(" ")))
}

/// Runs many commands of `ip` in a namespace, or here.
pub(super) fn batch(namespace: Option<&str>, lines: &[String]) -> Result<(), Failed> {
    let mut command = Command::new("ip");
    if let Some(namespace) = namespace {
        command.args(["-netns", namespace]);
    }
    let mut child =
        command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(lines.join("\n").as_bytes())?;
        input.write_all(b"\n")?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    cannot_run(format!("`ip -batch` in {}: {why}", namespace.unwrap_or("our own namespace")))
}

pub(super) fn namespaces() -> Result<Vec<String>, Failed> {
    let listed = ip(&["netns", "list"])?;
    Ok(listed.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
}

/// Waits until a virtual interface passes packets.
///
/// `link set … up` returns before that. It sets the carrier of both ends, but the end that was up first drops packets
/// until a task of the kernel (`linkwatch`, up to a second later) has activated its queue. The same task sets the
/// state, so `UP` shows that the queue is active; the `qdisc` alone does not, for it is shown before its queue is used.
/// A newer kernel (Linux 6.18) does the task's work at once for an interface that is asked about by name.
pub(super) fn await_up(namespace: Option<&str>, device: &str) -> Result<(), Failed> {
    let begun = Instant::now();
    loop {
        let mut arguments = namespace.map_or(vec![], |namespace| vec!["-netns", namespace]);
        arguments.extend(["-o", "link", "show", "dev", device]);
        let shown = ip(&arguments)?;
        if is_up(&shown) {
            return Ok(());
        }
        if begun.elapsed() > UP_WITHIN {
            let place = namespace.unwrap_or("our own namespace");
            return cannot_run(format!("the interface {device} in {place} is not up after {UP_WITHIN:?}: {shown}"));
        }
        thread::sleep(POLL);
    }
}

/// Whether a line of `ip -o link show` tells of an interface that passes packets.
pub(super) fn is_up(line: &str) -> bool {
    line.contains(" state UP ") && !line.contains(" qdisc noop ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_up_when_its_queue_is_active() {
        let line = |flags, qdisc, state| {
            format!("2: n1@if2: <BROADCAST,{flags}> mtu 1500 qdisc {qdisc} state {state} mode DEFAULT")
        };
        assert!(is_up(&line("UP,LOWER_UP", "noqueue", "UP")));
        assert!(is_up(&line("NOARP,UP,LOWER_UP", "noqueue", "UP")), "a sink");
        for (flags, qdisc, state) in [
            ("MULTICAST", "noop", "DOWN"),
            ("NO-CARRIER,UP,M-DOWN", "noqueue", "LOWERLAYERDOWN"),
            ("NO-CARRIER,UP,LOWER_UP", "noqueue", "DOWN"),
            ("UP,LOWER_UP", "noqueue", "UNKNOWN"),
            ("UP,LOWER_UP", "noop", "UP"),
        ] {
            assert!(!is_up(&line(flags, qdisc, state)), "{flags} {qdisc} {state}");
        }
        assert!(!is_up(""));
    }
}
