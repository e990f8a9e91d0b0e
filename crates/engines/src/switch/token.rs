//! Fencing tokens that stay comparable when the engine changes.
//!
//! Tokens of two engines cannot be compared: after a switch from an engine that has counted to a million to one that
//! begins at 1, a resource would refuse every write; after the way back it could take a stale one. So the high bits of
//! a token have the *generation*, which is part of the agreed state and rises each time that tokens come from another
//! engine. A drained lock has no grant of the old generation left when the first one of the new is made.
//!
//! A token has 15 bits of generation and 48 of the engine's own token, and fits into a signed 64-bit column. Neither
//! part may ever be cut: a token that does not fit is an error.

use crate::error::EngineError;

const BITS: u32 = 48;
/// The generation after which a group takes no further switch.
pub(super) const LAST_GENERATION: u16 = i16::MAX as u16;

/// The group's token for an engine's.
pub(super) fn compose(generation: u16, token: u64, engine: &str) -> Result<u64, EngineError> {
    if generation > LAST_GENERATION || token >> BITS != 0 {
        let why = format!(
            "the fencing token {token} of the engine {engine} is too large to be used in a group: it \
                           must be below 2^{BITS}"
        );
        return Err(EngineError::Refused(why));
    }
    Ok(u64::from(generation) << BITS | token)
}

/// The engine's token, if the group's token is of that generation.
pub(super) fn of_generation(generation: u16, token: u64) -> Option<u64> {
    (token >> BITS == u64::from(generation)).then_some(token & ((1 << BITS) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_generation_is_larger_whatever_the_engines_count() {
        let of = |generation, token| compose(generation, token, "e").unwrap();
        assert!(of(2, 1) > of(1, (1 << BITS) - 1));
        assert!(of(1, 8) > of(1, 7));
        assert!(i64::try_from(of(LAST_GENERATION, (1 << BITS) - 1)).is_ok());
        assert_eq!((of_generation(3, of(3, 7)), of_generation(4, of(3, 7))), (Some(7), None));
    }

    #[test]
    fn nothing_is_cut() {
        assert!(compose(1, 1 << BITS, "e").is_err());
        assert!(compose(LAST_GENERATION + 1, 1, "e").is_err());
    }
}
