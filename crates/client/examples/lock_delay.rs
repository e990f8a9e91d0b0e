//! A holder is killed. The lock stays closed until its delay has passed, so that writes the dead holder had sent can
//! arrive; a clean release causes no delay.
//!
//! `cargo run -p lockkeeper-client --example lock_delay`

mod support;

use std::time::{Duration, Instant};

use support::other::Other;
use support::{Outcome, check, own, session, session_for};

const DELAY: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(30);

/// The part of the other process: holds the lock until it is killed.
async fn hold(name: &str) -> Outcome {
    let session = session_for("to be killed", Duration::from_secs(5)).await?;
    let guard = session.lock(name).delay(DELAY).lock().await?;
    println!("{}", guard.token());
    Err(guard.lost().await.into())
}

#[tokio::main]
async fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    if let (Some("hold"), Some(name)) = (arguments.next().as_deref(), arguments.next()) {
        return hold(&name).await;
    }
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
