//! A lock: waiting for it and losing it, sharing it in one process, and taking it without standing in its queue.
//!
//! `cargo run -p lockkeeper-client --example lock`

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_client::locks::Backoff;
use lockkeeper_client::{Error, Lock, Sharing};
use support::{Outcome, check, own, session};

const SHARERS: usize = 16;
const TURNS: usize = 15;
const SPINNERS: u32 = 6;

#[tokio::main]
async fn main() -> Outcome {
    waiting().await?;
    sharing().await?;
    spinning().await
}

/// Waiting for a lock, trying it, and waiting with a timeout; first come, first served; and what a guard reports.
async fn waiting() -> Outcome {
    let name = own("door");
    let (ann, bob) = (session("ann").await?, session("bob").await?);
    let guard = ann.lock(&name).label("ann is in").lock().await?;
    println!("ann holds {} with token {} for {:?} to come", guard.name(), guard.token(), guard.remaining());

    check(bob.lock(&name).try_lock().await?.is_none(), "bob does not get in by trying")?;
    let waited = bob.lock(&name).lock_timeout(Duration::from_millis(200)).await?;
    check(waited.is_none(), "nor by waiting for 200 ms")?;

    // Work that needs the lock runs inside the guard: it is dropped if the lock is lost. And it shows the token.
    let shown = guard.run(async { format!("written with token {}", guard.token()) }).await?;
    check(shown.ends_with(&guard.token().to_string()), "work runs while the lock is held")?;

    // Those who wait are served in the order in which they came.
    let mut waiting = Vec::new();
    for number in 0..5_u64 {
        let lock = session(&format!("waiter {number}")).await?.lock(&name);
        waiting.push(tokio::spawn(async move {
            let guard = lock.lock().await?;
            let token = guard.token();
            guard.release().await?;
            Ok::<u64, Error>(token)
        }));
        while bob.client().lock(&name).await?.waiting <= number {
            tokio::task::yield_now().await;
        }
    }
    let first = guard.token();
    guard.release().await?;
    let mut tokens = vec![first];
    for waiter in waiting {
        tokens.push(waiter.await??);
    }
    check(tokens.is_sorted(), "first come, first served, with growing tokens")?;

    // A guard that is lost says so.
    let guard = ann.lock(&name).lock().await?;
    bob.client().force_release(&name, guard.token()).await?;
    let because = guard.lost().await;
    println!("ann's lock is lost: {because}");
    check(guard.is_lost() && guard.remaining().is_zero(), "the guard knows that it is lost")?;
    check(matches!(guard.run(async {}).await, Err(Error::Lost(_))), "and runs nothing any more")
}

/// How long all turns took, and under how many grants of the cluster.
async fn turns(lock: Lock) -> Result<(Duration, usize), Box<dyn std::error::Error + Send + Sync>> {
    let began = Instant::now();
    let work = |lock: Lock| async move {
        let mut tokens = BTreeSet::new();
        for _ in 0..TURNS {
            let guard = lock.lock().await?;
            tokens.insert(guard.token());
            guard.release().await?;
        }
        Ok::<_, Error>(tokens)
    };
    let tasks: Vec<_> = (0..SHARERS).map(|_| tokio::spawn(work(lock.clone()))).collect();
    let mut grants = BTreeSet::new();
    for task in tasks {
        grants.extend(task.await??);
    }
    Ok((began.elapsed(), grants.len()))
}

/// Sixteen tasks of one process share one place in the cluster's queue: most hand-overs need no request to the cluster.
/// Another process is still served, because a grant is passed on a bounded number of times.
async fn sharing() -> Outcome {
    let session_here = session("here").await?;
    let (alone, alone_grants) = turns(session_here.lock(own("alone"))).await?;
    let sharing = Sharing { max_passes: 32, max_time: Duration::from_millis(100) };
    let name = own("shared");
    let shared = session_here.lock(&name).shared_in_process(sharing);
    let (together, together_grants) = turns(shared.clone()).await?;
    println!("{} turns: {alone:?} in {alone_grants} grants, shared {together:?} in {together_grants}", SHARERS * TURNS);
    check(alone_grants == SHARERS * TURNS, "without sharing each turn is a grant of its own")?;
    check(together_grants * 4 < alone_grants, "with sharing one grant serves many turns")?;

    // While the tasks here go round and round, another process waits once.
    let busy = tokio::spawn(turns(shared));
    let guest = session("elsewhere").await?.lock(&name).lock_timeout(Duration::from_secs(10)).await?;
    check(guest.is_some(), "another process is served meanwhile")?;
    if let Some(guest) = guest {
        guest.release().await?;
    }
    busy.await??;
    Ok(())
}

/// Trying repeatedly with a growing, random pause, instead of queueing: for work that may be skipped.
async fn spinning() -> Outcome {
    let name = own("refresh");
    let backoff = Backoff { first: Duration::from_millis(2), longest: Duration::from_millis(50) };
    let (holder, other) = (session("holder").await?, session("other").await?);

    let guard = holder.spin_lock(&name, backoff).lock().await?;
    let spinning = other.spin_lock(&name, backoff);
    check(spinning.try_lock().await?.is_none(), "it is taken")?;
    check(spinning.lock_timeout(Duration::from_millis(100)).await?.is_none(), "and stays so for 100 ms")?;
    check(holder.client().lock(&name).await?.waiting == 0, "a spinning client does not wait in the queue")?;
    guard.release().await?;

    let (inside, overlaps) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..SPINNERS {
        let (lock, inside, overlaps) = (other.spin_lock(&name, backoff), inside.clone(), overlaps.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..5 {
                let guard = lock.lock().await?;
                overlaps.fetch_add(inside.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await?;
            }
            Ok::<(), Error>(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    check(overlaps.load(Ordering::SeqCst) == 0, "one at a time, in no particular order")
}
