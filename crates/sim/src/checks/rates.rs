//! Rate limits: by the replicated clock, no interval of t milliseconds has more than `limit + t × limit / per_ms`
//! permits, leased ones included; and no client is given a permit that the log has not.

use std::collections::BTreeMap;

use lockkeeper_core::{Command, Op, Rate, RateName, RateOp, Reply};

use super::Checked;
use super::change::Change;

/// See the module's text.
#[derive(Debug, Default)]
pub struct Rates {
    by_log: BTreeMap<RateName, Granted>,
    by_nodes: BTreeMap<RateName, u64>,
}

/// What the log granted of one rate limit.
#[derive(Debug)]
struct Granted {
    rate: Rate,
    /// Units that can be taken at `at_ms`: `per_ms` for a permit, of which each millisecond brings `limit`.
    units: u64,
    at_ms: u64,
    permits: u64,
}

impl Granted {
    fn new(rate: Rate, at_ms: u64) -> Self {
        Self { rate, units: u64::from(rate.limit) * rate.per_ms, at_ms, permits: 0 }
    }

    fn refill(&mut self, at_ms: u64) {
        let Rate { limit, per_ms } = self.rate;
        let there = self.units + at_ms.saturating_sub(self.at_ms) * u64::from(limit);
        self.units = there.min(u64::from(limit) * per_ms);
        self.at_ms = self.at_ms.max(at_ms);
    }
}

impl Rates {
    /// Takes in a command of the log. The simulation's clients ask for one rate under each name.
    ///
    /// # Errors
    /// If it granted more permits than there were.
    pub fn change(&mut self, change: &Change<'_>) -> Checked {
        let Command::Do { op: Op::Rate(RateOp::Take { name, rate, permits, .. }), .. } = change.command else {
            return Ok(());
        };
        let Ok(Reply::PermitsTaken { granted, leased, .. }) = &change.outcome.reply else { return Ok(()) };
        let requests = permits.iter().take(*granted as usize);
        let taken = requests.map(|permits| u64::from(*permits)).sum::<u64>() + u64::from(*leased);
        let of_name = self.by_log.entry(name.clone()).or_insert_with(|| Granted::new(*rate, change.clock_ms));
        of_name.refill(change.clock_ms);
        of_name.permits += taken;
        match of_name.units.checked_sub(taken * rate.per_ms) {
            Some(left) => of_name.units = left,
            None => {
                let there = of_name.units / rate.per_ms;
                let at_ms = change.clock_ms;
                return Err(format!(
                    "rate limit {name} ({rate}) granted {taken} permits at {at_ms} ms, and had {there}"
                ));
            }
        }
        Ok(())
    }

    /// A node gives permits to a client.
    pub fn given(&mut self, name: &RateName, permits: u32) {
        *self.by_nodes.entry(name.clone()).or_default() += u64::from(permits);
    }

    /// Compares what nodes have given with the log, once that was followed as far as any node has applied it.
    ///
    /// # Errors
    /// If a node gave permits that the log has not granted.
    pub fn compare(&self) -> Checked {
        for (name, by_nodes) in &self.by_nodes {
            let by_log = self.by_log.get(name).map_or(0, |of_name| of_name.permits);
            if *by_nodes > by_log {
                return Err(format!(
                    "clients were given {by_nodes} permits of {name}, of which the log granted {by_log}"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{Actor, Outcome};

    use super::super::test_history::{History, change};
    use super::*;

    const RATE: Rate = Rate { limit: 10, per_ms: 1_000 };

    fn name() -> RateName {
        RateName::parse("r").unwrap()
    }

    fn take(permits: &[u32]) -> RateOp {
        RateOp::Take { name: name(), rate: RATE, permits: permits.to_vec(), ahead: 0, reconfigure: false }
    }

    fn granted(history: &mut History, permits: &[u32], granted: u32, leased: u32) -> (Command, Outcome) {
        let command = Command::Do { actor: Actor::default(), op: take(permits).into() };
        let reply = Ok(Reply::PermitsTaken { granted, leased, available: 0, wait_ms: 0 });
        let zxid = history.state.zxid();
        (command, Outcome { zxid, reply, changed: true, events: Vec::new() })
    }

    #[test]
    fn a_bucket_gives_what_it_has_and_what_comes_back() {
        let (mut history, mut rates) = (History::default(), Rates::default());
        let mut at = |clock_ms, permits: &[u32], count, leased| {
            let (command, outcome) = granted(&mut history, permits, count, leased);
            rates.change(&Change { clock_ms, ..change(&command, &outcome, 1) })
        };
        at(1_000, &[4, 4, 4], 2, 2).unwrap();
        at(1_100, &[1, 1], 1, 0).unwrap();
        at(1_150, &[1], 1, 0).unwrap_err();
    }

    #[test]
    fn a_permit_that_the_log_has_not_granted_is_refused() {
        let (mut history, mut rates) = (History::default(), Rates::default());
        rates.compare().unwrap();
        rates.given(&name(), 5);
        rates.compare().unwrap_err();
        let (command, outcome) = granted(&mut history, &[3], 1, 2);
        rates.change(&change(&command, &outcome, 1)).unwrap();
        rates.compare().unwrap();
        rates.given(&name(), 1);
        rates.compare().unwrap_err();
    }
}
