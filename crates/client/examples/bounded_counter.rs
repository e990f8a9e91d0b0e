//! Twenty tasks of four sessions sell the seats of a course at the same time. All seats are sold, and none twice.
//!
//! `cargo run -p lockkeeper-client --example bounded_counter`

mod support;

use support::{Outcome, check, own, session};

const SEATS: i64 = 50;
const SESSIONS: usize = 4;
const TASKS: usize = 5;

#[tokio::main]
async fn main() -> Outcome {
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
                Ok::<_, lockkeeper_client::recipes::RecipeError>(sold)
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
