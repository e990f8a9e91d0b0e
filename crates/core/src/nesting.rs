//! Bounds the depth of the few types that contain themselves when they are written and read. Without it, two bytes a
//! level would overflow the reader's stack. Used through serde's `with` attributes; no value of the state is nested.

use std::cell::Cell;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::command::Op;

/// A multi, and in it one that will be refused.
const MAX_DEPTH: u32 = 2;

thread_local! {
    /// How many levels the value being written or read on this thread is nested.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

struct Level;

impl Level {
    fn enter() -> (Self, u32) {
        let depth = DEPTH.get() + 1;
        DEPTH.set(depth);
        (Self, depth)
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Reads a nested value, unless it is nested too deep.
pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let (_level, depth) = Level::enter();
    if depth > MAX_DEPTH {
        return Err(D::Error::custom("nested too deep"));
    }
    T::deserialize(from)
}

/// Reads the operations of a multi. Those of a multi within it are left out, as [`serialize`] leaves them out.
pub(crate) fn deserialize_ops<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Op>, D::Error> {
    let ops: Vec<Op> = deserialize(from)?;
    Ok(if DEPTH.get() + 1 < MAX_DEPTH { ops } else { Vec::new() })
}

/// Writes the operations of a multi. Those of a multi within it are left out: it is refused whatever it contains, and
/// so no bytes that a reader would refuse get into the log.
pub(crate) fn serialize<S: Serializer>(ops: &Vec<Op>, to: S) -> Result<S::Ok, S::Error> {
    let (_level, depth) = Level::enter();
    if depth < MAX_DEPTH { ops.serialize(to) } else { <[Op]>::serialize(&[], to) }
}
