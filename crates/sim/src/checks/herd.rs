//! Promise P3: a node that leaves a queue wakes the requests that waited for it, and no others.
//!
//! Each call that waits for a lock is woken at most once for each node that its request waited for, so the nodes'
//! count can never exceed the number that was due. A request may wait in several calls, if its client has retried
//! elsewhere.

use std::collections::BTreeMap;

use super::Checked;
use super::locks::Entitled;

/// What was due, and what was counted.
#[derive(Debug, Default)]
pub struct Herd {
    /// How often each request was asked for.
    calls: BTreeMap<String, u64>,
    due: u64,
    counted: u64,
}

impl Herd {
    /// A client asks for a lock under this uuid, for the first time or again.
    pub fn requested(&mut self, uuid: &str) {
        *self.calls.entry(uuid.to_owned()).or_default() += 1;
    }

    /// These waited for something that has gone.
    pub fn entitled(&mut self, entitled: &Entitled) {
        self.due += entitled.uuids.iter().map(|uuid| self.calls.get(uuid).copied().unwrap_or(1)).sum::<u64>();
    }

    /// The nodes have woken so many in all.
    ///
    /// # Errors
    /// If that is more than were due.
    pub fn counted(&mut self, woken: u64) -> Checked {
        self.counted = woken;
        if woken <= self.due {
            return Ok(());
        }
        Err(format!("{woken} waiters were woken in all, and at most {} had anything to learn", self.due))
    }

    /// Woken, and due.
    pub fn figures(&self) -> (u64, u64) {
        (self.counted, self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_herd_is_refused() {
        let mut herd = Herd::default();
        herd.counted(0).unwrap();
        herd.requested("a");
        herd.requested("a");
        herd.entitled(&Entitled { uuids: vec!["a".into(), "b".into()] });
        herd.counted(3).unwrap();
        herd.counted(4).unwrap_err();
    }
}
