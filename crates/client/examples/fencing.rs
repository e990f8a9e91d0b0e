//! Three resources that refuse a holder who comes too late: a file, a service of your own, and the cluster itself. The
//! fourth, a database, is in `fenced_postgres`.
//!
//! `cargo run -p lockkeeper-client --example fencing`

mod support;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use axum::extract::State;
use axum::routing::put;
use lockkeeper_client::fencing::http::{STALE_STATUS, TOKEN_HEADER};
use lockkeeper_client::fencing::{FencedFile, FileError};
use lockkeeper_client::recipes::TxnError;
use lockkeeper_client::{Error, Reading, Session};
use parking_lot::Mutex;
use support::fence::{Fence, fenced};
use support::{Outcome, check, own, session};

const WORKERS: u64 = 8;
const EACH: u64 = 25;
/// What the next holder counts while the other is paused.
const MEANWHILE: u64 = 5;
type Document = Arc<Mutex<String>>;
type Failure = Box<dyn std::error::Error + Send + Sync>;
const TELLERS: usize = 5;
const TRANSFERS: i64 = 20;

#[tokio::main]
async fn main() -> Outcome {
    file().await?;
    service().await?;
    transaction().await
}

fn number(bytes: &[u8]) -> u64 {
    std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn count_one(file: &FencedFile, token: u64) -> Result<(), FileError> {
    file.update(token, |old| (old.map_or(0, number) + 1).to_string().into_bytes())
}

/// Eight workers count in one file under one lock. Then a holder is "paused" until another process has the lock, and
/// goes on: the file refuses its write by the fencing token. The same late write to a file without a token loses the
/// count of the other process.
async fn file() -> Outcome {
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
            Ok::<(), Failure>(())
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
    check(matches!(told, Err(Error::Lost(_) | Error::Refused(_))), "the paused holder is told")
}

async fn write_document(State(document): State<Document>, body: String) {
    *document.lock() = body;
}

/// A service that is the resource: it takes writes over HTTP, and its middleware refuses stale fencing tokens
/// (`support/fence.rs`, 20 lines). A holder that was paused gets 412, and its write is not carried out.
async fn service() -> Outcome {
    let directory = tempfile::tempdir()?;
    let fence = Fence::new(FencedFile::new(directory.path().join("document.fence")));
    let document = Document::default();
    let service = axum::Router::new()
        .route("/document", put(write_document))
        .layer(axum::middleware::from_fn_with_state(fence, fenced))
        .with_state(document.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/document", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, service).await });
    let http = reqwest::Client::new();
    let put = async |token: u64, text: &'static str| {
        let answer = http.put(&url).header(TOKEN_HEADER, token).body(text).send().await?;
        Ok::<u16, reqwest::Error>(answer.status().as_u16())
    };

    let lock = own("document");
    let (first, second) = (session("first").await?, session("second").await?);
    let paused = first.lock(&lock).lock().await?;
    check(put(paused.token(), "by the first").await? == 200, "the holder writes")?;
    second.client().force_release(&lock, paused.token()).await?;
    let guard = second.lock(&lock).lock().await?;
    check(put(guard.token(), "by the second").await? == 200, "the next holder writes")?;
    check(put(paused.token(), "too late").await? == STALE_STATUS, "the paused holder is refused")?;
    check(*document.lock() == "by the second", "nothing of the late write is there")?;
    check(http.put(&url).body("whose?").send().await?.status() == 428, "a write without a token is refused")?;
    guard.release().await?;
    Ok(())
}

async fn balance(session: &Session, path: &str) -> Result<i64, Failure> {
    let node = session.client().node(path, &Reading::default()).await?;
    Ok(String::from_utf8(node.data.to_bytes()?)?.parse()?)
}

/// Reads, computes and writes; the write takes place only if the token still holds.
async fn transfer(session: &Session, lock: &str, token: u64, root: &str, sum: i64) -> Result<(), Failure> {
    let (ann, bob) = (format!("{root}/ann"), format!("{root}/bob"));
    let left = balance(session, &ann).await? - sum;
    let right = balance(session, &bob).await? + sum;
    let txn = session.txn().if_held(lock, token).set(ann, left.to_string(), None).set(bob, right.to_string(), None);
    txn.commit().await?;
    Ok(())
}

/// A transfer between two nodes of the cluster, all or nothing, and only while the lock is held: the cluster itself
/// checks the token.
async fn transaction() -> Outcome {
    let (lock, root) = (own("bank"), format!("/bank-{}", uuid::Uuid::new_v4().simple()));
    let teller = session("teller").await?;
    let made = teller.txn().create(&root, "").create(format!("{root}/ann"), "1000").create(format!("{root}/bob"), "0");
    let made = made.commit().await?;
    println!(
        "{} and {} were made at zxid {}",
        made.path(1).unwrap_or_default(),
        made.path(2).unwrap_or_default(),
        made.zxid
    );

    let mut workers = Vec::new();
    for number in 0..TELLERS {
        let session = session(&format!("teller {number}")).await?;
        let (lock, root) = (lock.clone(), root.clone());
        workers.push(tokio::spawn(async move {
            for _ in 0..TRANSFERS {
                let guard = session.lock(&lock).lock().await?;
                transfer(&session, &lock, guard.token(), &root, 1).await?;
                guard.release().await?;
            }
            Ok::<(), Failure>(())
        }));
    }
    for worker in workers {
        worker.await??;
    }
    let guard = teller.lock(&lock).lock().await?;
    let token = guard.token();
    guard.release().await?;
    let late = transfer(&teller, &lock, token, &root, 500).await.err();
    let not_held = late
        .and_then(|error| error.downcast::<TxnError>().ok())
        .is_some_and(|e| matches!(*e, TxnError::NotHeld { .. }));
    check(not_held, "a holder that has lost the lock changes nothing")?;

    let moved = i64::try_from(TELLERS)? * TRANSFERS;
    let (ann, bob) = (balance(&teller, &format!("{root}/ann")).await?, balance(&teller, &format!("{root}/bob")).await?);
    check((ann, bob) == (1000 - moved, moved), &format!("{moved} transfers took place once each: {ann} and {bob}"))?;
    teller
        .txn()
        .delete(format!("{root}/ann"), None)
        .delete(format!("{root}/bob"), None)
        .delete(&root, None)
        .commit()
        .await?;
    Ok(())
}
