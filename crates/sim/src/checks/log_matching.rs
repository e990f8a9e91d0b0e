//! Log matching and state machine safety (Raft, sections 5.3 and 5.4): logs that agree on the term of an entry agree
//! on it and on everything before it; an entry that one replica has applied at an index, every replica applies there.

use std::collections::BTreeMap;

use super::Checked;

/// What an entry is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Its term.
    pub term: u64,
    /// A hash of its contents.
    pub hash: u64,
}

/// FNV-1a: a hash that is the same on every run.
pub fn hash_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Every entry that was ever seen in a log, and the sequence of those that were applied.
#[derive(Debug, Default)]
pub struct LogMatching {
    /// By index and term: the contents, and the term of the entry before, if that was seen.
    seen: BTreeMap<(u64, u64), (u64, Option<u64>)>,
    /// From index `first` on, what was applied.
    applied: BTreeMap<u64, Mark>,
}

impl LogMatching {
    /// Node `node` has this entry in its log; `before` is the term of the entry before it.
    ///
    /// # Errors
    /// If another log has something else at this index and term, or before it.
    pub fn in_log(&mut self, node: u64, index: u64, mark: Mark, before: Option<u64>) -> Checked {
        let known = self.seen.entry((index, mark.term)).or_insert((mark.hash, before));
        if known.0 != mark.hash {
            return Err(format!("entry {index} of term {} is another in the log of node {node}", mark.term));
        }
        match (known.1, before) {
            (Some(one), Some(other)) if one != other => Err(format!(
                "entry {index} of term {} follows one of term {other} in the log of node {node}, and one of term \
                 {one} in another",
                mark.term
            )),
            (None, Some(_)) => {
                known.1 = before;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Node `node` has applied this entry. True if it is the first to do so.
    ///
    /// # Errors
    /// If another entry was applied at this index before, or if one is missing.
    pub fn applied(&mut self, node: u64, index: u64, mark: Mark) -> Result<bool, String> {
        if let Some(known) = self.applied.get(&index) {
            if *known == mark {
                return Ok(false);
            }
            let (term, was) = (mark.term, known.term);
            return Err(format!(
                "node {node} applied an entry of term {term} at index {index}, where one of term {was} had been applied"
            ));
        }
        if let Some((last, _)) = self.applied.last_key_value()
            && *last + 1 != index
        {
            return Err(format!("node {node} applied entry {index}, while the last one ever applied was {last}"));
        }
        self.applied.insert(index, mark);
        Ok(true)
    }

    /// What was applied at an index.
    pub fn at(&self, index: u64) -> Option<Mark> {
        self.applied.get(&index).copied()
    }

    /// The last index that was applied anywhere.
    pub fn last(&self) -> Option<u64> {
        self.applied.last_key_value().map(|(index, _)| *index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(term: u64, text: &str) -> Mark {
        Mark { term, hash: hash_of(text.as_bytes()) }
    }

    #[test]
    fn a_committed_entry_does_not_change() {
        let mut log = LogMatching::default();
        assert!(log.applied(1, 1, mark(1, "a")).unwrap());
        assert!(log.applied(1, 2, mark(1, "b")).unwrap());
        assert!(!log.applied(2, 1, mark(1, "a")).unwrap());
        log.applied(2, 2, mark(2, "b")).unwrap_err();
        log.applied(2, 2, mark(1, "c")).unwrap_err();
        log.applied(2, 4, mark(1, "d")).unwrap_err();
        assert_eq!((log.last(), log.at(2)), (Some(2), Some(mark(1, "b"))));
    }

    #[test]
    fn logs_that_agree_on_a_term_agree_on_what_is_there_and_before() {
        let mut log = LogMatching::default();
        log.in_log(1, 1, mark(1, "a"), None).unwrap();
        log.in_log(1, 2, mark(2, "b"), Some(1)).unwrap();
        // A tail that was not committed may be another under another term.
        log.in_log(2, 2, mark(3, "c"), Some(1)).unwrap();
        log.in_log(2, 2, mark(2, "c"), Some(1)).unwrap_err();
        log.in_log(3, 2, mark(2, "b"), Some(3)).unwrap_err();
        log.in_log(3, 1, mark(1, "a"), Some(1)).unwrap();
        log.in_log(3, 1, mark(1, "a"), Some(2)).unwrap_err();
    }
}
