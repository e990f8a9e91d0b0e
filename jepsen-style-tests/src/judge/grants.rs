//! Judges what clients were told about grants, against each other on the machine's one clock and against the lock's
//! queue in the log.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_checkers::lives::Life;
use lockkeeper_checkers::places::Places;

use crate::record::{Record, WorkerEvent};
use crate::stats::gaps;

/// One grant, as its client told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Whose: process and client.
    pub who: String,
    /// What.
    pub locks: Vec<String>,
    /// Under which token.
    pub token: u64,
    /// When its client began to ask.
    pub asked_us: u64,
    /// When its client was told.
    pub granted_us: u64,
    /// When its client stopped acting on it: it began to release, or was told that the lock is lost. `None` if the
    /// client was killed.
    pub until_us: Option<u64>,
}

/// All records of the workers, sorted into grants.
#[derive(Clone, Debug, Default)]
pub struct GrantHistory {
    /// In the order in which they were granted.
    pub grants: Vec<Grant>,
    /// Waits that were given up, or failed.
    pub fruitless: usize,
    /// Changes of the shared value that the store took.
    pub writes: u64,
    /// Guards that said they are lost.
    pub lost: usize,
    /// Calls that failed: who, doing what, how.
    pub failures: Vec<String>,
}

impl GrantHistory {
    /// Adds the records of a process.
    pub fn take(&mut self, process: &str, records: &[Record]) {
        let mut open: BTreeMap<u32, (u64, Option<usize>)> = BTreeMap::new();
        for record in records {
            let slot = open.entry(record.client).or_default();
            match &record.what {
                WorkerEvent::Asking => *slot = (record.at_us, None),
                WorkerEvent::Granted { locks, token } => {
                    slot.1 = Some(self.grants.len());
                    self.grants.push(Grant {
                        who: format!("{process}/{}", record.client),
                        locks: locks.clone(),
                        token: *token,
                        asked_us: slot.0,
                        granted_us: record.at_us,
                        until_us: None,
                    });
                }
                WorkerEvent::Letting { .. } => self.over(slot.1, record.at_us),
                WorkerEvent::Lost { .. } => {
                    self.lost += 1;
                    self.over(slot.1, record.at_us);
                }
                WorkerEvent::Wrote { accepted: true, .. } => self.writes += 1,
                WorkerEvent::GaveUp => self.fruitless += 1,
                WorkerEvent::Failed { doing, why } => {
                    if slot.1.is_none() {
                        self.fruitless += 1;
                    }
                    self.failures.push(format!("{process}/{} {doing}: {why}", record.client));
                }
                _ => {}
            }
        }
        self.grants.sort_by_key(|grant| grant.granted_us);
    }

    fn over(&mut self, at: Option<usize>, now_us: u64) {
        if let Some(grant) = at.and_then(|at| self.grants.get_mut(at)) {
            grant.until_us.get_or_insert(now_us);
        }
    }
}

/// Judges the grants of one exclusive lock: they come one after the other with rising tokens, no client is told while
/// another acts, and each grant is a request of the queue. Tokens are in the order in which the requests entered the
/// log, so rising tokens mean first come, first served.
pub fn exclusive(grants: &[Grant], requests: &[Life]) -> Result<(), String> {
    let tokens: BTreeSet<u64> = requests.iter().map(|request| request.token).collect();
    let mut in_order: Vec<&Grant> = grants.iter().collect();
    in_order.sort_by_key(|grant| grant.granted_us);
    for grant in &in_order {
        if !tokens.contains(&grant.token) {
            return Err(format!("{} was granted token {}, which is none of the queue's", grant.who, grant.token));
        }
    }
    for pair in in_order.windows(2) {
        let (earlier, later) = (pair[0], pair[1]);
        if earlier.token == later.token {
            return Err(format!("{} and {} were both granted token {}", earlier.who, later.who, later.token));
        }
        if earlier.token > later.token {
            return Err(format!(
                "{} was granted token {} before {} was granted token {}: not in the order of the requests",
                earlier.who, earlier.token, later.who, later.token
            ));
        }
        if let Some(until) = earlier.until_us.filter(|until| *until > later.granted_us) {
            return Err(format!(
                "{} was granted token {} while {} still acted under token {} ({} us longer)",
                later.who,
                later.token,
                earlier.who,
                earlier.token,
                until - later.granted_us
            ));
        }
    }
    Ok(())
}

/// Checks that no request in the log was passed over: each granted one held, by the rule of the queue. Returns how many
/// requests were never granted.
pub fn none_passed_over(grants: &[Grant], requests: &[Life]) -> Result<usize, String> {
    let places = Places::of(requests)?;
    let granted: BTreeSet<u64> = grants.iter().map(|grant| grant.token).collect();
    for token in granted.iter().filter(|token| places.held_from(**token).is_none()) {
        // It stood behind somebody to its end.
        let gone = places.get(*token).and_then(|place| place.gone);
        places.holds_after(*token, gone.map_or(u64::MAX, |gone| gone - 1))?;
    }
    Ok(places.all().iter().filter(|place| !granted.contains(&place.token)).count())
}

/// Joint grants: the nodes of a token are exactly those of the locks it names, came in one transaction and went in one,
/// and when the client was told, nobody who stood before it in one of the queues went on acting on it.
pub fn together(grants: &[Grant], queues: &BTreeMap<String, Vec<Life>>) -> Result<(), String> {
    let mut by_token: BTreeMap<u64, Vec<(&str, &Life)>> = BTreeMap::new();
    for (lock, requests) in queues {
        for request in requests {
            by_token.entry(request.token).or_default().push((lock, request));
        }
    }
    for grant in grants {
        let nodes = by_token.get(&grant.token).map(Vec::as_slice).unwrap_or_default();
        let have: BTreeSet<&str> = nodes.iter().map(|(lock, _)| *lock).collect();
        let want: BTreeSet<&str> = grant.locks.iter().map(String::as_str).collect();
        if have != want || nodes.len() != want.len() {
            return Err(format!(
                "token {} of {} was granted for {want:?} and stands in {have:?}",
                grant.token, grant.who
            ));
        }
    }
    for (lock, requests) in queues {
        let of_lock: Vec<Grant> = grants.iter().filter(|grant| grant.locks.contains(lock)).cloned().collect();
        exclusive(&of_lock, requests).map_err(|why| format!("{lock}: {why}"))?;
    }
    // Granted or not: nothing comes or goes in part.
    for (token, nodes) in &by_token {
        let ends: BTreeSet<Option<u64>> = nodes.iter().map(|(_, life)| life.gone).collect();
        if ends.len() > 1 {
            return Err(format!("the requests of token {token} went one by one: {ends:?}"));
        }
    }
    Ok(())
}

/// The longest time in `[from, to]` in which nobody was granted anything.
pub fn longest_standstill_us(grants: &[Grant], from_us: u64, to_us: u64) -> u64 {
    standstills(grants, from_us, to_us).into_iter().map(|(since, until)| until - since).max().unwrap_or(0)
}

/// The times in `[from, to]` from one grant to the next.
pub fn standstills(grants: &[Grant], from_us: u64, to_us: u64) -> Vec<(u64, u64)> {
    gaps(grants.iter().map(|grant| grant.granted_us), from_us, to_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(token: u64, granted_us: u64, until_us: u64) -> Grant {
        Grant {
            who: format!("p/{token}"),
            locks: vec!["a".into(), "b".into()],
            token,
            asked_us: 0,
            granted_us,
            until_us: (until_us > 0).then_some(until_us),
        }
    }

    fn life(token: u64, gone: u64) -> Life {
        Life { name: format!("_c_x-lock-{token:010}"), token, gone: (gone > 0).then_some(gone) }
    }

    #[test]
    fn one_after_the_other() {
        let requests = [life(5, 8), life(6, 9), life(7, 0)];
        assert_eq!(exclusive(&[grant(5, 10, 20), grant(6, 20, 30), grant(7, 40, 0)], &requests), Ok(()));
        let judged = |grants: &[Grant]| exclusive(grants, &requests).unwrap_err();
        assert!(judged(&[grant(5, 10, 20), grant(6, 19, 30)]).contains("still acted"));
        assert!(judged(&[grant(6, 10, 20), grant(5, 20, 30)]).contains("not in the order"));
        assert!(judged(&[grant(5, 10, 20), grant(5, 20, 30)]).contains("both granted"));
        assert!(judged(&[grant(4, 10, 20)]).contains("none of the queue's"));
    }

    #[test]
    fn nobody_is_passed_over() {
        let grants = [grant(5, 10, 20), grant(7, 30, 40)];
        assert_eq!(none_passed_over(&grants, &[life(5, 10), life(6, 8), life(7, 20)]), Ok(1), "6 gave up before");
        assert_eq!(none_passed_over(&grants, &[life(5, 10), life(7, 20), life(8, 0)]), Ok(1), "8 came later");
        let passed = none_passed_over(&grants, &[life(5, 10), life(6, 0), life(7, 20)]).unwrap_err();
        assert!(passed.contains("token 6"));
        let overtaken = none_passed_over(&grants, &[life(5, 30), life(7, 20)]).unwrap_err();
        assert!(overtaken.contains("token 5"));
    }

    #[test]
    fn joint_locks_come_and_go_whole() {
        let queues = |a: &[(u64, u64)], b: &[(u64, u64)]| -> BTreeMap<String, Vec<Life>> {
            let lives = |list: &[(u64, u64)]| list.iter().map(|(token, gone)| life(*token, *gone)).collect();
            BTreeMap::from([("a".to_owned(), lives(a)), ("b".to_owned(), lives(b))])
        };
        let grants = [grant(5, 10, 20), grant(6, 20, 30)];
        assert_eq!(together(&grants, &queues(&[(5, 8), (6, 9)], &[(5, 8), (6, 9)])), Ok(()));
        let judged = |grants: &[Grant], queues| together(grants, &queues).unwrap_err();
        assert!(judged(&grants, queues(&[(5, 8), (6, 9)], &[(5, 8)])).contains("stands in {\"a\"}"));
        assert!(judged(&grants, queues(&[(5, 8), (6, 9)], &[(5, 8), (6, 10)])).contains("one by one"));
        assert!(judged(&[], queues(&[(5, 8)], &[(5, 0)])).contains("one by one"), "even if nobody was told");
        let early = [grant(5, 10, 20), grant(6, 15, 30)];
        assert!(judged(&early, queues(&[(5, 8), (6, 9)], &[(5, 8), (6, 9)])).contains("still acted"));
        let swapped = [grant(6, 10, 20), grant(5, 25, 30)];
        assert!(judged(&swapped, queues(&[(5, 8), (6, 9)], &[(5, 8), (6, 9)])).contains("not in the order"));
    }

    #[test]
    fn standstill_counts_the_edges() {
        let grants = [grant(1, 30, 0), grant(2, 40, 0)];
        assert_eq!(longest_standstill_us(&grants, 0, 100), 60);
        assert_eq!(longest_standstill_us(&grants, 0, 45), 30);
        assert_eq!(longest_standstill_us(&[], 0, 45), 45);
    }

    #[test]
    fn records_become_grants() {
        let record = |at_us, client, what| Record { at_us, client, what };
        let granted = |token| WorkerEvent::Granted { locks: vec!["a".into()], token };
        let mut told = GrantHistory::default();
        told.take(
            "p1",
            &[
                record(1, 0, WorkerEvent::Asking),
                record(2, 1, WorkerEvent::Asking),
                record(5, 0, granted(9)),
                record(6, 0, WorkerEvent::Wrote { token: 9, value: 1, accepted: true }),
                record(7, 0, WorkerEvent::Letting { token: 9 }),
                record(8, 1, granted(10)),
                record(9, 1, WorkerEvent::Wrote { token: 10, value: 2, accepted: false }),
                record(9, 1, WorkerEvent::Lost { token: 10, why: "gone".into() }),
                record(10, 0, WorkerEvent::Asking),
                record(11, 0, WorkerEvent::Failed { doing: "acquire".into(), why: "lost".into() }),
            ],
        );
        let seen: Vec<_> =
            told.grants.iter().map(|g| (g.who.as_str(), g.token, g.asked_us, g.granted_us, g.until_us)).collect();
        assert_eq!(seen, [("p1/0", 9, 1, 5, Some(7)), ("p1/1", 10, 2, 8, Some(9))]);
        assert_eq!((told.writes, told.lost, told.fruitless, told.failures.len()), (1, 1, 1, 1));
    }
}
