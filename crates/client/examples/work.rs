//! Work that is done once: a payment behind a gate, and the items of a queue.
//!
//! `cargo run -p lockkeeper-client --example work`

mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper_client::api::gates::Finish;
use lockkeeper_client::api::{Code, Data};
use lockkeeper_client::recipes::{Begun, Queue, RecipeError};
use support::other::Other;
use support::{Outcome, check, own, session, session_for};

const DAY: Duration = Duration::from_secs(24 * 3600);
const PATIENCE: Duration = Duration::from_secs(30);
const ITEMS: usize = 200;
const TAKERS: usize = 5;
type Done = Arc<Mutex<BTreeMap<String, u32>>>;

#[tokio::main]
async fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    if let (Some("begin"), Some(key)) = (arguments.next().as_deref(), arguments.next()) {
        return begin_and_hang(&key).await;
    }
    gate().await?;
    queue().await
}

/// The part of the other process: begins, and never comes to the end.
async fn begin_and_hang(key: &str) -> Outcome {
    let session = session_for("to be killed", Duration::from_secs(5)).await?;
    let Begun::Proceed(ticket) = session.gate(key).begin("refund 7").await? else {
        return Err("another worker does it".into());
    };
    println!("{}", ticket.token());
    Err(ticket.lost().await.into())
}

/// Forty requests for one payment: it is made once, and all get the receipt. Then a worker is killed in the middle: the
/// next one may begin when its session has expired, and a late report of the dead worker is refused.
async fn gate() -> Outcome {
    let sessions = [session("till 1").await?, session("till 2").await?, session("till 3").await?];
    let key = own("payment");
    let payments = Arc::new(AtomicU32::new(0));
    let mut requests = Vec::new();
    for number in 0..40 {
        let (gate, payments) = (sessions[number % 3].gate(&key), payments.clone());
        requests.push(tokio::spawn(async move {
            let pay = async |token: u64| {
                let number = payments.fetch_add(1, Ordering::SeqCst) + 1;
                tokio::time::sleep(Duration::from_millis(100)).await;
                Ok::<_, std::io::Error>(format!("receipt {number}, token {token}").into_bytes())
            };
            gate.run_once("10.00 EUR to Ann", DAY, pay).await
        }));
    }
    let mut receipts = Vec::new();
    for request in requests {
        receipts.push(request.await??);
    }
    let here = receipts.iter().filter(|once| once.ran_here).count();
    check(payments.load(Ordering::SeqCst) == 1 && here == 1, "40 requests, one payment")?;
    check(receipts.iter().all(|once| once.result == receipts[0].result), "and one receipt for all")?;
    let other = sessions[0].gate(&key).begin("99.00 EUR to Bob").await;
    let refused = other.err().and_then(|error| error.code()) == Some(Code::GateMismatch);
    check(refused, "another payment under the same key is refused")?;

    let key = own("refund");
    let (worker, token) = Other::start(&["begin", &key])?;
    let token: u64 = token.parse()?;
    let gate = sessions[0].gate(&key);
    let Begun::InProgress(underway) = gate.begin("refund 7").await? else {
        return Err("the other process should be at it".into());
    };
    check(underway.token == token, "another process is at the refund")?;
    worker.kill()?;
    let killed = Instant::now();
    let refund = gate.run_once("refund 7", DAY, async |_| Ok::<_, std::io::Error>(b"refunded".to_vec()));
    let once = tokio::time::timeout(PATIENCE, refund).await??;
    println!("taken over {:?} after the kill", killed.elapsed());
    check(once.ran_here && once.token > token, "killed in the middle, it was taken over under a larger token")?;
    let late = Finish { token, result: Data::from_bytes(b"too late"), keep_ms: None, keep: None };
    let late = sessions[1].client().gate_finish(&key, &late).await;
    check(late.err().and_then(|error| error.code()) == Some(Code::GateNotPending), "a late result is refused")
}

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

/// Five consumers share 200 items. One of them keeps returning items, and one dies with an item; every item is
/// acknowledged exactly once.
async fn queue() -> Outcome {
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
