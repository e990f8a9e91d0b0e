//! Refusals of invalid arguments.

use std::sync::Arc;

use crate::limits::MAX_LABEL_BYTES;
use crate::reply::Refusal;

pub(crate) fn check_label(label: &str) -> Result<(), Refusal> {
    if label.len() > MAX_LABEL_BYTES {
        return Err(bad(format!("a label is at most {MAX_LABEL_BYTES} bytes long, this one has {}", label.len())));
    }
    Ok(())
}

/// A refusal of invalid arguments.
pub(crate) fn bad(why: impl Into<Arc<str>>) -> Refusal {
    Refusal::BadArguments(why.into())
}
