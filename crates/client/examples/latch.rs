//! A coordinator waits until ten workers have each done their part.
//!
//! `cargo run -p lockkeeper-client --example latch`

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use support::{Outcome, check, own, session};

const WORKERS: u32 = 10;

#[tokio::main]
async fn main() -> Outcome {
    let path = format!("/{}", own("latch"));
    let coordinator = session("coordinator").await?.latch(&path, WORKERS)?;
    let workers = session("workers").await?;
    let done = Arc::new(AtomicU32::new(0));
    let waiting = tokio::spawn({
        let (latch, done) = (coordinator.clone(), done.clone());
        async move { latch.wait().await.map(|()| done.load(Ordering::SeqCst)) }
    });
    let mut tasks = Vec::new();
    for _ in 0..WORKERS {
        let (latch, done) = (workers.latch(&path, WORKERS)?, done.clone());
        tasks.push(tokio::spawn(async move {
            done.fetch_add(1, Ordering::SeqCst);
            latch.count_down().await
        }));
    }
    for task in tasks {
        task.await??;
    }
    let done_when_open = waiting.await??;
    check(done_when_open == WORKERS, "the latch opened when all were done")?;
    check(coordinator.remaining().await? == 0, "and it stays open")?;
    coordinator.remove().await?;
    println!("latch {done_when_open} of {WORKERS}: ok");
    Ok(())
}
