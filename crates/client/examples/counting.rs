//! Twenty tasks of four sessions race for a counter, for the seats of a course, and for permits of a rate limit.
//!
//! `cargo run -p lockkeeper-client --example counting`

mod support;

use std::time::{Duration, Instant};

use lockkeeper_client::recipes::RecipeError;
use support::{Outcome, check, own, session};

const SESSIONS: usize = 4;
const TASKS: usize = 5;
const ADDITIONS: i64 = 50;
const SEATS: i64 = 50;
const LIMIT: u32 = 10;
const PER: Duration = Duration::from_secs(1);
const FOR: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> Outcome {
    counter().await?;
    bounded_counter().await?;
    rate_limit().await
}

/// Twenty tasks of four sessions add to one counter at the same time; no addition is lost and none counts twice.
async fn counter() -> Outcome {
    let path = format!("/{}", own("counter"));
    let mut tasks = Vec::new();
    for number in 0..SESSIONS {
        let session = session(&format!("counter {number}")).await?;
        let counter = session.counter(&path)?;
        for _ in 0..TASKS {
            // Clones take turns among themselves; the sessions collide in the cluster.
            let counter = counter.clone();
            tasks.push(tokio::spawn(async move {
                for _ in 0..ADDITIONS {
                    counter.increment().await?;
                }
                Ok::<_, RecipeError>(())
            }));
        }
    }
    for task in tasks {
        task.await??;
    }
    let (sum, expected) =
        (session("reader").await?.counter(&path)?.get().await?, i64::try_from(SESSIONS * TASKS)? * ADDITIONS);
    check(sum == expected, "each addition counted once")?;
    println!("counter {sum} of {expected}: ok");
    Ok(())
}

/// Twenty tasks of four sessions sell the seats of a course at the same time. All seats are sold, and none twice.
async fn bounded_counter() -> Outcome {
    let path = format!("/{}", own("seats"));
    let mut tasks = Vec::new();
    for number in 0..SESSIONS {
        let session = session(&format!("box office {number}")).await?;
        for _ in 0..TASKS {
            // All state the same range. The cluster decides about each seat.
            let taken = session.bounded_counter(&path, 0..=SEATS)?;
            tasks.push(tokio::spawn(async move {
                let mut sold = Vec::new();
                while let Some(seat) = taken.try_add(1).await? {
                    sold.push(seat);
                }
                Ok::<_, RecipeError>(sold)
            }));
        }
    }
    let mut sold = Vec::new();
    for task in tasks {
        sold.extend(task.await??);
    }
    sold.sort_unstable();
    check(sold == (1..=SEATS).collect::<Vec<_>>(), "each seat was sold once")?;
    let taken = session("a customer").await?.bounded_counter(&path, 0..=SEATS)?;
    check(taken.try_add(1).await?.is_none(), "the course is full")?;
    check(taken.try_add(-1).await? == Some(SEATS - 1), "a seat is given back")
}

/// Twenty tasks of four sessions send as fast as a rate limit lets them. However they race, no more is sent than the
/// limit allows in the time that has passed.
async fn rate_limit() -> Outcome {
    let name = own("mails");
    let mut sessions = Vec::new();
    for number in 0..SESSIONS {
        sessions.push(session(&format!("sender {number}")).await?);
    }
    let began = Instant::now();
    let mut tasks = Vec::new();
    for session in &sessions {
        let limit = session.rate_limit(&name, LIMIT, PER)?;
        for _ in 0..TASKS {
            let limit = limit.clone();
            tasks.push(tokio::spawn(async move {
                let mut sent = 0_u32;
                // A wait that would take longer than the time that is left ends at once.
                while limit.take(1, FOR.saturating_sub(began.elapsed())).await?.granted {
                    sent += 1;
                }
                Ok::<_, lockkeeper_client::Error>(sent)
            }));
        }
    }
    let mut sent = 0;
    for task in tasks {
        sent += task.await??;
    }
    let allowed = f64::from(LIMIT) * (1.0 + began.elapsed().as_secs_f64() / PER.as_secs_f64());
    println!("{sent} sent in {:?}, {allowed:.1} allowed", began.elapsed());
    check(f64::from(sent) <= allowed, "no more was sent than the limit allows")?;
    check(sent > LIMIT, "permits came back")?;
    let other = sessions[0].rate_limit(&name, LIMIT * 2, PER)?.try_take(1).await;
    let code = other.err().and_then(|error| error.code());
    check(code == Some(lockkeeper_client::api::Code::RateMismatch), "another rate for the same limit is refused")
}
