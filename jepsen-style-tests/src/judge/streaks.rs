//! Judges a lock that is shared inside a process: how often it is handed over under one token, and whether an outsider
//! is served in between.

use std::collections::BTreeMap;

use lockkeeper_checkers::lives::Life;

use crate::judge::grants::Grant;
use crate::record::{Record, WorkerEvent};

/// The holders that one grant had inside a process, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streak {
    /// The grant.
    pub token: u64,
    /// How many held, one after the other.
    pub holds: u64,
    /// When the first was told.
    pub first_us: u64,
    /// When the last let go.
    pub last_us: u64,
}

/// The streaks that a process told of.
pub fn streaks(told: &[Record]) -> Vec<Streak> {
    let streak = |record: &Record| match record.what {
        WorkerEvent::Streak { token, holds, first_us, last_us } => Some(Streak { token, holds, first_us, last_us }),
        _ => None,
    };
    told.iter().filter_map(streak).collect()
}

/// What was seen of fairness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fairness {
    /// The longest streak, in hands.
    pub longest: u64,
    /// The longest streak, in time.
    pub longest_us: u64,
    /// The most local hands that went before an outsider: those of the streaks whose requests stood before its own.
    pub most_before_an_outsider: u64,
    /// The longest wait of an outsider.
    pub longest_wait_us: u64,
}

/// Judges streaks and the grants of an outsider that wants the same lock. No streak has more than `most` holders, none
/// overlaps with the outsider, and in the order of tokens the outsider is served where its request stood. So the
/// outsider waits only for the streaks whose requests stood before its own, each within the cap. The lock's queue in
/// the log tells how many those are: much may happen between the outsider's asking and its request in the log.
pub fn fair(streaks: &[Streak], outsider: &[Grant], requests: &[Life], most: u64) -> Result<Fairness, String> {
    let by_token: BTreeMap<u64, &Life> = requests.iter().map(|request| (request.token, request)).collect();
    let request = |token| by_token.get(&token).ok_or_else(|| format!("token {token} is none of the queue's"));
    let mut fairness = Fairness::default();
    for streak in streaks {
        if streak.holds > most {
            return Err(format!("token {} went through {} hands, the cap is {most}", streak.token, streak.holds));
        }
        fairness.longest = fairness.longest.max(streak.holds);
        fairness.longest_us = fairness.longest_us.max(streak.last_us.saturating_sub(streak.first_us));
    }
    for grant in outsider {
        let until = grant.until_us.unwrap_or(grant.granted_us);
        for streak in streaks {
            if streak.first_us < until && streak.last_us > grant.granted_us {
                return Err(format!(
                    "token {} was in hands while the outsider held token {}",
                    streak.token, grant.token
                ));
            }
            if (streak.token < grant.token) != (streak.first_us < grant.granted_us) {
                return Err(format!("tokens {} and {} were not served in their order", streak.token, grant.token));
            }
        }
        request(grant.token)?;
        let (mut stood, mut hands) = (0, 0);
        for streak in streaks.iter().filter(|streak| streak.token < grant.token) {
            if request(streak.token)?.stands_after(grant.token) {
                (stood, hands) = (stood + 1, hands + streak.holds);
            }
        }
        // The one that ran, and at most one other.
        if stood > 2 {
            return Err(format!("{stood} streaks stood before the outsider's token {}", grant.token));
        }
        fairness.most_before_an_outsider = fairness.most_before_an_outsider.max(hands);
        fairness.longest_wait_us = fairness.longest_wait_us.max(grant.granted_us - grant.asked_us);
    }
    Ok(fairness)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streak(token: u64, holds: u64, first_us: u64, last_us: u64) -> Streak {
        Streak { token, holds, first_us, last_us }
    }

    fn outsider(token: u64, asked_us: u64, granted_us: u64, until_us: u64) -> Grant {
        Grant { who: "o/0".into(), locks: vec![], token, asked_us, granted_us, until_us: Some(until_us) }
    }

    fn queue(lives: &[(u64, u64)]) -> Vec<Life> {
        let life = |&(token, gone)| Life { name: format!("_c_x-lock-{token:010}"), token, gone: Some(gone) };
        lives.iter().map(life).collect()
    }

    #[test]
    fn served_in_turn() {
        let streaks = [streak(1, 8, 0, 100), streak(3, 5, 120, 200)];
        let requests = queue(&[(1, 4), (2, 5), (3, 6)]);
        let fairness = fair(&streaks, &[outsider(2, 50, 105, 115)], &requests, 8).unwrap();
        assert_eq!(fairness, Fairness { longest: 8, longest_us: 100, most_before_an_outsider: 8, longest_wait_us: 55 });
    }

    #[test]
    fn streaks_before_its_request_was_in_the_log_do_not_count() {
        let streaks = [streak(1, 8, 0, 100), streak(3, 7, 101, 200), streak(5, 6, 201, 300)];
        let requests = queue(&[(1, 2), (3, 4), (5, 7), (6, 8)]);
        let fairness = fair(&streaks, &[outsider(6, 50, 305, 315)], &requests, 8).unwrap();
        assert_eq!(fairness.most_before_an_outsider, 6);
    }

    #[test]
    fn unfair_streaks_are_caught() {
        let requests = queue(&[(1, 5), (2, 6), (3, 7), (4, 8)]);
        let judged = |streaks: &[Streak], outsiders: &[Grant]| fair(streaks, outsiders, &requests, 8).unwrap_err();
        assert!(judged(&[streak(1, 9, 0, 100)], &[]).contains("9 hands"));
        assert!(judged(&[streak(1, 8, 0, 100)], &[outsider(2, 50, 99, 115)]).contains("while the outsider"));
        let overtaken = [streak(1, 8, 0, 100), streak(3, 8, 101, 200)];
        assert!(judged(&overtaken, &[outsider(2, 50, 205, 215)]).contains("not served in their order"));
        let starved = [streak(1, 8, 0, 100), streak(2, 8, 101, 200), streak(3, 8, 201, 300)];
        assert!(judged(&starved, &[outsider(4, 50, 305, 315)]).contains("3 streaks stood"));
        assert!(judged(&starved, &[outsider(9, 50, 305, 315)]).contains("none of the queue's"));
    }
}
