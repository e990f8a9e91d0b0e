//! Encodes an operation: its number, then its fields in order. The numbers run through all groups of operations, and
//! never change their meaning (`wire.rs` has a test of the bytes of each).
//!
//! The operations of a multi have the same numbers. There, a number that is none of a [`NodeOp`]'s is refused when it
//! is read, so nothing nests.

use std::fmt;
use std::sync::Arc;

use serde::de::value::{EnumAccessDeserializer, U32Deserializer};
use serde::de::{DeserializeSeed, EnumAccess, IntoDeserializer, VariantAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::command::{GateOp, LockOp, NodeOp, Op};

const NAME: &str = "Op";
/// The number of a multi; those of the operations on nodes are smaller.
const MULTI: u32 = 6;
const FIRST_LOCK_OP: u32 = 7;
const FIRST_GATE_OP: u32 = 14;
/// The number of a change of access control: later changes are variants of that one.
const ACCESS: u32 = 17;
/// Operations that feature level 3 added. A later group of operations gets one number, and its variants follow it.
const ACQUIRE_REENTRANT: u32 = 18;
/// Where a lock operation with a number of its own stands among the variants of [`LockOp`].
const ACQUIRE_REENTRANT_INDEX: u32 = 7;
/// A result of a gate that is kept for ever, and where that stands among the variants of [`GateOp`]. The reset of a
/// gate is the next variant.
const FINISH_FOREVER: u32 = 19;
const FINISH_FOREVER_INDEX: u32 = 3;
/// An addition to a node's number. Within a multi it has the number of its variant.
const ADD: u32 = 20;
/// The variant of [`NodeOp`] that it is.
const ADD_INDEX: u32 = 6;
/// The operations on rate limits.
const RATE: u32 = 21;
/// The reset of a gate.
const RESET: u32 = 22;

impl Serialize for Op {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Node(NodeOp::Add { path, delta, min, max }) => write(to, ADD, &(path, delta, min, max)),
            Self::Node(op) => op.serialize(to),
            Self::Multi(ops) => write(to, MULTI, ops),
            Self::Lock(op) => match op {
                LockOp::Acquire { locks, mode, delay_ms, uuid, label } => {
                    write(to, 7, &(locks, mode, delay_ms, uuid, label))
                }
                LockOp::Withdraw { locks, token, if_holding } => write(to, 8, &(locks, token, if_holding)),
                LockOp::Release { locks, token } => write(to, 9, &(locks, token)),
                LockOp::Downgrade { lock, token } => write(to, 10, &(lock, token)),
                LockOp::Claim { locks, token } => write(to, 11, &(locks, token)),
                LockOp::Abandon { locks, token, versions } => write(to, 12, &(locks, token, versions)),
                LockOp::ForceRelease { lock, token } => write(to, 13, &(lock, token)),
                LockOp::AcquireReentrant { lock, delay_ms, uuid, label } => {
                    write(to, ACQUIRE_REENTRANT, &(lock, delay_ms, uuid, label))
                }
            },
            Self::Gate(op) => match op {
                GateOp::Begin { key, fingerprint, pending_ms, label } => {
                    write(to, 14, &(key, fingerprint, pending_ms, label))
                }
                GateOp::Finish { key, token, result, keep_ms } => write(to, 15, &(key, token, Blob(result), keep_ms)),
                GateOp::Fail { key, token } => write(to, 16, &(key, token)),
                GateOp::FinishForever { key, token, result } => write(to, FINISH_FOREVER, &(key, token, Blob(result))),
                GateOp::Reset { key, token } => write(to, RESET, &(key, token)),
            },
            Self::Access(op) => write(to, ACCESS, op),
            Self::Rate(op) => write(to, RATE, op),
        }
    }
}

fn write<S: Serializer>(to: S, number: u32, fields: &impl Serialize) -> Result<S::Ok, S::Error> {
    to.serialize_newtype_variant(NAME, number, "", fields)
}

#[derive(Serialize)]
struct Blob<'a>(#[serde(serialize_with = "crate::blob::serialize")] &'a Arc<[u8]>);

impl<'de> Deserialize<'de> for Op {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_enum(NAME, &[], OpVisitor)
    }
}

struct OpVisitor;

impl<'de> Visitor<'de> for OpVisitor {
    type Value = Op;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an operation")
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<Op, A::Error> {
        let (number, fields) = access.variant()?;
        match number {
            0..MULTI => NodeOp::deserialize(variant(number, fields)).map(Op::Node),
            MULTI => fields.newtype_variant().map(Op::Multi),
            FIRST_LOCK_OP..FIRST_GATE_OP => LockOp::deserialize(variant(number - FIRST_LOCK_OP, fields)).map(Op::Lock),
            FIRST_GATE_OP..ACCESS => GateOp::deserialize(variant(number - FIRST_GATE_OP, fields)).map(Op::Gate),
            ACCESS => fields.newtype_variant().map(Op::Access),
            ACQUIRE_REENTRANT => LockOp::deserialize(variant(ACQUIRE_REENTRANT_INDEX, fields)).map(Op::Lock),
            FINISH_FOREVER => GateOp::deserialize(variant(FINISH_FOREVER_INDEX, fields)).map(Op::Gate),
            ADD => NodeOp::deserialize(variant(ADD_INDEX, fields)).map(Op::Node),
            RATE => fields.newtype_variant().map(Op::Rate),
            RESET => GateOp::deserialize(variant(FINISH_FOREVER_INDEX + 1, fields)).map(Op::Gate),
            _ => Err(serde::de::Error::custom(format_args!("there is no operation {number}"))),
        }
    }
}

fn variant<A>(index: u32, fields: A) -> EnumAccessDeserializer<IndexedVariant<A>> {
    EnumAccessDeserializer::new(IndexedVariant { index, fields })
}

/// A variant whose index within its group is known, and whose fields follow in the input.
struct IndexedVariant<A> {
    index: u32,
    fields: A,
}

impl<'de, A: VariantAccess<'de>> EnumAccess<'de> for IndexedVariant<A> {
    type Error = A::Error;
    type Variant = A;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, A), A::Error> {
        let index: U32Deserializer<A::Error> = self.index.into_deserializer();
        Ok((seed.deserialize(index)?, self.fields))
    }
}
