//! Uses the granted tokens as knowledge in advance: they rise from grant to grant, so each recorded grant has its place
//! among them before the search begins, and a session ends after all of its own grants. Without this, a search that
//! places an operation too early finds out only when nothing fits any more.

use std::collections::BTreeMap;

/// Of one lock. Without any, every rising token will do, and a session may end at any time.
#[derive(Clone, Debug, Default)]
pub(super) struct Tokens {
    /// In order.
    told: Vec<u64>,
    /// The largest that each owner was told.
    last_of: BTreeMap<u64, u64>,
}

impl Tokens {
    /// Those of the grants that certainly took place, each with its owner. None if there are none.
    pub(super) fn of(grants: impl Iterator<Item = (u64, u64)>) -> Option<Self> {
        let mut tokens = Self::default();
        for (owner, token) in grants {
            tokens.told.push(token);
            let last = tokens.last_of.entry(owner).or_default();
            *last = (*last).max(token);
        }
        tokens.told.sort_unstable();
        (!tokens.told.is_empty()).then_some(tokens)
    }

    /// Whether a grant under this token may come when `largest` was the one before it: no other that was told lies
    /// between.
    pub(super) fn comes_next(&self, largest: u64, token: u64) -> bool {
        let next = self.told.get(self.told.partition_point(|told| *told <= largest));
        token > largest && next.is_none_or(|next| token <= *next)
    }

    /// Whether this owner's session may end when `largest` was the last grant: it was granted nothing later.
    pub(super) fn may_end(&self, largest: u64, owner: u64) -> bool {
        self.last_of.get(&owner).is_none_or(|last| *last <= largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_token_is_passed_over() {
        let tokens = Tokens { told: vec![3, 5, 9], last_of: BTreeMap::new() };
        assert!(tokens.comes_next(0, 3) && tokens.comes_next(3, 5) && tokens.comes_next(9, 12));
        assert!(!tokens.comes_next(0, 5) && !tokens.comes_next(3, 9) && !tokens.comes_next(3, 3));
        assert!(Tokens::default().comes_next(0, 5) && !Tokens::default().comes_next(5, 5));
    }

    #[test]
    fn a_session_ends_after_its_last_grant() {
        let tokens = Tokens { told: vec![3, 5, 9], last_of: BTreeMap::from([(1, 9), (2, 5)]) };
        assert!(tokens.may_end(9, 1) && tokens.may_end(5, 2) && tokens.may_end(0, 7));
        assert!(!tokens.may_end(5, 1) && !tokens.may_end(3, 2));
        assert!(Tokens::default().may_end(0, 1));
    }
}
