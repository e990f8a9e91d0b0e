//! Workers that wait for each other: at a barrier, in rounds, and for the last of several parts.
//!
//! `cargo run -p lockkeeper-client --example barriers`

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper_client::recipes::{DoubleBarrier, RecipeError};
use support::{Outcome, check, own, session, session_for};

const WORKERS: usize = 8;
const PARTIES: usize = 4;
const ROUNDS: usize = 3;
const PARTS: u32 = 10;

#[tokio::main]
async fn main() -> Outcome {
    barrier().await?;
    double_barrier().await?;
    latch().await
}

/// Eight workers wait at a barrier: none passes before it is removed, and then all pass.
async fn barrier() -> Outcome {
    let session = session("barrier").await?;
    let barrier = session.barrier(&format!("/{}", own("barrier")))?;
    barrier.block().await?;
    let passed = Arc::new(AtomicUsize::new(0));
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        let (barrier, passed) = (barrier.clone(), passed.clone());
        workers.push(tokio::spawn(async move {
            barrier.wait().await?;
            passed.fetch_add(1, Ordering::SeqCst);
            Ok::<_, RecipeError>(())
        }));
    }
    // Time for a worker that does not wait to give itself away.
    tokio::time::sleep(Duration::from_millis(300)).await;
    check(passed.load(Ordering::SeqCst) == 0, "no worker passes while the barrier exists")?;
    barrier.remove().await?;
    for worker in workers {
        worker.await??;
    }
    println!("barrier {} of {WORKERS} passed after it was removed: ok", passed.load(Ordering::SeqCst));
    Ok(())
}

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

/// Four parties compute in three rounds: no party begins a round before all have come, and none ends it before all are
/// done. In the last round one of them dies inside, and the others are not held up.
async fn double_barrier() -> Outcome {
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

/// A coordinator waits until ten workers have each done their part.
async fn latch() -> Outcome {
    let path = format!("/{}", own("latch"));
    let coordinator = session("coordinator").await?.latch(&path, PARTS)?;
    let workers = session("workers").await?;
    let done = Arc::new(AtomicU32::new(0));
    let waiting = tokio::spawn({
        let (latch, done) = (coordinator.clone(), done.clone());
        async move { latch.wait().await.map(|()| done.load(Ordering::SeqCst)) }
    });
    let mut tasks = Vec::new();
    for _ in 0..PARTS {
        let (latch, done) = (workers.latch(&path, PARTS)?, done.clone());
        tasks.push(tokio::spawn(async move {
            done.fetch_add(1, Ordering::SeqCst);
            latch.count_down().await
        }));
    }
    for task in tasks {
        task.await??;
    }
    let done_when_open = waiting.await??;
    check(done_when_open == PARTS, "the latch opened when all were done")?;
    check(coordinator.remaining().await? == 0, "and it stays open")?;
    coordinator.remove().await?;
    println!("latch {done_when_open} of {PARTS}: ok");
    Ok(())
}
