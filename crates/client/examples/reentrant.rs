//! A function that takes a lock calls another that takes it too.
//!
//! `cargo run -p lockkeeper-client --example reentrant`

mod support;

use lockkeeper_client::Error;
use lockkeeper_client::locks::ReentrantLock;
use support::{Outcome, check, own, session};

async fn deposit(ledger: &ReentrantLock) -> Result<u64, Error> {
    let guard = ledger.lock().await?;
    let token = guard.token();
    guard.release().await?;
    Ok(token)
}

#[tokio::main]
async fn main() -> Outcome {
    let name = own("ledger");
    let (here, elsewhere) = (session("here").await?, session("elsewhere").await?);
    let ledger = here.reentrant(&name);

    let outer = ledger.lock().await?;
    let inner_token = deposit(&ledger).await?;
    check(inner_token == outer.token(), "the same task comes in again, under the same token")?;
    check(outer.hold_count() == 1, "and has left once")?;
    check(elsewhere.reentrant(&name).try_lock().await?.is_none(), "another session stays out")?;
    let other_task = tokio::spawn({
        let ledger = ledger.clone();
        async move { ledger.try_lock().await.map(|guard| guard.is_none()) }
    });
    check(other_task.await??, "so does another task of this process")?;
    outer.release().await?;

    // Where the work moves between tasks the owner is named.
    let first = ledger.lock_as("request 7").await?;
    let second = tokio::spawn(async move { ledger.lock_as("request 7").await }).await??;
    check((second.hold_count(), second.token()) == (2, first.token()), "an owner may be in several tasks")?;
    first.release().await?;
    check(elsewhere.lock(&name).try_lock().await?.is_none(), "it is held until the last has left")?;
    second.release().await?;
    let guard = elsewhere.lock(&name).lock().await?;
    Ok(guard.release().await?)
}
