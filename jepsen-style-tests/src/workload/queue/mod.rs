//! `queue`: items put and taken, acknowledged, given back and let fall. Each item that was put is acknowledged at most once and by somebody in the
//! end, nobody is given what another has at the time, and items are given out in the order in which they were put (P1, P4, P6, P9).

mod black_box;
mod check;

use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::Session;
use lockkeeper_client::recipes::{Delivery, Queue, RecipeError};
use rand::Rng as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::hand::{Sure, sure_recipe};
use super::seat::Seat;
use super::{Begun, ClientContext, Recorded, Workload};
use crate::check::Check;
use crate::record::boot_us;

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
struct Item {
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
struct Given {
    name: String,
    payload: String,
    attempt: u32,
}

#[derive(Debug)]
pub(super) struct Queues;

#[async_trait]
impl Workload for Queues {
    fn name(&self) -> &'static str {
        "queue"
    }

    fn about(&self) -> &'static str {
        "a queue whose items are taken, acknowledged, given back and let fall: none lost, none done twice, in order"
    }

    fn promises(&self) -> &'static str {
        "P1 P2 P4 P5 P6 P7 P9 P10"
    }

    async fn client(&self, context: ClientContext) -> Result<(), String> {
        let puts = context.client.is_multiple_of(2);
        let mut seat = Seat::new(context)?;
        let mut number = 0;
        while let Some(session) = seat.session().await {
            let Ok(queue) = session.queue(PATH) else { return Err(format!("{PATH} cannot be used")) };
            if puts {
                number += 1;
                put(&seat, &queue, format!("{}.{number}", seat.hand.context.client)).await;
                seat.hand.think(20..80).await;
            } else {
                take(&mut seat, session, queue).await;
                seat.hand.think(0..20).await;
            }
        }
        seat.close().await;
        Ok(())
    }

    async fn conclude(&self, context: ClientContext) -> Result<(), String> {
        let mut seat = Seat::new(context)?;
        let until_us = boot_us() + u64::try_from(DRAINED_WITHIN.as_micros()).unwrap_or(u64::MAX);
        let mut left = None;
        while left != Some(0) && boot_us() < until_us {
            let Some(session) = seat.session().await else { return Ok(()) };
            let Ok(queue) = session.queue(PATH) else { return Err(format!("{PATH} cannot be used")) };
            let begun = seat.teller().begin(TAKE, &Taker { session: session.id() });
            match queue.take_timeout(Duration::from_millis(500)).await {
                Ok(Some(delivery)) => {
                    let given = given(&delivery);
                    begun.ok(&given, None);
                    acknowledge(&seat, &given, delivery).await;
                }
                Ok(None) => begun.fail("nothing there"),
                Err(error) => end_failed(begun, &error),
            }
            left = queue.len().await.ok();
        }
        seat.teller().told(LEFT, &left, None);
        seat.close().await;
        Ok(())
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        check::all(run)
    }
}

fn given(delivery: &Delivery) -> Given {
    Given {
        name: delivery.name().to_owned(),
        payload: String::from_utf8_lossy(delivery.data()).into_owned(),
        attempt: delivery.attempt(),
    }
}

fn end_failed(begun: Begun, error: &RecipeError) {
    match sure_recipe(error) {
        Sure::Unknown => begun.info(&error.to_string()),
        Sure::Refused(_) | Sure::NotDone => begun.fail(&error.to_string()),
    }
}

async fn put(seat: &Seat, queue: &Queue, payload: String) {
    let begun = seat.teller().begin(PUT, &Item { payload: payload.clone() });
    match queue.put(payload.as_bytes()).await {
        Ok(name) => begun.ok(&Named { name }, None),
        Err(error) => {
            end_failed(begun, &error);
            seat.rest().await;
        }
    }
}

async fn take(seat: &mut Seat, session: Session, queue: Queue) {
    let wait = Duration::from_millis(seat.hand.rng.random_range(50..1_000));
    let only_tries = seat.hand.chance(20);
    let begun = seat.teller().begin(TAKE, &Taker { session: session.id() });
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
            seat.rest().await;
            return;
        }
    };
    let given = given(&delivery);
    begun.ok(&given, None);
    let longest_ms = if seat.hand.chance(5) { 500 } else { 30 };
    seat.hand.think(0..longest_ms).await;
    match seat.hand.rng.random_range(0..100) {
        0..80 => acknowledge(seat, &given, delivery).await,
        80..88 => {
            let begun = seat.teller().begin(BACK, &given);
            match delivery.give_back().await {
                Ok(()) => begun.ok(&Value::Null, None),
                Err(error) => end_failed(begun, &error),
            }
        }
        88..95 => {
            let begun = seat.teller().begin(BACK, &given);
            drop(delivery);
            begun.info("dropped");
        }
        _ => {
            // With its session.
            seat.close().await;
            drop(delivery);
        }
    }
}

async fn acknowledge(seat: &Seat, given: &Given, delivery: Delivery) {
    let begun = seat.teller().begin(ACK, given);
    match delivery.ack().await {
        Ok(()) => begun.ok(&Value::Null, None),
        Err(error) => end_failed(begun, &error),
    }
}
