//! What the end of a large session costs the log: `cargo bench -p lockkeeper-core --bench endings`. Prints; asserts
//! nothing.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // it measures the pure core from outside, with a clock

mod support;

use std::time::Duration;

use lockkeeper_core::*;

use support::{MeasuredLog, acquire_one, create, on_cpu};

/// The shortest, the median and the longest of a few.
fn measure(log: &MeasuredLog, session: SessionId, beside_a_copy: bool) -> [Duration; 3] {
    let one = |_| {
        let mut own = log.clone();
        if !beside_a_copy {
            // Everything that the end will touch is made this copy's own first.
            let mut bytes = Vec::new();
            own.state.write_snapshot(&mut bytes).unwrap_or_else(|e| panic!("{e}"));
            own.state = State::read_snapshot(&bytes[..]).unwrap_or_else(|e| panic!("{e}"));
        }
        let began = on_cpu();
        let outcome = own.apply(Command::CloseSession { session });
        let took = on_cpu() - began;
        assert!(!outcome.events.is_empty());
        took
    };
    let mut took: Vec<Duration> = (0..9).map(one).collect();
    took.sort();
    [took[0], took[4], took[8]]
}

fn op_of(shape: &str, n: u32) -> Op {
    match shape {
        "nodes of one directory" => create(&format!("/own/{n:08}"), NodeKind::Ephemeral),
        "locks of its own" => acquire_one(&format!("own/{:08}", n.wrapping_mul(2_654_435_761)), n),
        _ => acquire_one("one", n),
    }
}

fn main() {
    let others = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(200_000_u32);
    let mut log = MeasuredLog::new(Rules::default().max_state_bytes);
    log.open();
    log.make_nodes(others);
    let most = std::env::args().nth(2).and_then(|n| n.parse().ok()).unwrap_or(100_000_u32);
    for count in [10_000_u32, 100_000].into_iter().filter(|count| *count <= most) {
        for shape in ["nodes of one directory", "locks of its own", "places in one queue"] {
            let mut own = log.clone();
            let session = own.open();
            own.act(session, create("/own", NodeKind::Persistent));
            for n in 0..count {
                own.act(session, op_of(shape, n));
            }
            for beside_a_copy in [false, true] {
                let [shortest, median, longest] = measure(&own, session, beside_a_copy);
                println!(
                    "end of a session with {count} {shape}, a copy kept: {beside_a_copy}: {shortest:.2?}, \
                     {median:.2?}, {longest:.2?} (shortest, median, longest)"
                );
            }
        }
    }
}
