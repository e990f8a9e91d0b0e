//! Trying repeatedly with a growing, random pause, instead of queueing: for work that may be skipped.
//!
//! `cargo run -p lockkeeper-client --example spin_lock`

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper_client::Error;
use lockkeeper_client::locks::Backoff;
use support::{Outcome, check, own, session};

const TASKS: u32 = 6;

#[tokio::main]
async fn main() -> Outcome {
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
    for _ in 0..TASKS {
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
