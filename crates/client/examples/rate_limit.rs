//! Twenty tasks of four sessions send as fast as a rate limit lets them. However they race, no more is sent than the
//! limit allows in the time that has passed.
//!
//! `cargo run -p lockkeeper-client --example rate_limit`

mod support;

use std::time::{Duration, Instant};

use support::{Outcome, check, own, session};

const LIMIT: u32 = 10;
const PER: Duration = Duration::from_secs(1);
const FOR: Duration = Duration::from_secs(3);
const SESSIONS: usize = 4;
const TASKS: usize = 5;

#[tokio::main]
async fn main() -> Outcome {
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
    check(code == Some(lockkeeper_api::Code::RateMismatch), "another rate for the same limit is refused")
}
