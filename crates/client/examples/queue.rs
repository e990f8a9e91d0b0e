//! Five consumers share 200 items. One of them keeps returning items, and one dies with an item; every item is
//! acknowledged exactly once.
//!
//! `cargo run -p lockkeeper-client --example queue`

mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_client::recipes::{Queue, RecipeError};
use support::{Outcome, check, own, session, session_for};

const ITEMS: usize = 200;
const TAKERS: usize = 5;

type Done = Arc<Mutex<BTreeMap<String, u32>>>;

async fn take(queue: Queue, done: Done, gives_back: bool) -> Result<(), RecipeError> {
    while let Some(delivery) = queue.take_timeout(Duration::from_secs(3)).await? {
        if gives_back && delivery.attempt() == 1 {
            delivery.give_back().await?;
            continue;
        }
        let item = String::from_utf8_lossy(delivery.data()).into_owned();
        delivery.ack().await?;
        *done.lock().unwrap_or_else(PoisonError::into_inner).entry(item).or_default() += 1;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome {
    let path = format!("/{}", own("queue"));
    let producer = session("producer").await?;
    let queue = producer.queue(&path)?;
    for number in 0..ITEMS {
        queue.put(format!("item {number}").as_bytes()).await?;
    }
    let first = queue.take().await?;
    check(first.data() == b"item 0", "what was put first is taken first")?;
    first.give_back().await?;

    let dying = session_for("dies with an item", Duration::from_secs(5)).await?;
    let held = dying.queue(&path)?.take().await?;
    let done = Done::default();
    let mut takers = Vec::new();
    for number in 0..TAKERS {
        let session = session(&format!("taker {number}")).await?;
        takers.push(tokio::spawn(take(session.queue(&path)?, done.clone(), number == 0)));
    }
    // The close ends the session; the return of its item follows from that.
    dying.close().await?;
    held.lost().await;
    check(held.ack().await.is_err(), "the dead cannot acknowledge")?;
    for taker in takers {
        taker.await??;
    }
    let done = done.lock().unwrap_or_else(PoisonError::into_inner).clone();
    check(done.values().all(|times| *times == 1), "no item was acknowledged twice")?;
    check(queue.is_empty().await?, "nothing is left")?;
    check(done.len() == ITEMS, "no item was lost")?;
    println!("queue {} of {ITEMS} items acknowledged once: ok", done.len());
    Ok(())
}
