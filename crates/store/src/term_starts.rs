//! The term of every record, in memory: the first position of each term. Few, since a term changes with a leader.

use crate::position::LogPosition;

/// Ascending in both index and term. Says nothing of where the log begins or ends.
#[derive(Default)]
pub(crate) struct TermStarts(Vec<LogPosition>);

impl TermStarts {
    /// A record at the end of the log.
    pub(crate) fn push(&mut self, position: LogPosition) {
        if self.0.last().is_none_or(|last| last.term < position.term) {
            self.0.push(position);
        }
    }

    /// The position of the record at an index within the log.
    pub(crate) fn at(&self, index: u64) -> Option<LogPosition> {
        let starts = self.0.partition_point(|start| start.index <= index);
        starts.checked_sub(1).map(|last| LogPosition { term: self.0[last].term, index })
    }

    /// Keeps what lies below `end`.
    pub(crate) fn truncate(&mut self, end: u64) {
        self.0.truncate(self.0.partition_point(|start| start.index < end));
    }

    /// Keeps what lies at or above `start`.
    pub(crate) fn purge(&mut self, start: u64) {
        let covering = self.0.partition_point(|at| at.index <= start).saturating_sub(1);
        self.0.drain(..covering);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_term_of_every_record_is_known_while_the_log_is_cut_at_either_end() {
        let mut terms = TermStarts::default();
        for (index, term) in [(4, 1), (5, 1), (6, 3), (7, 3), (8, 4), (9, 4)] {
            terms.push(LogPosition { term, index });
        }
        let term = |terms: &TermStarts, index| terms.at(index).map(|at| at.term);
        assert_eq!(
            [3, 4, 5, 6, 7, 8, 9].map(|index| term(&terms, index)),
            [None, Some(1), Some(1), Some(3), Some(3), Some(4), Some(4)]
        );
        terms.purge(7);
        assert_eq!((term(&terms, 7), term(&terms, 9), terms.0.len()), (Some(3), Some(4), 2));
        terms.truncate(8);
        terms.push(LogPosition { term: 9, index: 8 });
        assert_eq!((term(&terms, 7), term(&terms, 8)), (Some(3), Some(9)));
        terms.purge(100);
        assert_eq!((term(&terms, 100), terms.0.len()), (Some(9), 1), "a later record may be of the same term");
        terms.truncate(0);
        assert_eq!(terms.at(100), None);
    }
}
