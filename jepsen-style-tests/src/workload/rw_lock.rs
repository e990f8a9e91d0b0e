//! `rw-lock`: readers and writers of two locks; writers now and then become readers without letting go.

use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::Session;
use lockkeeper_client::api::locks::Mode;
use lockkeeper_client::locks::{Guard, WriteGuard};
use rand::Rng as _;
use serde_json::Value;

use super::seat::{self, EMPTY_WITHIN, LEAVE_PERCENT, Seat, asks, end_failed, under};
use super::tells::{self, Under};
use super::{ClientContext, Recorded, Workload};
use crate::check::{Check, locks};

const LOCKS: [&str; 2] = ["jepsen/shelf-a", "jepsen/shelf-b"];
const LONGEST_WAIT_MS: u64 = 1_500;
const READERS_PERCENT: u32 = 65;

pub(super) struct ReadersAndWriters;

#[async_trait]
impl Workload for ReadersAndWriters {
    fn name(&self) -> &'static str {
        "rw-lock"
    }

    fn about(&self) -> &'static str {
        "readers and writers; writers that become readers"
    }

    fn promises(&self) -> &'static str {
        locks::PROMISES
    }

    async fn client(&self, context: ClientContext) -> Result<(), String> {
        let mut seat = Seat::new(context)?;
        while let Some(session) = seat.session().await {
            let name = LOCKS[seat.hand.rng.random_range(0..LOCKS.len())];
            if seat.hand.chance(READERS_PERCENT) {
                read(&mut seat, &session, name).await;
            } else {
                write(&mut seat, &session, name).await;
            }
            seat.hand.think(0..25).await;
        }
        seat.close().await;
        Ok(())
    }

    async fn conclude(&self, context: ClientContext) -> Result<(), String> {
        seat::conclude(context, &LOCKS, EMPTY_WITHIN).await
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        locks::readers_and_writers(run, &LOCKS)
    }
}

fn patience(seat: &mut Seat) -> (u64, Duration) {
    let wait_ms = if seat.hand.chance(10) { 0 } else { seat.hand.rng.random_range(100..LONGEST_WAIT_MS) };
    (wait_ms, Duration::from_millis(wait_ms))
}

async fn read(seat: &mut Seat, session: &Session, name: &str) {
    let (wait_ms, wait) = patience(seat);
    let asks = asks(name, Mode::Shared, wait_ms, session);
    let lock = session.rw_lock(name);
    let asked = async { if wait_ms == 0 { lock.try_read().await } else { lock.read_timeout(wait).await } };
    let Some(guard) = seat.acquire(&asks, asked).await else { return };
    let under = under(&asks, guard.token());
    stay(seat, &under, &guard).await;
    if seat.hand.chance(LEAVE_PERCENT) {
        return seat.leave(&under, guard).await;
    }
    seat.release(&under, guard).await;
}

async fn write(seat: &mut Seat, session: &Session, name: &str) {
    let (wait_ms, wait) = patience(seat);
    let asks = asks(name, Mode::Write, wait_ms, session);
    let lock = session.rw_lock(name);
    let asked = async { if wait_ms == 0 { lock.try_write().await } else { lock.write_timeout(wait).await } };
    let Some(guard) = seat.acquire(&asks, asked).await else { return };
    let under = under(&asks, guard.token());
    stay(seat, &under, &guard).await;
    if seat.hand.chance(30) {
        downgrade(seat, &under, guard).await;
    } else if seat.hand.chance(LEAVE_PERCENT) {
        seat.leave(&under, guard).await;
    } else {
        seat.release(&under, guard).await;
    }
}

async fn downgrade(seat: &mut Seat, under: &Under, guard: WriteGuard) {
    let begun = seat.teller().begin(tells::DOWNGRADE, under);
    match guard.downgrade().await {
        Ok(guard) => {
            begun.ok(&Value::Null, None);
            stay(seat, under, &guard).await;
            seat.release(under, guard).await;
        }
        Err(error) => {
            // Given back by now, or on the way there.
            let letting = seat.teller().begin(tells::RELEASE, under);
            end_failed(begun, &error);
            letting.info("after a downgrade that failed");
        }
    }
}

async fn stay<K>(seat: &mut Seat, under: &Under, guard: &Guard<K>) {
    if seat.hand.chance(10) {
        seat.verify(under).await;
    }
    let stay_ms = seat.hand.rng.random_range(0..20);
    tokio::time::sleep(Duration::from_millis(stay_ms)).await;
    seat.look(under, guard);
}
