//! Four parties compute in three rounds: no party begins a round before all have come, and none ends it before all are
//! done. In the last round one of them dies inside, and the others are not held up.
//!
//! `cargo run -p lockkeeper-client --example double_barrier`

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper_client::recipes::DoubleBarrier;
use support::{Outcome, check, own, session, session_for};

const PARTIES: usize = 4;
const ROUNDS: usize = 3;

/// How many have arrived at, and how many have finished, all rounds together.
#[derive(Default)]
struct Seen {
    arrived: AtomicUsize,
    finished: AtomicUsize,
}

async fn party(barrier: DoubleBarrier, seen: Arc<Seen>, rounds: usize) -> Outcome {
    for round in 0..rounds {
        seen.arrived.fetch_add(1, Ordering::SeqCst);
        let entered = barrier.enter().await?;
        if seen.arrived.load(Ordering::SeqCst) < (round + 1) * PARTIES {
            return Err("CHECK FAILED: a round began before all had arrived".into());
        }
        seen.finished.fetch_add(1, Ordering::SeqCst);
        entered.leave().await?;
        if seen.finished.load(Ordering::SeqCst) < (round + 1) * PARTIES {
            return Err("CHECK FAILED: a round ended before all had finished".into());
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome {
    let path = format!("/{}", own("double-barrier"));
    let parties = u32::try_from(PARTIES)?;
    let seen = Arc::new(Seen::default());
    let mut tasks = Vec::new();
    let mut sessions = Vec::new();
    for number in 0..PARTIES {
        let session = session(&format!("party {number}")).await?;
        tasks.push(tokio::spawn(party(session.double_barrier(&path, parties)?, seen.clone(), ROUNDS)));
        sessions.push(session);
    }
    for task in tasks {
        task.await??;
    }
    check(true, "every round began and ended with all of them")?;

    let short_lived = session_for("dies", Duration::from_secs(5)).await?;
    let dying = short_lived.double_barrier(&path, parties)?;
    let entering: Vec<_> = sessions[1..]
        .iter()
        .map(|session| {
            let barrier = session.double_barrier(&path, parties);
            tokio::spawn(async move { barrier?.enter().await })
        })
        .collect();
    let inside = dying.enter().await?;
    let mut leaving = Vec::new();
    for task in entering {
        leaving.push(tokio::spawn(task.await??.leave()));
    }
    check(leaving.iter().all(|task| !task.is_finished()), "they wait for the one that is still inside")?;
    short_lived.close().await?;
    for task in leaving {
        task.await??;
    }
    drop(inside);
    println!("double barrier {ROUNDS} rounds of {PARTIES}, and one with a death: ok");
    Ok(())
}
