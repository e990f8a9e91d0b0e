//! A holder hangs. Its guard is lost when the time of `max_hold` is over, and the next one gets the lock although the
//! holder's process lives.
//!
//! `cargo run -p lockkeeper-client --example max_hold`

mod support;

use std::time::{Duration, Instant};

use lockkeeper_client::Error;
use support::{Outcome, check, own, session};

const LONGEST: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() -> Outcome {
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
