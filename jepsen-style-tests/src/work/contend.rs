//! Clients that increment a counter in a plain file under one lock, over and over. Two holders at once would lose an
//! increment.
//!
//! Each holder appends its token to a second file before it writes. That file is the resource's own record of the order
//! in which holders came; no client vouches for it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use lockkeeper_client::Session;

use super::turn::{TurnOutcome, ask, is_lost, let_go};
use super::{Common, join};
use crate::record::{WorkerEvent, boot_us, tell};

/// See the module's text.
#[derive(Args, Clone)]
pub(super) struct Contend {
    /// The lock.
    #[arg(long)]
    lock: String,
    /// How many clients.
    #[arg(long)]
    clients: u32,
    /// For how long new turns are begun.
    #[arg(long)]
    seconds: u64,
    /// How long each stays between reading and writing, in microseconds.
    #[arg(long, default_value_t = 500)]
    hold_us: u64,
    /// How long each stays away after its turn, in milliseconds.
    #[arg(long, default_value_t = 0)]
    think_ms: u64,
    /// The counter's file.
    #[arg(long)]
    counter: PathBuf,
    /// The resource's log of tokens.
    #[arg(long)]
    tokens: PathBuf,
}

pub(super) async fn run(common: &Common, work: Contend) -> Result<Vec<Session>, String> {
    let until_us = boot_us() + work.seconds * 1_000_000;
    let clients = (0..work.clients).map(|client| tokio::spawn(one(common.clone(), work.clone(), client, until_us)));
    join(clients.collect()).await
}

async fn one(common: Common, work: Contend, client: u32, until_us: u64) -> Result<Session, String> {
    let mut session = common.open(client).await?;
    loop {
        let left = Duration::from_micros(until_us.saturating_sub(boot_us()));
        if left.is_zero() {
            return Ok(session);
        }
        session = common.renew(client, session).await?;
        let lock = session.lock(&work.lock);
        let guard = match ask(client, "lock", left, vec![work.lock.clone()], lock.lock()).await {
            TurnOutcome::Granted(guard) => guard,
            TurnOutcome::Failed => continue,
            TurnOutcome::Over => return Ok(session),
        };
        let token = guard.token();
        let value = read(&work.counter)?;
        tokio::time::sleep(Duration::from_micros(work.hold_us)).await;
        if is_lost(client, &guard).await {
            continue;
        }
        append(&work.tokens, token)?;
        write(&work.counter, value + 1)?;
        tell(client, WorkerEvent::Wrote { token, value: value + 1, accepted: true });
        let_go(client, guard).await;
        if work.think_ms > 0 {
            tokio::time::sleep(Duration::from_millis(work.think_ms)).await;
        }
    }
}

fn read(file: &Path) -> Result<i64, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    text.trim().parse().map_err(|_| format!("{} does not hold a number: {text:?}", file.display()))
}

/// In one call of the system, but not as one step with the reading.
fn write(file: &Path, value: i64) -> Result<(), String> {
    let told = |error: std::io::Error| format!("{}: {error}", file.display());
    let mut open = std::fs::File::options().write(true).open(file).map_err(told)?;
    // Always as long: there is no moment at which the file is empty.
    open.write_all(format!("{value:020}\n").as_bytes()).map_err(told)
}

fn append(file: &Path, token: u64) -> Result<(), String> {
    let told = |error: std::io::Error| format!("{}: {error}", file.display());
    let mut open = std::fs::File::options().append(true).open(file).map_err(told)?;
    open.write_all(format!("{token}\n").as_bytes()).map_err(told)
}
