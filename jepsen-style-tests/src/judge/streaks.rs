//! A lock that is shared inside a process: hands it goes through under one token, and that somebody outside is served in between.

use crate::judge::grants::Grant;

/// The hands that one grant went through inside a process.
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

/// What was seen of fairness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fairness {
    /// The longest streak, in hands.
    pub longest: u64,
    /// The longest streak, in time.
    pub longest_us: u64,
    /// The most local hands that went before an outsider between its asking and its grant.
    pub most_before_an_outsider: u64,
    /// The longest wait of an outsider.
    pub longest_wait_us: u64,
}

/// Judges streaks and the grants of an outsider who wants the same lock: no streak has more than `most` hands; none overlaps with the
/// outsider; and in the order of tokens the outsider comes where its request stood. Together: whoever asks from outside waits for the
/// streaks whose requests stood before its own, each within the cap, and for no other.
///
/// # Errors
/// Says which streak.
pub fn fair(streaks: &[Streak], outsider: &[Grant], most: u64) -> Result<Fairness, String> {
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
        let between: Vec<&Streak> =
            streaks.iter().filter(|s| s.last_us > grant.asked_us && s.first_us < grant.granted_us).collect();
        // The one that ran when it asked, and at most one whose request entered the log before its own.
        if between.len() > 2 {
            return Err(format!("{} streaks ran between the outsider's asking and its grant", between.len()));
        }
        let hands = between.iter().map(|streak| streak.holds).sum();
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

    #[test]
    fn served_in_turn() {
        let streaks = [streak(1, 8, 0, 100), streak(3, 5, 120, 200)];
        let fairness = fair(&streaks, &[outsider(2, 50, 105, 115)], 8).unwrap();
        assert_eq!(fairness, Fairness { longest: 8, longest_us: 100, most_before_an_outsider: 8, longest_wait_us: 55 });
    }

    #[test]
    fn unfair_streaks_are_caught() {
        let judged = |streaks: &[Streak], outsiders: &[Grant]| fair(streaks, outsiders, 8).unwrap_err();
        assert!(judged(&[streak(1, 9, 0, 100)], &[]).contains("9 hands"));
        assert!(judged(&[streak(1, 8, 0, 100)], &[outsider(2, 50, 99, 115)]).contains("while the outsider"));
        let overtaken = [streak(1, 8, 0, 100), streak(3, 8, 101, 200)];
        assert!(judged(&overtaken, &[outsider(2, 50, 205, 215)]).contains("not served in their order"));
        let starved = [streak(1, 8, 0, 100), streak(2, 8, 101, 200), streak(3, 8, 201, 300)];
        assert!(judged(&starved, &[outsider(4, 50, 305, 315)]).contains("3 streaks"));
    }
}
