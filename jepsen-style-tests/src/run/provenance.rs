//! Where a run was made and with which programs, as far as the machine tells.

use std::path::Path;
use std::process::Command;

use crate::report::Provenance;

use super::programs::checkout;

/// Asks git, the server that was on trial and the kernel. What does not answer is said to be unknown.
pub fn provenance(server: &Path) -> Provenance {
    let server = server.display().to_string();
    Provenance {
        commit: commit(),
        versions: vec![
            asked(&server, &["--version"]),
            format!("jepsen-style-tests {}", env!("CARGO_PKG_VERSION")),
            asked("rustc", &["--version"]),
        ],
        kernel: asked("uname", &["-srvm"]),
        machine: machine(),
        date: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
    }
}

/// The commit of the checkout, and whether its files differ from it.
pub fn commit() -> String {
    let commit = asked("git", &["rev-parse", "--short=12", "HEAD"]);
    let changed = asked("git", &["status", "--porcelain", "--untracked-files=no"]);
    if changed.is_empty() || changed == UNKNOWN { commit } else { format!("{commit} with changes") }
}

const UNKNOWN: &str = "unknown";

fn asked(program: &str, words: &[&str]) -> String {
    let answer = Command::new(program).args(words).current_dir(checkout()).output();
    match answer {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => UNKNOWN.into(),
    }
}

fn machine() -> String {
    let processors = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib =
        memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok());
    format!("{processors} processors, {} MiB of memory", kib.unwrap_or(0) / 1024)
}
