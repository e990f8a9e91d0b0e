//! Twenty tasks of four sessions add to one counter at the same time; no addition is lost and none counts twice.
//!
//! `cargo run -p lockkeeper-client --example counter`

mod support;

use support::{Outcome, own, session};

const SESSIONS: i64 = 4;
const TASKS: i64 = 5;
const EACH: i64 = 50;

#[tokio::main]
async fn main() -> Outcome {
    let path = format!("/{}", own("counter"));
    let mut tasks = Vec::new();
    for number in 0..SESSIONS {
        let session = session(&format!("counter {number}")).await?;
        let counter = session.counter(&path)?;
        for _ in 0..TASKS {
            // Clones take turns among themselves; the sessions collide in the cluster.
            let counter = counter.clone();
            tasks.push(tokio::spawn(async move {
                for _ in 0..EACH {
                    counter.increment().await?;
                }
                Ok::<_, lockkeeper_client::recipes::RecipeError>(())
            }));
        }
    }
    for task in tasks {
        task.await??;
    }
    let (sum, expected) = (session("reader").await?.counter(&path)?.get().await?, SESSIONS * TASKS * EACH);
    support::check(sum == expected, "each addition counted once")?;
    println!("counter {sum} of {expected}: ok");
    Ok(())
}
