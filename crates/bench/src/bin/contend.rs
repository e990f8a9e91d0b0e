//! `contend`: clients that share a counter in a plain file, protected only by a Lockkeeper lock.
//!
//! Each reads the file, adds one and writes it back, so that two holders at once would lose an increment. Each passes
//! its fencing token to the resource before it writes, as every user of a lock service should: the resource, not the
//! lock, detects a holder that was paused.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::Parser;
use lockkeeper_client::api::Code;
use lockkeeper_client::api::locks::Acquire;
use lockkeeper_client::{Client, Error, Options, PreferredNode, Session, SessionOptions};

/// Contends for one lock and increments a counter in a file under it
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// URLs of the cluster's nodes, separated by commas
    #[arg(long, env = "LOCKKEEPER_ENDPOINTS", value_delimiter = ',', required = true)]
    endpoints: Vec<String>,
    /// Number of contenders
    #[arg(long, default_value_t = 20)]
    contenders: u64,
    /// Increments per contender
    #[arg(long, default_value_t = 50)]
    times: u64,
    /// Extra time that each increment holds the lock, in milliseconds
    #[arg(long, default_value_t = 10)]
    hold_ms: u64,
    /// The counter's file, which is created or overwritten
    #[arg(long)]
    file: PathBuf,
    /// The lock
    #[arg(long, default_value = "quickstart/counter")]
    lock: String,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arc::new(Arguments::parse());
    match contend(&arguments).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("contend: {why}");
            ExitCode::FAILURE
        }
    }
}

async fn contend(arguments: &Arc<Arguments>) -> Result<bool, String> {
    write(&arguments.file, 0)?;
    let begun = Instant::now();
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let contenders: Vec<_> = (1..=arguments.contenders)
        .map(|number| tokio::spawn(one_contender(Arc::clone(arguments), number, Arc::clone(&tokens))))
        .collect();
    for contender in contenders {
        contender.await.map_err(|error| error.to_string())??;
    }
    let (counter, expected) = (read(&arguments.file)?, arguments.contenders * arguments.times);
    let tokens = tokens.lock().map_err(|error| error.to_string())?;
    let rising = tokens.windows(2).all(|pair| pair[0] < pair[1]);
    println!("{} turns in {:.1} s", tokens.len(), begun.elapsed().as_secs_f64());
    println!("counter {counter} of {expected}");
    println!("tokens strictly rising: {}", if rising { "yes" } else { "no" });
    Ok(counter == expected && rising)
}

async fn one_contender(arguments: Arc<Arguments>, number: u64, tokens: Arc<Mutex<Vec<u64>>>) -> Result<(), String> {
    let failed = |error: Error| format!("contender {number}: {error}");
    // Each starts at another endpoint, so that all nodes serve some contenders.
    let mut endpoints = arguments.endpoints.clone();
    let count = endpoints.len().max(1);
    endpoints.rotate_left(usize::try_from(number).unwrap_or(0) % count);
    let options = Options { prefer: PreferredNode::First, ..Options::default() };
    let client = Client::new(&endpoints, options).map_err(|error| error.to_string())?;
    let options = SessionOptions { label: format!("contender {number}"), ..SessionOptions::default() };
    let session = Session::open(&client, &options).await.map_err(failed)?;
    let acquire = Acquire { wait_ms: 120_000, label: Some(format!("contender {number}")), ..Acquire::default() };
    for _ in 0..arguments.times {
        let held = session.client().acquire(&arguments.lock, &acquire).await.map_err(failed)?;
        let counter = read(&arguments.file)?;
        tokio::time::sleep(Duration::from_millis(arguments.hold_ms)).await;
        check_token(&tokens, held.token).map_err(|why| format!("contender {number}: {why}"))?;
        write(&arguments.file, counter + 1)?;
        match session.client().release(&arguments.lock, held.token).await {
            Ok(_) => {}
            Err(error) if error.code() == Some(Code::NotHeld) => {
                return Err(format!("contender {number}: lost the lock while using it: {error}"));
            }
            Err(error) => return Err(failed(error)),
        }
    }
    session.close().await.map_err(failed)
}

/// The resource's check: a token that is not larger than the latest one comes from a former holder.
fn check_token(seen: &Mutex<Vec<u64>>, token: u64) -> Result<(), String> {
    let mut seen = seen.lock().map_err(|error| error.to_string())?;
    if let Some(last) = seen.last().filter(|last| **last >= token) {
        return Err(format!("the file refuses token {token}: it has seen {last}"));
    }
    seen.push(token);
    Ok(())
}

fn read(file: &Path) -> Result<u64, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    text.trim().parse().map_err(|_| format!("{} does not hold a number", file.display()))
}

/// Replaces the file atomically, so that readers never see a partial number.
fn write(file: &Path, counter: u64) -> Result<(), String> {
    let fresh = file.with_extension("new");
    let failed = |error: std::io::Error| format!("cannot write {}: {error}", file.display());
    std::fs::write(&fresh, format!("{counter}\n")).map_err(failed)?;
    std::fs::rename(&fresh, file).map_err(failed)
}
