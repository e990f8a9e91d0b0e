//! Election safety (Raft, section 5.2): at most one leader in a term, whichever node is asked. That it is no front node
//! is checked where the leaders are seen, by the run.

use std::collections::BTreeMap;

use super::Checked;

/// Who was seen to lead which term.
#[derive(Debug, Default)]
pub struct OneLeader {
    of_term: BTreeMap<u64, u64>,
}

impl OneLeader {
    /// Node `witness` says that `leader` leads `term`.
    ///
    /// # Errors
    /// If another was named before.
    pub fn saw(&mut self, witness: u64, term: u64, leader: u64) -> Checked {
        let first = *self.of_term.entry(term).or_insert(leader);
        if first == leader {
            return Ok(());
        }
        Err(format!("term {term} is led by node {first}, and by node {leader} as node {witness} says"))
    }

    /// How many terms had a leader.
    pub fn terms(&self) -> usize {
        self.of_term.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_leaders_of_one_term_are_refused() {
        let mut leaders = OneLeader::default();
        leaders.saw(1, 1, 1).unwrap();
        leaders.saw(2, 1, 1).unwrap();
        leaders.saw(3, 2, 3).unwrap();
        leaders.saw(1, 1, 2).unwrap_err();
        leaders.saw(3, 1, 3).unwrap_err();
        assert_eq!(leaders.terms(), 2);
    }
}
