//! Waiting for a lock, trying it, and waiting with a timeout; first come, first served; and what a guard reports.
//!
//! `cargo run -p lockkeeper-client --example lock`

mod support;

use std::time::Duration;

use lockkeeper_client::Error;
use support::{Outcome, check, own, session};

#[tokio::main]
async fn main() -> Outcome {
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
