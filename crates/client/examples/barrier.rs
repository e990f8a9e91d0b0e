//! Eight workers wait at a barrier: none passes before it is removed, and then all pass.
//!
//! `cargo run -p lockkeeper-client --example barrier`

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::{Outcome, check, own, session};

const WORKERS: usize = 8;

#[tokio::main]
async fn main() -> Outcome {
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
            Ok::<_, lockkeeper_client::recipes::RecipeError>(())
        }));
    }
    // Time for a worker that does not wait to give itself away.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    check(passed.load(Ordering::SeqCst) == 0, "no worker passes while the barrier exists")?;
    barrier.remove().await?;
    for worker in workers {
        worker.await??;
    }
    println!("barrier {} of {WORKERS} passed after it was removed: ok", passed.load(Ordering::SeqCst));
    Ok(())
}
