//! What a state costs to restore and to keep: `cargo bench -p lockkeeper-core --bench restore [SHAPE] [COUNT]`. Makes a
//! snapshot, restores it a few times, and prints the CPU time of reading and of validating, and the bytes of resident
//! memory for each item, with the server's allocator. Prints; asserts nothing.
//!
//! Shapes: `nodes` (1,000 to a directory, 32 bytes of data each), `locks` (one holder each, 1,000 to a session),
//! `sessions` (idle ones).
#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // it measures the pure core from outside, with a clock

mod support;

use lockkeeper_core::*;

use support::{MeasuredLog, acquire_one, on_cpu};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn fill(log: &mut MeasuredLog, shape: &str, count: u32) {
    match shape {
        "nodes" => log.make_nodes(count),
        "locks" => {
            let mut session = log.open();
            for n in 0..count {
                if n % 1_000 == 999 {
                    session = log.open();
                }
                log.act(session, acquire_one(&format!("orders/{n}"), n));
            }
        }
        "sessions" => (0..count).for_each(|_| {
            log.open();
        }),
        other => panic!("no shape '{other}'"),
    }
}

/// Resident memory in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim_end_matches("kB").trim().parse::<u64>().unwrap_or_default() * 1024
}

/// The snapshot, made in a process of its own, so that its memory does not count.
fn snapshot(shape: &str, count: u32) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("lockkeeper-restore-{shape}-{count}-{}", std::process::id()));
    let program = std::env::current_exe().unwrap_or_else(|e| panic!("{e}"));
    let made = std::process::Command::new(program).args(["--write", shape, &count.to_string()]).arg(&path).status();
    assert!(made.is_ok_and(|status| status.success()), "no snapshot was made");
    path
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench").peekable();
    let writes = arguments.next_if(|first| first == "--write").is_some();
    let shape = arguments.next().unwrap_or_else(|| "nodes".into());
    let count = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(1_000_000);
    if writes {
        let mut log = MeasuredLog::new(u64::MAX);
        fill(&mut log, &shape, count);
        let to = std::fs::File::create(arguments.next().unwrap_or_default()).unwrap_or_else(|e| panic!("{e}"));
        return log.state.write_snapshot(to).unwrap_or_else(|e| panic!("{e}"));
    }
    let path = snapshot(&shape, count);
    for round in 1..=3 {
        let (began, before) = (on_cpu(), resident());
        let file = std::fs::File::open(&path).unwrap_or_else(|e| panic!("{e}"));
        let state = State::read_snapshot(file).unwrap_or_else(|e| panic!("{e}"));
        let (read, after) = (on_cpu() - began, resident());
        let began = on_cpu();
        state.validate().unwrap_or_else(|e| panic!("{e}"));
        let validated = on_cpu() - began;
        println!(
            "{count} {shape}, round {round}: read {} ms of CPU (with one validation of {} ms), \
             {} bytes resident for each",
            read.as_millis(),
            validated.as_millis(),
            after.saturating_sub(before) / u64::from(count)
        );
    }
    let _ = std::fs::remove_file(path);
}
