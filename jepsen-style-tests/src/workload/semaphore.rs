//! `semaphore`: more clients than permits.

use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::Session;
use lockkeeper_client::api::locks::Mode;
use rand::Rng as _;

use super::seat::{self, EMPTY_WITHIN, LEAVE_PERCENT, Seat, asks, under};
use super::tells::Asks;
use super::{ClientContext, Recorded, Workload};
use crate::check::{Check, locks};

const SEMAPHORES: [(&str, u16); 2] = [("jepsen/berths-2", 2), ("jepsen/berths-3", 3)];
const LONGEST_WAIT_MS: u64 = 1_500;

pub(super) struct Permits;

#[async_trait]
impl Workload for Permits {
    fn name(&self) -> &'static str {
        "semaphore"
    }

    fn about(&self) -> &'static str {
        "semaphores of two and three permits, wanted by more"
    }

    fn promises(&self) -> &'static str {
        locks::PROMISES
    }

    async fn client(&self, context: ClientContext) -> Result<(), String> {
        let mut seat = Seat::new(context)?;
        while let Some(session) = seat.session().await {
            turn(&mut seat, &session).await;
            seat.hand.think(0..20).await;
        }
        seat.close().await;
        Ok(())
    }

    async fn conclude(&self, context: ClientContext) -> Result<(), String> {
        seat::conclude(context, &SEMAPHORES.map(|(name, _)| name), EMPTY_WITHIN).await
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        locks::semaphores(run, &SEMAPHORES)
    }
}

async fn turn(seat: &mut Seat, session: &Session) {
    let (name, permits) = SEMAPHORES[seat.hand.rng.random_range(0..SEMAPHORES.len())];
    let wait_ms = if seat.hand.chance(10) { 0 } else { seat.hand.rng.random_range(100..LONGEST_WAIT_MS) };
    let asks = Asks { permits: Some(permits), ..asks(name, Mode::Permit, wait_ms, session) };
    let semaphore = session.semaphore(name, permits);
    let asked = async {
        match wait_ms {
            0 => semaphore.try_acquire().await,
            _ => semaphore.acquire_timeout(Duration::from_millis(wait_ms)).await,
        }
    };
    let Some(permit) = seat.acquire(&asks, asked).await else { return };
    let under = under(&asks, permit.token());
    if seat.hand.chance(10) {
        seat.verify(&under).await;
    }
    let longest_ms = if seat.hand.chance(5) { 300 } else { 25 };
    let stay_ms = seat.hand.rng.random_range(0..longest_ms);
    tokio::time::sleep(Duration::from_millis(stay_ms)).await;
    seat.look(&under, &permit);
    if seat.hand.chance(LEAVE_PERCENT) {
        return seat.leave(&under, permit).await;
    }
    seat.release(&under, permit).await;
}
