//! Sixteen tasks of one process share one place in the cluster's queue: most hand-overs need no request to the cluster.
//! Another process is still served, because a grant is passed on a bounded number of times.
//!
//! `cargo run -p lockkeeper-client --example sharing`

mod support;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lockkeeper_client::{Error, Lock, Sharing};
use support::{Outcome, check, own, session};

const TASKS: usize = 16;
const EACH: usize = 15;

/// How long all turns took, and under how many grants of the cluster.
async fn turns(lock: Lock) -> Result<(Duration, usize), Box<dyn std::error::Error + Send + Sync>> {
    let began = Instant::now();
    let work = |lock: Lock| async move {
        let mut tokens = BTreeSet::new();
        for _ in 0..EACH {
            let guard = lock.lock().await?;
            tokens.insert(guard.token());
            guard.release().await?;
        }
        Ok::<_, Error>(tokens)
    };
    let tasks: Vec<_> = (0..TASKS).map(|_| tokio::spawn(work(lock.clone()))).collect();
    let mut grants = BTreeSet::new();
    for task in tasks {
        grants.extend(task.await??);
    }
    Ok((began.elapsed(), grants.len()))
}

#[tokio::main]
async fn main() -> Outcome {
    let session_here = session("here").await?;
    let (alone, alone_grants) = turns(session_here.lock(own("alone"))).await?;
    let sharing = Sharing { max_passes: 32, max_time: Duration::from_millis(100) };
    let name = own("shared");
    let shared = session_here.lock(&name).shared_in_process(sharing);
    let (together, together_grants) = turns(shared.clone()).await?;
    println!("{} turns: {alone:?} in {alone_grants} grants, shared {together:?} in {together_grants}", TASKS * EACH);
    check(alone_grants == TASKS * EACH, "without sharing each turn is a grant of its own")?;
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
