//! What a state costs to restore and to keep: `cargo bench -p lockkeeper-core --bench restore [SHAPE] [COUNT]`. Makes a
//! snapshot, restores it a few times, and prints the CPU time of reading and of validating, and the bytes of resident
//! memory for each item, with the server's allocator. Prints; asserts nothing.
//!
//! Shapes: `nodes` (1,000 to a directory, 32 bytes of data each), `locks` (one holder each, 1,000 to a session),
//! `sessions` (idle ones).
#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // it measures the pure core from outside, with a clock

mod support;

use std::time::Duration;

use lockkeeper_core::*;

use support::MeasuredLog;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A log whose commands fill a state.
struct Filler(MeasuredLog);

impl Filler {
    fn create(&mut self, path: &str) {
        let path = NodePath::parse(path).unwrap_or_else(|e| panic!("{e}"));
        let (data, acl) = ([b'x'; 32].into(), vec![AclEntry::open()]);
        let op = NodeOp::Create { path, data, kind: NodeKind::Persistent, sequential: Sequential::No, acl };
        self.0.apply(Command::Do { actor: Actor::default(), op: op.into() });
    }

    fn fill(&mut self, shape: &str, count: u32) {
        match shape {
            "nodes" => {
                for directory in 0..count / 1_000 {
                    self.create(&format!("/d{directory}"));
                    (1..1_000).for_each(|node| self.create(&format!("/d{directory}/node-{node}")));
                }
            }
            "locks" => {
                let mut session = self.0.open();
                for n in 0..count {
                    if n % 1_000 == 999 {
                        session = self.0.open();
                    }
                    let lock = LockName::parse(&format!("orders/{n}")).unwrap_or_else(|e| panic!("{e}"));
                    let (mode, label) = (LockMode::Exclusive, "worker".into());
                    let uuid = RequestId(u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
                    let op = LockOp::Acquire { locks: vec![lock], mode, delay_ms: 0, uuid, label };
                    self.0.apply(Command::Do { actor: Actor::of(session), op: op.into() });
                }
            }
            "sessions" => {
                (0..count).for_each(|_| {
                    self.0.open();
                });
            }
            other => panic!("no shape '{other}'"),
        }
    }
}

/// Time that this process has had a processor: others use the machine too.
fn on_cpu() -> Duration {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID);
    Duration::from(now.unwrap_or_else(|error| panic!("{error}")))
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
        let mut filler = Filler(MeasuredLog::new(Rules { max_state_bytes: u64::MAX, ..Rules::default() }));
        filler.fill(&shape, count);
        let to = std::fs::File::create(arguments.next().unwrap_or_default()).unwrap_or_else(|e| panic!("{e}"));
        return filler.0.state.write_snapshot(to).unwrap_or_else(|e| panic!("{e}"));
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
