//! A holder that was paused for longer than its session lived, between reading a number and writing it.

use crate::record::{Record, What};

/// One pause, as its holder, the other holder and the store tell it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// The guard said that it is lost, and nothing was written.
    pub told_before_writing: bool,
    /// The paused holder sent a write when it went on.
    pub wrote_late: bool,
    /// Writes that the store took although it had taken one with a larger token: by the store's own log.
    pub stale_taken: u64,
    /// Increments that the store took.
    pub increments: i64,
    /// What the store holds at the end.
    pub value: i64,
}

impl Pause {
    /// From what the paused holder told, and what the store took in its own order.
    pub fn of(holder: &[Record], taken: &[(i64, i64)]) -> Self {
        let mut pause = Self::default();
        for record in holder {
            match record.what {
                What::Lost { .. } if !pause.wrote_late => pause.told_before_writing = true,
                What::Wrote { .. } => pause.wrote_late = true,
                _ => {}
            }
        }
        let mut largest = i64::MIN;
        for (value, token) in taken {
            if *token < largest {
                pause.stale_taken += 1;
            }
            largest = largest.max(*token);
            pause.value = *value;
        }
        pause.increments = i64::try_from(taken.len()).unwrap_or(i64::MAX);
        pause
    }

    /// Increments that the store took and that are not in its number.
    pub fn lost_updates(&self) -> i64 {
        self.increments - self.value
    }
}

/// What a row of the table must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The guard stops it: nothing is even sent.
    Stopped,
    /// The store stops it: sent, and refused.
    Refused,
    /// Nothing stops it: the negative control. That it did no harm would mean that the pause did not bite.
    Corrupted,
}

/// Judges one pause.
///
/// # Errors
/// Says what else it shows.
pub fn shows(pause: &Pause, expected: Expected) -> Result<(), String> {
    let harm = pause.stale_taken > 0 || pause.lost_updates() != 0;
    match expected {
        Expected::Stopped if pause.wrote_late || !pause.told_before_writing => {
            Err(format!("the guard did not say that it is lost before the write: {pause:?}"))
        }
        Expected::Refused if !pause.wrote_late => {
            Err(format!("no late write was sent, so none was refused: {pause:?}"))
        }
        Expected::Stopped | Expected::Refused if harm => Err(format!("a stale write was taken: {pause:?}")),
        Expected::Corrupted if pause.stale_taken == 0 || pause.lost_updates() <= 0 => {
            Err(format!("the negative control did no harm: {pause:?}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(what: &[What]) -> Vec<Record> {
        what.iter().map(|what| Record { at_us: 0, client: 0, what: what.clone() }).collect()
    }

    fn wrote(accepted: bool) -> What {
        What::Wrote { token: 5, value: 1, accepted }
    }

    #[test]
    fn each_row_shows_what_it_must_and_nothing_else_passes() {
        let lost = What::Lost { token: 5, why: "too late".into() };
        let rival = [(1, 7), (2, 8)];
        let corrupt = [(1, 7), (2, 8), (1, 5)];

        let stopped = Pause::of(&holder(std::slice::from_ref(&lost)), &rival);
        let refused = Pause::of(&holder(&[wrote(false), lost.clone()]), &rival);
        let corrupted = Pause::of(&holder(&[wrote(true), lost]), &corrupt);
        let silent = Pause::of(&[], &rival);
        let taken = Pause::of(&holder(&[wrote(true)]), &corrupt);

        let verdicts = |pause: &Pause| {
            [Expected::Stopped, Expected::Refused, Expected::Corrupted].map(|expected| shows(pause, expected).is_ok())
        };
        assert_eq!(verdicts(&stopped), [true, false, false]);
        assert_eq!(verdicts(&refused), [false, true, false]);
        assert_eq!(verdicts(&corrupted), [false, false, true]);
        assert_eq!(verdicts(&silent), [false, false, false], "neither lost nor wrote: the guard kept silent");
        assert_eq!(verdicts(&taken), [false, false, true]);
        assert_eq!((corrupted.stale_taken, corrupted.lost_updates()), (1, 2));
    }
}
