//! Jute, the encoding under ZooKeeper's protocol: big-endian numbers, and strings, buffers and vectors behind a 32-bit
//! length in which −1 means null.
//!
//! Each length is compared with what is left of the message before anything is allocated for it. That is at least as
//! strict as ZooKeeper's `jute.maxbuffer`, because the frame around the message was held to that limit already
//! ([`crate::frame`]).

mod error;
mod reader;
mod wire;
mod writer;

pub use error::{DecodeError, UnknownNumber};
pub use reader::Reader;
pub use wire::Wire;
pub use writer::Writer;
