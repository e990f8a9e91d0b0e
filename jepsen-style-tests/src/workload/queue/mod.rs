//! `queue`: items are put and taken, acknowledged, given back, or lost with their taker's session. Each item that was
//! put is acknowledged at most once and in the end by somebody, no item is with two clients at a time, and items are
//! delivered in the order in which they were put (P1, P4, P6, P9).

mod black_box;
mod check;

use lockkeeper_client::recipes::{Delivery, Queue, RecipeError};

use super::client_kit::sure_recipe;
use crate::workload::prelude::*;

/// Where the queue is.
const PATH: &str = "/queues/jepsen";
/// How long the queue may take to be emptied in the end.
const DRAINED_WITHIN: Duration = Duration::from_secs(30);

// Operations.
const PUT: &str = "put";
const TAKE: &str = "take";
const ACK: &str = "ack";
/// Giving back, also by dropping it; then nobody says when it was.
const BACK: &str = "back";
/// Told at the end: whether the queue was empty, and how many items it had where it was not.
const LEFT: &str = "left";

/// Argument of `put`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct QueueItem {
    payload: String,
}

/// Answer of `put`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Named {
    name: String,
}

/// Argument of `take`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Taker {
    session: u64,
}

/// Answer of `take`, and argument of `ack` and `back`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Taken {
    name: String,
    payload: String,
    attempt: u32,
}

#[derive(Debug)]
pub(super) struct QueueWorkload;

#[async_trait]
impl Workload for QueueWorkload {
    fn facts(&self) -> Facts {
        Facts {
            name: "queue",
            about: "a queue whose items are taken, acknowledged, given back and let fall: none lost, none done twice, \
                in order",
            promises: "P1 P2 P4 P5 P6 P7 P9 P10",
        }
    }

    async fn client(&self, context: ClientContext) -> Result<(), String> {
        let puts = context.client.is_multiple_of(2);
        let mut lock_client = LockClient::new(context)?;
        let mut number = 0;
        while let Some(session) = lock_client.session().await {
            let Ok(queue) = session.queue(PATH) else { return Err(format!("{PATH} cannot be used")) };
            if puts {
                number += 1;
                put(&lock_client, &queue, format!("{}.{number}", lock_client.kit.context.client)).await;
                lock_client.kit.think(20..80).await;
            } else {
                take(&mut lock_client, session, queue).await;
                lock_client.kit.think(0..20).await;
            }
        }
        lock_client.close().await;
        Ok(())
    }

    async fn conclude(&self, context: ClientContext) -> Result<(), String> {
        let mut lock_client = LockClient::new(context)?;
        let until_us = boot_us() + u64::try_from(DRAINED_WITHIN.as_micros()).unwrap_or(u64::MAX);
        let mut left = None;
        while left != Some(0) && boot_us() < until_us {
            let Some(session) = lock_client.session().await else { return Ok(()) };
            let Ok(queue) = session.queue(PATH) else { return Err(format!("{PATH} cannot be used")) };
            let begun = lock_client.recorder().begin(TAKE, &Taker { session: session.id() });
            match queue.take_timeout(Duration::from_millis(500)).await {
                Ok(Some(delivery)) => {
                    let given = given(&delivery);
                    begun.ok(&given, None);
                    acknowledge(&lock_client, &given, delivery).await;
                }
                Ok(None) => begun.fail("nothing there"),
                Err(error) => end_failed(begun, &error),
            }
            left = queue.len().await.ok();
        }
        lock_client.recorder().note(LEFT, &left, None);
        lock_client.close().await;
        Ok(())
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        check::all(run)
    }
}

fn given(delivery: &Delivery) -> Taken {
    Taken {
        name: delivery.name().to_owned(),
        payload: String::from_utf8_lossy(delivery.data()).into_owned(),
        attempt: delivery.attempt(),
    }
}

fn end_failed(begun: OpenOp, error: &RecipeError) {
    sure_recipe(error).end(begun, &error.to_string());
}

async fn put(lock_client: &LockClient, queue: &Queue, payload: String) {
    let begun = lock_client.recorder().begin(PUT, &QueueItem { payload: payload.clone() });
    match queue.put(payload.as_bytes()).await {
        Ok(name) => begun.ok(&Named { name }, None),
        Err(error) => {
            end_failed(begun, &error);
            lock_client.rest().await;
        }
    }
}

async fn take(lock_client: &mut LockClient, session: Session, queue: Queue) {
    let wait = Duration::from_millis(lock_client.kit.rng.random_range(50..1_000));
    let only_tries = lock_client.kit.chance(20);
    let begun = lock_client.recorder().begin(TAKE, &Taker { session: session.id() });
    let taken = if only_tries { queue.try_take().await } else { queue.take_timeout(wait).await };
    // Nothing but the delivery is to keep the session from here on.
    drop((session, queue));
    let delivery = match taken {
        Ok(Some(delivery)) => delivery,
        Ok(None) => {
            begun.fail("nothing there in time");
            return;
        }
        Err(error) => {
            end_failed(begun, &error);
            lock_client.rest().await;
            return;
        }
    };
    let given = given(&delivery);
    begun.ok(&given, None);
    let longest_ms = if lock_client.kit.chance(5) { 500 } else { 30 };
    lock_client.kit.think(0..longest_ms).await;
    match lock_client.kit.rng.random_range(0..100) {
        0..80 => acknowledge(lock_client, &given, delivery).await,
        80..88 => {
            let begun = lock_client.recorder().begin(BACK, &given);
            match delivery.give_back().await {
                Ok(()) => begun.ok(&Value::Null, None),
                Err(error) => end_failed(begun, &error),
            }
        }
        88..95 => {
            let begun = lock_client.recorder().begin(BACK, &given);
            drop(delivery);
            begun.info("dropped");
        }
        _ => {
            // With its session.
            lock_client.close().await;
            drop(delivery);
        }
    }
}

async fn acknowledge(lock_client: &LockClient, given: &Taken, delivery: Delivery) {
    let begun = lock_client.recorder().begin(ACK, given);
    match delivery.ack().await {
        Ok(()) => begun.ok(&Value::Null, None),
        Err(error) => end_failed(begun, &error),
    }
}
