//! Two ends of a holder that does not release: it is killed, or it hangs.
//!
//! `cargo run -p lockkeeper-client --example failed_holder`

mod support;

use std::time::{Duration, Instant};

use lockkeeper_client::Error;
use support::other::Other;
use support::{Outcome, check, own, session, session_for};

const DELAY: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(30);
const LONGEST: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    if let (Some("hold"), Some(name)) = (arguments.next().as_deref(), arguments.next()) {
        return hold(&name).await;
    }
    killed().await?;
    hanging().await
}

/// The part of the other process: holds the lock until it is killed.
async fn hold(name: &str) -> Outcome {
    let session = session_for("to be killed", Duration::from_secs(5)).await?;
    let guard = session.lock(name).delay(DELAY).lock().await?;
    println!("{}", guard.token());
    Err(guard.lost().await.into())
}

/// A holder is killed. The lock stays closed until its delay has passed, so that writes the dead holder had sent can
/// arrive; a clean release causes no delay.
async fn killed() -> Outcome {
    let name = own("valve");
    let next = session("next").await?;

    let guard = next.lock(&name).delay(DELAY).lock().await?;
    guard.release().await?;
    let released = Instant::now();
    let guard = next.lock(&name).lock().await?;
    check(released.elapsed() < DELAY, "after a clean release the next has it at once")?;
    guard.release().await?;

    let (holder, token) = Other::start(&["hold", &name])?;
    let token: u64 = token.parse()?;
    check(next.lock(&name).try_lock().await?.is_none(), "another process holds it")?;
    holder.kill()?;
    let killed = Instant::now();
    let waiting = tokio::spawn({
        let next = next.clone();
        let name = name.clone();
        async move { next.lock(&name).lock_timeout(PATIENCE).await }
    });
    let until_ms = loop {
        let holders = next.client().lock(&name).await?.holders;
        if let Some(until_ms) = holders.first().and_then(|holder| holder.delayed_until_ms) {
            break until_ms;
        }
        if killed.elapsed() > PATIENCE {
            return Err("the dead holder's place was not kept".into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    println!("the place of the dead holder is kept until {until_ms} ms since 1970");
    check(!next.client().verify(&name, token).await?.held, "its token does not hold any more")?;
    let guard = waiting.await??.ok_or("the next one waited in vain")?;
    println!("granted {:?} after the kill", killed.elapsed());
    check(killed.elapsed() >= DELAY, "the lock was not granted before the delay had passed")?;
    check(guard.token() > token, "the token has grown")?;
    Ok(guard.release().await?)
}

/// A holder hangs. Its guard is lost when the time of `max_hold` is over, and the next one gets the lock although the
/// holder's process lives.
async fn hanging() -> Outcome {
    let name = own("import");
    let (holder, next) = (session("hangs").await?, session("next").await?);
    let guard = holder.lock(&name).max_hold(LONGEST).lock().await?;
    let (token, granted) = (guard.token(), Instant::now());
    let waiting = tokio::spawn({
        let (next, name) = (next.clone(), name.clone());
        async move { next.lock(&name).lock_timeout(PATIENCE).await }
    });
    // Work that never ends is dropped when the lock is lost.
    let work = guard.run(std::future::pending::<()>()).await;
    check(matches!(work, Err(Error::Lost(_))), "the work was stopped")?;
    check(granted.elapsed() <= LONGEST, "the holder is told before the time is over")?;
    let after = waiting.await??.ok_or("the next one waited in vain")?;
    println!("granted to the next one {:?} after the first grant", granted.elapsed());
    check(after.token() > token, "the next one holds it, under a larger token")?;
    check(!next.client().verify(&name, token).await?.held, "the first token does not hold any more")?;
    Ok(after.release().await?)
}
