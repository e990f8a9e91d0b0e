//! Callers of operations behind idempotency gates. Running an operation's body is a line in a file that all processes append to, so
//! that the file says how often it ran, and not those who ran it.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lockkeeper_client::api::Data;
use lockkeeper_client::api::gates::{Begin, Finish, Gate as State};
use lockkeeper_client::{Client, Session};

use super::{Common, failed, join};
use crate::record::{Standing, What, boot_us, tell};

/// See the module's text.
#[derive(Args, Clone)]
pub(super) struct Gate {
    /// What to do.
    #[arg(long, value_enum)]
    role: Role,
    /// The gates are `<PREFIX>-0`, `<PREFIX>-1`, …
    #[arg(long)]
    prefix: String,
    /// How many gates.
    #[arg(long, default_value_t = 1)]
    keys: u32,
    /// How many callers of each in this process.
    #[arg(long, default_value_t = 1)]
    callers: u32,
    /// When all begin with the first, in microseconds of the boot clock.
    #[arg(long, default_value_t = 0)]
    start_us: u64,
    /// How long after one the next is begun with, in milliseconds.
    #[arg(long, default_value_t = 0)]
    every_ms: u64,
    /// Callers come within so long of each other, in milliseconds.
    #[arg(long, default_value_t = 0)]
    spread_ms: u64,
    /// How long the body takes, in milliseconds.
    #[arg(long, default_value_t = 0)]
    body_ms: u64,
    /// How long a run may be pending, in milliseconds.
    #[arg(long, default_value_t = 60_000)]
    pending_ms: u64,
    /// Begin without a session: then only the pending time frees the gate.
    #[arg(long)]
    without_session: bool,
    /// Where bodies leave their lines.
    #[arg(long)]
    bodies: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Every caller begins each once, and does the work if it is told to.
    Callers,
    /// Begins the first one and stays at work for ever.
    Stuck,
    /// Begins the first one over and over until it is let in, and does the work.
    Next,
    /// Begins and finishes each in turn, alone.
    Pairs,
}

pub(super) async fn run(common: &Common, work: Gate) -> Result<Vec<Session>, String> {
    let session = common.open(0).await?;
    tell(0, What::Sure { until_ms: session.expires_at().as_millis() });
    let mut renewals = session.renewals();
    let watched = session.clone();
    tokio::spawn(async move {
        while renewals.changed().await.is_ok() {
            tell(0, What::Sure { until_ms: watched.expires_at().as_millis() });
        }
    });
    let client = if work.without_session { common.client(0)? } else { session.client().clone() };
    match work.role {
        Role::Callers => {
            let callers = (0..work.callers).map(|number| tokio::spawn(caller(client.clone(), work.clone(), number)));
            join(callers.collect()).await?;
        }
        Role::Stuck => {
            begin(&client, &work, 0, 0).await?;
        }
        Role::Next => {
            while !matches!(begin(&client, &work, 0, 0).await?, Some(Standing::Proceed { .. })) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        Role::Pairs => pairs(&client, &work).await?,
    }
    Ok(vec![session])
}

async fn caller(client: Client, work: Gate, number: u32) -> Result<(), String> {
    for key in 0..work.keys {
        let late_us = u64::from(number) * work.spread_ms * 1_000 / u64::from(work.callers.max(1));
        let at_us = work.start_us + u64::from(key) * work.every_ms * 1_000 + late_us;
        tokio::time::sleep(Duration::from_micros(at_us.saturating_sub(boot_us()))).await;
        begin(&client, &work, key, number).await?;
    }
    Ok(())
}

/// Begins, and where it is told to proceed does the work and finishes.
async fn begin(client: &Client, work: &Gate, number: u32, caller: u32) -> Result<Option<Standing>, String> {
    let key = format!("{}-{number}", work.prefix);
    let begin = Begin {
        fingerprint: format!("operation {number}"),
        pending_ms: Some(work.pending_ms),
        label: Some(format!("process {}", std::process::id())),
    };
    let standing = match client.gate_begin(&key, &begin).await {
        Ok(view) => standing_of(view.gate)?,
        Err(error) => {
            failed(caller, "begin", &error).await;
            return Ok(None);
        }
    };
    tell(caller, What::Gate { key: key.clone(), standing: standing.clone() });
    if let Standing::Proceed { token, .. } = standing {
        let line = format!("{key} {token}\n");
        let told = |error: std::io::Error| format!("{}: {error}", work.bodies.display());
        let mut bodies = std::fs::File::options().append(true).create(true).open(&work.bodies).map_err(told)?;
        bodies.write_all(line.as_bytes()).map_err(told)?;
        tell(caller, What::Body { key: key.clone(), token });
        if work.role == Role::Stuck {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(work.body_ms)).await;
        let finish = Finish { token, result: Data::from_bytes(result_of(token).as_bytes()), keep_ms: Some(600_000) };
        match client.gate_finish(&key, &finish).await {
            Ok(_) => tell(caller, What::Finished { key, token }),
            Err(error) => failed(caller, "finish", &error).await,
        }
    }
    Ok(Some(standing))
}

/// What a run under that token results in.
pub fn result_of(token: u64) -> String {
    format!("result of {token}")
}

fn standing_of(gate: State) -> Result<Standing, String> {
    Ok(match gate {
        State::Proceed { token, until_ms } => Standing::Proceed { token, until_ms },
        State::InProgress { token, .. } => Standing::InProgress { token },
        State::Done { token, result, .. } => {
            Standing::Done { token, result: String::from_utf8_lossy(&result.to_bytes()?).into_owned() }
        }
    })
}

async fn pairs(client: &Client, work: &Gate) -> Result<(), String> {
    let begun_us = boot_us();
    for number in 0..work.keys {
        let key = format!("{}-{number}", work.prefix);
        let begin = Begin { fingerprint: "pair".into(), pending_ms: Some(work.pending_ms), label: None };
        let told = |error: lockkeeper_client::Error| format!("{key}: {error}");
        let view = client.gate_begin(&key, &begin).await.map_err(told)?;
        let State::Proceed { token, .. } = view.gate else { return Err(format!("{key}: {:?}", view.gate)) };
        let finish = Finish { token, result: Data::from_bytes(b"done"), keep_ms: Some(600_000) };
        client.gate_finish(&key, &finish).await.map_err(told)?;
    }
    tell(0, What::Pairs { count: u64::from(work.keys), micros: boot_us() - begun_us });
    Ok(())
}
