//! Thirty tasks, three permits: never more than three work at a time, and all get their turn.
//!
//! `cargo run -p lockkeeper-client --example semaphore`

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper_client::Error;
use lockkeeper_client::api::Code;
use support::{Outcome, check, own, session};

const PERMITS: u16 = 3;
const TASKS: usize = 30;

#[tokio::main]
async fn main() -> Outcome {
    let name = own("printers");
    let sessions = [session("a").await?, session("b").await?, session("c").await?];
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for number in 0..TASKS {
        let printers = sessions[number % 3].semaphore(&name, PERMITS);
        let (inside, most) = (inside.clone(), most.clone());
        tasks.push(tokio::spawn(async move {
            let permit = printers.acquire().await?;
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            permit.release().await
        }));
    }
    for task in tasks {
        task.await??;
    }
    let most = most.load(Ordering::SeqCst);
    check(most <= usize::from(PERMITS), &format!("never more than {PERMITS} inside (most: {most})"))?;
    check(most > 1, "and not one by one")?;

    // All must state the same number.
    let held = sessions[0].semaphore(&name, PERMITS).acquire().await?;
    let other = sessions[1].semaphore(&name, PERMITS + 1).try_acquire().await;
    let refused = other.err().as_ref().and_then(Error::code) == Some(Code::LockMismatch);
    check(refused, "a semaphore of another size under the same name is refused")?;
    Ok(held.release().await?)
}
