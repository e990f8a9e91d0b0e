//! Clients that repeatedly take three of several locks together, drawn at random. As in `permits`, the log records who
//! is inside.

use std::time::Duration;

use clap::Args;
use lockkeeper_client::api::nodes::{Create, Kind};
use lockkeeper_client::{Error, Session};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

use super::turn::{TurnOutcome, ask, is_lost, let_go};
use super::{Common, failed, join};
use crate::record::boot_us;

/// See the module's text.
#[derive(Args, Clone)]
pub(super) struct MultiLockWork {
    /// The locks are `<PREFIX>-0`, `<PREFIX>-1`, …
    #[arg(long)]
    prefix: String,
    /// How many there are.
    #[arg(long)]
    locks: u32,
    /// How many each takes together.
    #[arg(long, default_value_t = 3)]
    together: usize,
    /// Where those inside leave their nodes.
    #[arg(long)]
    inside: String,
    /// How many clients.
    #[arg(long)]
    clients: u32,
    /// For how long new turns are begun.
    #[arg(long)]
    seconds: u64,
    /// How long each holds at most, in milliseconds.
    #[arg(long, default_value_t = 10)]
    hold_ms: u64,
    /// Where the choice of locks comes from.
    #[arg(long)]
    seed: u64,
}

pub(super) async fn run(common: &Common, work: MultiLockWork) -> Result<Vec<Session>, String> {
    let until_us = boot_us() + work.seconds * 1_000_000;
    let clients = (0..work.clients).map(|client| tokio::spawn(one(common.clone(), work.clone(), client, until_us)));
    join(clients.collect()).await
}

async fn one(common: Common, work: MultiLockWork, client: u32, until_us: u64) -> Result<Session, String> {
    let mut random = StdRng::seed_from_u64(work.seed.wrapping_add(u64::from(client)));
    let mut session = common.open(client).await?;
    let all: Vec<String> = (0..work.locks).map(|number| format!("{}-{number}", work.prefix)).collect();
    loop {
        let left = Duration::from_micros(until_us.saturating_sub(boot_us()));
        if left.is_zero() {
            return Ok(session);
        }
        session = common.renew(client, session).await?;
        // In the order in which they were drawn: it is the library that brings them into one order.
        let names: Vec<String> = all.choose_multiple(&mut random, work.together).cloned().collect();
        let several = session.multi_lock(names.clone());
        let guard = match ask(client, "lock", left, names, several.lock()).await {
            TurnOutcome::Granted(guard) => guard,
            TurnOutcome::Failed => continue,
            TurnOutcome::Over => return Ok(session),
        };
        let token = guard.token();
        let hold_ms = random.random_range(0..=work.hold_ms);
        if let Err(error) = stay(&session, &work, token, hold_ms).await {
            failed(client, "stay inside", &error).await;
        }
        if is_lost(client, &guard).await {
            continue;
        }
        let_go(client, guard).await;
    }
}

async fn stay(session: &Session, work: &MultiLockWork, token: u64, hold_ms: u64) -> Result<(), Error> {
    let path = format!("{}/t{token}-{}", work.inside, std::process::id());
    let node = Create { kind: Kind::Ephemeral, ..Create::default() };
    session.client().create(&path, &node).await?;
    tokio::time::sleep(Duration::from_millis(hold_ms)).await;
    session.client().delete(&path, None).await.map(drop)
}
