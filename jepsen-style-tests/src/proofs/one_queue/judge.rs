//! What the counter's log says of the lock before it.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_checkers::lives::Life;

use super::counter::{ContenderAct, ContenderKind, CounterEntry, Who};
use crate::judge::grants::Grant;

/// A write that was refused may be seen before the watches tell that its token had gone, by so much on a busy machine.
const ALLOWANCE_US: u64 = 250_000;

/// What two holders at once do to the counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Harm {
    /// Writes of another value than the one before it plus one, which the counter took: an update is lost.
    pub(super) lost_updates: u64,
    /// Writes under a token older than one that wrote before.
    pub(super) refused: u64,
}

/// Counts the harm.
pub(super) fn harm(log: &[CounterEntry]) -> Harm {
    let mut harm = Harm::default();
    for entry in log {
        match entry.what {
            ContenderAct::Writes { taken: false, .. } => harm.refused += 1,
            ContenderAct::Writes { before, value, .. } if value != before + 1 => harm.lost_updates += 1,
            _ => {}
        }
    }
    harm
}

/// No update was lost: each write that was taken is one more than the one before it, under a larger token, and the
/// value at the end is their number. Gives the number for each kind.
pub(super) fn increments(log: &[CounterEntry], value_at_end: u64) -> Result<BTreeMap<ContenderKind, u64>, String> {
    let mut by_kind: BTreeMap<ContenderKind, u64> = ContenderKind::ALL.map(|kind| (kind, 0)).into();
    let mut last: Option<(Who, u64, u64)> = None;
    for entry in log {
        let ContenderAct::Writes { token, before, value, taken: true } = entry.what else { continue };
        let (by, largest, standing) = last.map_or((entry.who, 0, 0), |last| last);
        if before != standing || value != standing + 1 {
            return Err(format!("{} wrote {value} under token {token} where {by} had written {standing}", entry.who));
        }
        if token <= largest {
            return Err(format!("{} wrote under token {token} after {by} wrote under token {largest}", entry.who));
        }
        last = Some((entry.who, token, value));
        *by_kind.entry(entry.who.kind).or_default() += 1;
    }
    let acknowledged: u64 = by_kind.values().sum();
    if acknowledged != value_at_end {
        return Err(format!("{acknowledged} increments were acknowledged and the counter is {value_at_end}"));
    }
    Ok(by_kind)
}

/// Each kind has its share of the increments, a tenth at least.
pub(super) fn shares(by_kind: &BTreeMap<ContenderKind, u64>) -> Result<(), String> {
    let total: u64 = by_kind.values().sum();
    match by_kind.iter().find(|(_, count)| **count * 10 < total) {
        Some((kind, count)) => Err(format!("of {total} increments {count} are {kind}'s")),
        None => Ok(()),
    }
}

/// A write may be refused only if its token's place in the queue had gone before: its session was over, and nobody had
/// told it yet. Gives how many were.
pub(super) fn refusals(log: &[CounterEntry], requests: &[Life], seen_us: &BTreeMap<u64, u64>) -> Result<u64, String> {
    let mut refused = 0;
    for entry in log {
        let ContenderAct::Writes { token, taken: false, .. } = entry.what else { continue };
        refused += 1;
        let gone = requests.iter().find(|request| request.token == token).and_then(|request| request.gone);
        let gone_us = gone.and_then(|gone| seen_us.get(&gone));
        if gone_us.is_none_or(|gone_us| *gone_us > entry.at_us + ALLOWANCE_US) {
            return Err(format!(
                "a write of {} under token {token} was refused while its place in the queue stood",
                entry.who
            ));
        }
    }
    Ok(refused)
}

/// The grants, as the counter saw them: a holder reads, and has done all that it does under its token when its write is
/// answered. One that was lost, by its own word or by a refusal, has no end: what comes after it is not compared with
/// it.
pub(super) fn grants(log: &[CounterEntry], lock: &str) -> Vec<Grant> {
    let mut asked: BTreeMap<Who, u64> = BTreeMap::new();
    let mut open: BTreeMap<Who, usize> = BTreeMap::new();
    let mut grants: Vec<Grant> = Vec::new();
    for entry in log {
        match &entry.what {
            ContenderAct::Asks => drop(asked.insert(entry.who, entry.at_us)),
            ContenderAct::Suspended { .. } => {}
            ContenderAct::Reads { token } => {
                open.insert(entry.who, grants.len());
                grants.push(Grant {
                    who: entry.who.to_string(),
                    locks: vec![lock.to_owned()],
                    token: *token,
                    asked_us: asked.get(&entry.who).copied().unwrap_or(entry.at_us),
                    granted_us: entry.at_us,
                    until_us: None,
                });
            }
            ContenderAct::Writes { taken: true, .. } => {
                if let Some(grant) = open.remove(&entry.who).and_then(|at| grants.get_mut(at)) {
                    grant.until_us = Some(entry.at_us);
                }
            }
            ContenderAct::Writes { .. } | ContenderAct::Lost { .. } | ContenderAct::Failed { .. } => {
                open.remove(&entry.who);
            }
        }
    }
    grants
}

/// How many contenders of ZooKeeper's libraries lost their connection and went on.
pub(super) fn suspended(log: &[CounterEntry]) -> usize {
    let suspended = log.iter().filter(|entry| matches!(entry.what, ContenderAct::Suspended { .. }));
    suspended.map(|entry| entry.who).collect::<BTreeSet<_>>().len()
}

/// How often the lock went from one kind to another, of how many times that it went from one to the next.
pub(super) fn changes_of_kind(log: &[CounterEntry]) -> (usize, usize) {
    let holders: Vec<ContenderKind> = log
        .iter()
        .filter(|entry| matches!(entry.what, ContenderAct::Reads { .. }))
        .map(|entry| entry.who.kind)
        .collect();
    (holders.windows(2).filter(|pair| pair[0] != pair[1]).count(), holders.len().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::grants;

    const KAZOO: Who = Who { kind: ContenderKind::Kazoo, number: 1 };
    const CURATOR: Who = Who { kind: ContenderKind::Curator, number: 1 };
    const NATIVE: Who = Who { kind: ContenderKind::Native, number: 1 };

    fn log(entries: &[(Who, ContenderAct)]) -> Vec<CounterEntry> {
        let entry = |(at, (who, what)): (usize, &(Who, ContenderAct))| CounterEntry {
            at_us: at as u64,
            who: *who,
            what: what.clone(),
        };
        entries.iter().enumerate().map(entry).collect()
    }

    fn wrote(token: u64, before: u64, value: u64) -> ContenderAct {
        ContenderAct::Writes { token, before, value, taken: true }
    }

    fn life(token: u64, gone: u64) -> Life {
        Life { name: format!("_c_x-lock-{token:010}"), token, gone: (gone > 0).then_some(gone) }
    }

    #[test]
    fn one_after_the_other_is_whole() {
        let turns = [(KAZOO, 5, 0), (CURATOR, 6, 1), (NATIVE, 9, 2)];
        let turn = |(who, token, before)| {
            [(who, ContenderAct::Asks), (who, ContenderAct::Reads { token }), (who, wrote(token, before, before + 1))]
        };
        let log = log(&turns.map(turn).concat());
        let by_kind = increments(&log, 3).unwrap();
        assert_eq!(by_kind, ContenderKind::ALL.map(|kind| (kind, 1)).into());
        assert_eq!((shares(&by_kind), harm(&log), changes_of_kind(&log)), (Ok(()), Harm::default(), (2, 2)));
        let told = super::grants(&log, "l");
        assert_eq!((told[1].asked_us, told[1].granted_us, told[1].until_us), (3, 4, Some(5)));
        let requests = [life(5, 6), life(6, 9), life(9, 10)];
        assert_eq!(grants::exclusive(&told, &requests), Ok(()));
        assert!(increments(&log, 2).unwrap_err().contains("the counter is 2"));
    }

    #[test]
    fn a_lost_update_and_an_older_token_are_caught() {
        let twice = log(&[
            (KAZOO, ContenderAct::Reads { token: 5 }),
            (CURATOR, ContenderAct::Reads { token: 6 }),
            (KAZOO, wrote(5, 0, 1)),
            (CURATOR, wrote(6, 1, 1)),
        ]);
        assert!(
            increments(&twice, 1).unwrap_err().contains("curator/1 wrote 1 under token 6 where kazoo/1 had written 1")
        );
        assert_eq!(harm(&twice), Harm { lost_updates: 1, refused: 0 });
        let told = super::grants(&twice, "l");
        assert!(grants::exclusive(&told, &[life(5, 8), life(6, 9)]).unwrap_err().contains("still acted"));
        let again = log(&[(KAZOO, wrote(5, 0, 1)), (NATIVE, wrote(5, 1, 2))]);
        assert!(increments(&again, 2).unwrap_err().contains("after kazoo/1 wrote under token 5"));
    }

    #[test]
    fn a_refusal_needs_a_reason() {
        let refused = ContenderAct::Writes { token: 5, before: 1, value: 1, taken: false };
        let log = log(&[(KAZOO, ContenderAct::Reads { token: 5 }), (CURATOR, wrote(6, 0, 1)), (KAZOO, refused)]);
        assert_eq!(harm(&log).refused, 1);
        let seen = |at_us| BTreeMap::from([(7, at_us)]);
        assert_eq!(refusals(&log, &[life(5, 7)], &seen(1)), Ok(1));
        assert!(refusals(&log, &[life(5, 7)], &seen(ALLOWANCE_US + 3)).is_err(), "it went later");
        assert!(refusals(&log, &[life(5, 0)], &seen(1)).is_err(), "it stands");
        assert_eq!(super::grants(&log, "l")[0].until_us, None);
    }

    #[test]
    fn everybody_has_a_share() {
        let counts = |native| {
            BTreeMap::from([(ContenderKind::Kazoo, 50), (ContenderKind::Curator, 50), (ContenderKind::Native, native)])
        };
        assert_eq!(shares(&counts(12)), Ok(()));
        assert!(shares(&counts(10)).unwrap_err().contains("10 are native's"));
    }
}
