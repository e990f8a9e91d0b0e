//! The bounds of a request's body: its size, its time, and the room that it takes of a budget before it is read.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::admission::Admission;
use crate::budget::{Budget, Exceeded, Holder, Taken};

/// Bounds of a body.
#[derive(Clone, Copy, Debug)]
pub struct BodyBounds {
    /// Most bytes of it.
    pub max_bytes: usize,
    /// Longest time for it to arrive.
    pub timeout: Duration,
}

/// A body of at most this size takes nothing of the budget: the bound on requests at work bounds these.
const SMALL_BYTES: usize = 4 * 1024;

/// Room for a body, taken before it is read.
#[derive(Debug)]
pub struct Room {
    budget: Arc<Budget>,
    holder: Holder,
    bytes: usize,
    taken: Option<Taken>,
}

impl Room {
    /// Room for a request from an address.
    pub fn new(admission: &Admission, from: IpAddr) -> Self {
        Self::of(&admission.request_bytes, Holder::address(from))
    }

    /// Room that a holder takes of a budget.
    pub fn of(budget: &Arc<Budget>, holder: Holder) -> Self {
        Self { budget: budget.clone(), holder, bytes: SMALL_BYTES, taken: None }
    }

    /// Gives the room back: the body is complete, and counted elsewhere.
    pub fn release(&mut self) {
        (self.bytes, self.taken) = (SMALL_BYTES, None);
    }

    /// What has been taken: nothing for a small body.
    pub fn into_taken(self) -> Option<Taken> {
        self.taken
    }

    /// Takes room until it is enough for this many bytes.
    pub fn fit(&mut self, bytes: usize) -> Result<(), Exceeded> {
        if bytes <= self.bytes {
            return Ok(());
        }
        let more = bytes - self.bytes;
        match &mut self.taken {
            Some(taken) => taken.grow(more)?,
            none => *none = Some(self.budget.take(self.holder, more)?),
        }
        self.bytes = bytes;
        Ok(())
    }
}
