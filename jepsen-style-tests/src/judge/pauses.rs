//! Judges a holder that was paused, between reading a number and writing it, for longer than its session lived.

use crate::record::{Record, WorkerEvent};

/// One pause, as its holder, the other holder and the store tell it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PauseTrial {
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

impl PauseTrial {
    /// From what the paused holder told, and what the store took in its own order.
    pub fn of(holder: &[Record], taken: &[(i64, i64)]) -> Self {
        let mut pause = Self::default();
        for record in holder {
            match record.what {
                WorkerEvent::Lost { .. } if !pause.wrote_late => pause.told_before_writing = true,
                WorkerEvent::Wrote { .. } => pause.wrote_late = true,
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
pub enum ExpectedProtection {
    /// The guard stops it: nothing is even sent.
    Stopped,
    /// The store stops it: sent, and refused.
    Refused,
    /// Nothing stops it: the negative control. That it did no harm would mean that the pause did not bite.
    Corrupted,
}

/// Judges one pause.
pub fn shows(pause: &PauseTrial, expected: ExpectedProtection) -> Result<(), String> {
    let harm = pause.stale_taken > 0 || pause.lost_updates() != 0;
    match expected {
        ExpectedProtection::Stopped if pause.wrote_late || !pause.told_before_writing => {
            Err(format!("the guard did not say that it is lost before the write: {pause:?}"))
        }
        ExpectedProtection::Refused if !pause.wrote_late => {
            Err(format!("no late write was sent, so none was refused: {pause:?}"))
        }
        ExpectedProtection::Stopped | ExpectedProtection::Refused if harm => {
            Err(format!("a stale write was taken: {pause:?}"))
        }
        ExpectedProtection::Corrupted if pause.stale_taken == 0 || pause.lost_updates() <= 0 => {
            Err(format!("the negative control did no harm: {pause:?}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(what: &[WorkerEvent]) -> Vec<Record> {
        what.iter().map(|what| Record { at_us: 0, client: 0, what: what.clone() }).collect()
    }

    fn wrote(accepted: bool) -> WorkerEvent {
        WorkerEvent::Wrote { token: 5, value: 1, accepted }
    }

    #[test]
    fn each_row_shows_what_it_must_and_nothing_else_passes() {
        let lost = WorkerEvent::Lost { token: 5, why: "too late".into() };
        let rival = [(1, 7), (2, 8)];
        let corrupt = [(1, 7), (2, 8), (1, 5)];

        let stopped = PauseTrial::of(&holder(std::slice::from_ref(&lost)), &rival);
        let refused = PauseTrial::of(&holder(&[wrote(false), lost.clone()]), &rival);
        let corrupted = PauseTrial::of(&holder(&[wrote(true), lost]), &corrupt);
        let silent = PauseTrial::of(&[], &rival);
        let taken = PauseTrial::of(&holder(&[wrote(true)]), &corrupt);

        let verdicts = |pause: &PauseTrial| {
            [ExpectedProtection::Stopped, ExpectedProtection::Refused, ExpectedProtection::Corrupted]
                .map(|expected| shows(pause, expected).is_ok())
        };
        assert_eq!(verdicts(&stopped), [true, false, false]);
        assert_eq!(verdicts(&refused), [false, true, false]);
        assert_eq!(verdicts(&corrupted), [false, false, true]);
        assert_eq!(verdicts(&silent), [false, false, false], "neither lost nor wrote: the guard kept silent");
        assert_eq!(verdicts(&taken), [false, false, true]);
        assert_eq!((corrupted.stale_taken, corrupted.lost_updates()), (1, 2));
    }
}
