//! Bounds the depth of replies and refusals when they are read: one of a multi contains others, and those contain none.
//! Without it, two bytes a level would overflow the reader's stack. Used through serde's `deserialize_with`.

use std::cell::Cell;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

thread_local! {
    /// Whether the contents of a reply or refusal are being read on this thread.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

struct Inside;

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// Reads a contained value, unless it is inside another one.
pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    if INSIDE.replace(true) {
        return Err(D::Error::custom("nested too deep"));
    }
    let _inside = Inside;
    T::deserialize(from)
}

#[cfg(test)]
mod tests {
    use crate::{Refusal, Reply};

    #[test]
    fn replies_and_refusals_nest_once() {
        let (reply, refusal) = (Reply::Multi(vec![Reply::Checked]), Refusal::SessionRequired);
        let refusal = Refusal::MultiFailed { index: 0, cause: Box::new(refusal) };
        let (flat, failed) = (postcard::to_stdvec(&reply).unwrap(), postcard::to_stdvec(&refusal).unwrap());
        for levels in [2, 100_000] {
            let deep = [flat[..2].repeat(levels), flat[2..].to_vec()].concat();
            assert!(postcard::from_bytes::<Reply>(&deep).is_err());
            let deep = [failed[..2].repeat(levels), failed[2..].to_vec()].concat();
            assert!(postcard::from_bytes::<Refusal>(&deep).is_err());
            assert_eq!(postcard::from_bytes(&flat), Ok(reply.clone()), "after {levels} levels were refused");
            assert_eq!(postcard::from_bytes(&failed), Ok(refusal.clone()));
        }
    }
}
