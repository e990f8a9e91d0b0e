//! Twelve philosophers around a table take two forks each, both or none, in one transaction: no philosopher starves,
//! and there is no deadlock.
//!
//! `cargo run -p lockkeeper-client --example multi_lock`

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use support::{Outcome, check, own, session};

const SEATS: usize = 12;
const MEALS: usize = 5;

#[tokio::main]
async fn main() -> Outcome {
    let forks: Vec<String> = (0..SEATS).map(|fork| own(&format!("fork {fork}"))).collect();
    let taken: Arc<Vec<AtomicBool>> = Arc::new((0..SEATS).map(|_| AtomicBool::new(false)).collect());
    let mut dinner = Vec::new();
    for seat in 0..SEATS {
        let (left, right) = (seat, (seat + 1) % SEATS);
        let pair = session(&format!("philosopher {seat}")).await?.multi_lock([&forks[left], &forks[right]]);
        let taken = taken.clone();
        dinner.push(tokio::spawn(async move {
            let mut twice = 0;
            for _ in 0..MEALS {
                let guard = pair.lock().await?;
                for fork in [left, right] {
                    twice += u32::from(taken[fork].swap(true, Ordering::SeqCst));
                }
                tokio::task::yield_now().await;
                for fork in [left, right] {
                    taken[fork].store(false, Ordering::SeqCst);
                }
                guard.release().await?;
            }
            Ok::<u32, lockkeeper_client::Error>(twice)
        }));
    }
    let mut twice = 0;
    for philosopher in dinner {
        twice += philosopher.await??;
    }
    check(twice == 0, &format!("{SEATS} philosophers had {MEALS} meals each, and no fork was in two hands"))?;

    let (ann, bob) = (session("ann").await?, session("bob").await?);
    let one = bob.lock(&forks[1]).lock().await?;
    let two = ann.multi_lock([&forks[0], &forks[1]]).try_lock().await?;
    check(two.is_none(), "not both while one is taken")?;
    let other = bob.lock(&forks[0]).try_lock().await?.ok_or("the other fork was kept")?;
    check(other.token() > one.token(), "and the other is not kept either")?;
    one.release().await?;
    Ok(other.release().await?)
}
