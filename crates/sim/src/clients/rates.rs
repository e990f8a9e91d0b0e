//! Clients that take permits of rate limits, in bursts, so that nodes lease some ahead.

use lockkeeper_core::{Rate, RateName};
use lockkeeper_node::{Caller, TakePermits};
use rand::Rng;

use super::attempt::{Attempt, TRY};
use super::{Client, Outcome};

/// One that is leased one permit at a time, and one of which nodes lease several.
const RATES: [Rate; 2] = [Rate { limit: 20, per_ms: 2_000 }, Rate { limit: 200, per_ms: 1_000 }];

impl Client {
    /// Takes permits a few times.
    pub(super) async fn take_permits(&mut self) {
        let number = self.rng.random_range(0..RATES.len());
        let Ok(name) = RateName::parse(&format!("r/{number}")) else { return };
        for _ in 0..self.rng.random_range(1..=12) {
            let permits = self.rng.random_range(1..=3);
            let wanted = TakePermits { name: name.clone(), rate: RATES[number], permits, reconfigure: false };
            let (of, checkers) = (name.clone(), self.lab.checkers.clone());
            let serve = move |node: lockkeeper_node::Node| async move {
                let answer = node.take_permits(Caller::default(), wanted).await;
                // Counted where they are given: they are gone even if the answer is lost.
                if answer.as_ref().is_ok_and(|taken| taken.value.granted) {
                    checkers.lock().rates.given(&of, permits);
                }
                answer
            };
            let answer = self.call(TRY, serve).await;
            let outcome = match answer {
                Attempt::Done(taken) if !taken.value.granted => Outcome::Refused,
                other => other.outcome(),
            };
            self.lab.count("take permits", outcome);
            match outcome {
                Outcome::Ok => self.progress(),
                Outcome::Refused => {
                    let pause_ms = self.rng.random_range(0..=150);
                    self.sleep_ms(pause_ms).await;
                }
                Outcome::Failed | Outcome::Unknown => return,
            }
        }
    }
}
