//! A transfer between two nodes of the cluster, all or nothing, and only while the lock is held: the cluster itself
//! checks the token.
//!
//! `cargo run -p lockkeeper-client --example txn`

mod support;

use lockkeeper_client::recipes::TxnError;
use lockkeeper_client::{Reading, Session};
use support::{Outcome, check, own, session};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const WORKERS: usize = 5;
const EACH: i64 = 20;

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

#[tokio::main]
async fn main() -> Outcome {
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
    for number in 0..WORKERS {
        let session = session(&format!("teller {number}")).await?;
        let (lock, root) = (lock.clone(), root.clone());
        workers.push(tokio::spawn(async move {
            for _ in 0..EACH {
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

    let moved = i64::try_from(WORKERS)? * EACH;
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
