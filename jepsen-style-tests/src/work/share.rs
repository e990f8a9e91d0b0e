//! Tasks of one process on one lock, alternately with and without sharing it inside the process.
//!
//! While the lock is shared, the holders themselves count, under the lock, how often it is handed over under one grant.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use lockkeeper_client::Session;
use lockkeeper_client::locks::{Lock, Sharing};
use parking_lot::Mutex;

use super::{Common, failed};
use crate::record::{WorkerEvent, boot_us, tell};

/// See the module's text.
#[derive(Args, Clone)]
pub(super) struct Share {
    /// The lock.
    #[arg(long)]
    lock: String,
    /// How many tasks.
    #[arg(long)]
    tasks: u32,
    /// How many legs, of which every other one shares.
    #[arg(long)]
    legs: u32,
    /// How long each leg is, in milliseconds.
    #[arg(long)]
    leg_ms: u64,
    /// The cap: hand-overs inside the process in a row.
    #[arg(long)]
    max_passes: u32,
    /// The cap: how long in a row, in milliseconds.
    #[arg(long)]
    max_time_ms: u64,
}

/// The hands under the present token. Changed by whoever holds the lock only.
#[derive(Debug, Default)]
struct Hands {
    token: u64,
    holds: u64,
    first_us: u64,
    last_us: u64,
    /// Somebody is inside: two at once would be the end of it.
    taken: bool,
}

impl Hands {
    fn tell(&self) {
        if self.holds > 0 {
            let (token, holds, first_us, last_us) = (self.token, self.holds, self.first_us, self.last_us);
            tell(0, WorkerEvent::Streak { token, holds, first_us, last_us });
        }
    }
}

pub(super) async fn run(common: &Common, work: Share) -> Result<Vec<Session>, String> {
    let session = common.open(0).await?;
    for leg in 0..work.legs {
        let shared = leg % 2 == 1;
        let lock = session.lock(&work.lock);
        let lock = if shared {
            lock.shared_in_process(Sharing {
                max_passes: work.max_passes,
                max_time: Duration::from_millis(work.max_time_ms),
            })
        } else {
            lock
        };
        let hands = Arc::new(Mutex::new(Hands::default()));
        let (began_us, until_us) = (boot_us(), boot_us() + work.leg_ms * 1_000);
        let tasks: Vec<_> =
            (0..work.tasks).map(|task| tokio::spawn(one(lock.clone(), Arc::clone(&hands), task, until_us))).collect();
        let mut handoffs = 0;
        for task in tasks {
            handoffs += task.await.map_err(|error| error.to_string())??;
        }
        hands.lock().tell();
        tell(0, WorkerEvent::Leg { shared, handoffs, micros: boot_us() - began_us });
    }
    Ok(vec![session])
}

async fn one(lock: Lock, hands: Arc<Mutex<Hands>>, task: u32, until_us: u64) -> Result<u64, String> {
    let mut handoffs = 0;
    while boot_us() < until_us {
        let left = Duration::from_micros(until_us.saturating_sub(boot_us()));
        let guard = match tokio::time::timeout(left, lock.lock()).await {
            Ok(Ok(guard)) => guard,
            Ok(Err(error)) => {
                failed(task, "lock", &error).await;
                continue;
            }
            Err(_) => break,
        };
        enter(&hands, guard.token())?;
        // Room for another to come in, if the lock let it.
        tokio::task::yield_now().await;
        leave(&hands);
        handoffs += 1;
        if let Err(error) = guard.release().await {
            failed(task, "release", &error).await;
        }
    }
    Ok(handoffs)
}

fn enter(hands: &Mutex<Hands>, token: u64) -> Result<(), String> {
    let mut hands = hands.lock();
    if hands.taken {
        return Err(format!("token {token} was given out while token {} was in hands", hands.token));
    }
    if hands.token != token {
        hands.tell();
        *hands = Hands { token, first_us: boot_us(), ..Hands::default() };
    }
    hands.taken = true;
    hands.holds += 1;
    Ok(())
}

fn leave(hands: &Mutex<Hands>) {
    let mut hands = hands.lock();
    (hands.taken, hands.last_us) = (false, boot_us());
}
