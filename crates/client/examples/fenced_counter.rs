//! Eight workers count in one file under one lock. Then a holder is "paused" until another process has the lock, and
//! goes on: the file refuses its write by the fencing token. The same late write to a file without a token loses the
//! count of the other process.
//!
//! `cargo run -p lockkeeper-client --example fenced_counter`

mod support;

use std::fs;
use std::path::Path;

use lockkeeper_client::fencing::{FencedFile, FileError};
use support::{Outcome, check, own, session};

const WORKERS: u64 = 8;
const EACH: u64 = 25;
/// What the next holder counts while the other is paused.
const MEANWHILE: u64 = 5;

fn number(bytes: &[u8]) -> u64 {
    std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn count_one(file: &FencedFile, token: u64) -> Result<(), FileError> {
    file.update(token, |old| (old.map_or(0, number) + 1).to_string().into_bytes())
}

#[tokio::main]
async fn main() -> Outcome {
    let directory = tempfile::tempdir()?;
    let file = FencedFile::new(directory.path().join("counter"));
    let name = own("counter");

    let mut workers = Vec::new();
    for worker in 0..WORKERS {
        let lock = session(&format!("worker {worker}")).await?.lock(&name);
        let file = file.clone();
        workers.push(tokio::spawn(async move {
            for _ in 0..EACH {
                let guard = lock.lock().await?;
                let (file, token) = (file.clone(), guard.token());
                // The guard stops waiting for the write when the lock is lost; the token refuses a write that comes
                // too late.
                guard.run(tokio::task::spawn_blocking(move || count_one(&file, token))).await???;
                guard.release().await?;
            }
            Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
        }));
    }
    for worker in workers {
        worker.await??;
    }
    let counted = file.read()?.map_or(0, |kept| number(&kept.data));
    check(counted == WORKERS * EACH, &format!("{WORKERS} workers counted {EACH} each: {counted}"))?;
    late_write(&file, &directory.path().join("unfenced"), &name).await
}

async fn late_write(file: &FencedFile, unfenced: &Path, name: &str) -> Outcome {
    let before = file.read()?.map_or(0, |kept| number(&kept.data));
    fs::write(unfenced, before.to_string())?;
    let (paused, next) = (session("paused").await?, session("next").await?);

    let held = paused.lock(name).lock().await?;
    let (fenced_seen, unfenced_seen) = (before, number(&fs::read(unfenced)?));
    // It has read, and is now paused for so long that an operator takes the lock from it by force.
    next.client().force_release(name, held.token()).await?;

    let guard = next.lock(name).lock().await?;
    for _ in 0..MEANWHILE {
        count_one(file, guard.token())?;
        fs::write(unfenced, (number(&fs::read(unfenced)?) + 1).to_string())?;
    }
    guard.release().await?;

    // It wakes up and writes what it had computed, without a look at its guard.
    let late = file.write(held.token(), (fenced_seen + 1).to_string().as_bytes());
    fs::write(unfenced, (unfenced_seen + 1).to_string())?;

    let (with, without) = (file.read()?.map_or(0, |kept| number(&kept.data)), number(&fs::read(unfenced)?));
    println!(
        "{MEANWHILE} were counted, then came the late write: {} with tokens, {} without",
        with - before,
        without - before
    );
    check(matches!(late, Err(FileError::Stale(_))), "the late write was refused where tokens are checked")?;
    check(with == before + MEANWHILE, "nothing was lost with tokens")?;
    check(without == before + 1, "without them what had been counted meanwhile is lost")?;
    let told = held.release().await;
    check(
        matches!(told, Err(lockkeeper_client::Error::Lost(_) | lockkeeper_client::Error::Refused(_))),
        "the paused holder is told",
    )
}
