//! Two hundred buyers, ten seats, and a shop that serves fifty of them a second: a bounded counter and a rate limit.
//!
//! `cargo run -p lockkeeper-client --example limits`

mod support;

use std::time::{Duration, Instant};

use support::{Outcome, own, session};

const BUYERS: u32 = 200;
const SEATS: i64 = 10;
const PER_SECOND: u32 = 50;

#[tokio::main]
async fn main() -> Outcome {
    let name = own("seats");
    let begun = Instant::now();
    let mut buyers = Vec::new();
    for shop in 0..4 {
        let session = session(&format!("shop {shop}")).await?;
        let seats = session.bounded_counter(&format!("/{name}"), 0..=SEATS)?;
        let served = session.rate_limit(&name, PER_SECOND, Duration::from_secs(1))?;
        for _ in 0..BUYERS / 4 {
            let (seats, served) = (seats.clone(), served.clone());
            buyers.push(tokio::spawn(async move {
                let turn = served.take(1, Duration::from_secs(60)).await?;
                Ok::<_, lockkeeper_client::recipes::RecipeError>((turn.granted, seats.try_add(1).await?.is_some()))
            }));
        }
    }
    let (mut served, mut sold) = (0, 0);
    for buyer in buyers {
        let (was_served, got_seat) = buyer.await??;
        served += u32::from(was_served);
        sold += i64::from(got_seat);
    }
    // Fifty at once, and fifty in each second after that.
    let fastest = Duration::from_secs_f64(f64::from(BUYERS - PER_SECOND) / f64::from(PER_SECOND) * 0.98);
    support::check(served == BUYERS, "everybody was served in the end")?;
    support::check(begun.elapsed() >= fastest, "no faster than the limit allows")?;
    support::check(sold == SEATS, "each seat was sold once")?;
    println!("{sold} of {SEATS} seats, {served} buyers in {:.1} s: ok", begun.elapsed().as_secs_f64());
    Ok(())
}
