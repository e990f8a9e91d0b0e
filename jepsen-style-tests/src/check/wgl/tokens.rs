//! The tokens that were told, known beforehand: they rise from grant to grant, so each grant that was told has its place among them before
//! the search begins. Without this a search that places one of two grants too early finds out only when nothing fits any more.

use super::lock::LockAnswer;
use super::{Model, OperationOf};

/// Of one lock, in order. Without any, every rising token will do.
#[derive(Clone, Debug, Default)]
pub(super) struct Tokens(Vec<u64>);

impl Tokens {
    /// Those of the grants that certainly took place. None if there are none.
    pub(super) fn of<M: Model<Output = LockAnswer>>(
        operations: &[OperationOf<M>],
        is_acquire: impl Fn(&M::Input) -> bool,
    ) -> Option<Self> {
        let acquired =
            operations.iter().filter(|operation| operation.must_take_place() && is_acquire(&operation.input));
        let mut tokens: Vec<u64> = acquired
            .filter_map(|operation| match operation.output {
                Some(LockAnswer::Granted { token }) => Some(token),
                _ => None,
            })
            .collect();
        tokens.sort_unstable();
        (!tokens.is_empty()).then_some(Self(tokens))
    }

    /// Whether a grant under this token may come when `largest` was the one before it: no other that was told lies between.
    pub(super) fn comes_next(&self, largest: u64, token: u64) -> bool {
        let next = self.0.get(self.0.partition_point(|told| *told <= largest));
        token > largest && next.is_none_or(|next| token <= *next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_token_is_passed_over() {
        let tokens = Tokens(vec![3, 5, 9]);
        assert!(tokens.comes_next(0, 3) && tokens.comes_next(3, 5) && tokens.comes_next(9, 12));
        assert!(!tokens.comes_next(0, 5) && !tokens.comes_next(3, 9) && !tokens.comes_next(3, 3));
        assert!(Tokens::default().comes_next(0, 5) && !Tokens::default().comes_next(5, 5));
    }
}
