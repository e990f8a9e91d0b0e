//! Calls for locks, from the side of the nodes that serve them (promises P2 and P3): a caller whose turn has come
//! gets its answer, and a request whose caller has gone is removed. Both soon, wherever nothing is wrong with the
//! world; that a wait ends some day proves nothing.
//!
//! A call counts from when a node begins to serve it until that node has its answer, so messages on their way do not
//! matter. If a node has answered "held" to a caller that had gone, the session keeps the lock, because the node
//! cannot know that the answer was lost. The same applies to a request that was sent more than once and holds: one of
//! its callers may have the answer. And no node removes the requests of a node that went down, unless they are sent
//! again.

use std::collections::{BTreeMap, BTreeSet};

use super::Checked;
use super::locks::Stands;

/// The longest time until a caller whose request holds is answered. Few messages need to be sent, in ticks of three
/// milliseconds.
const TOLD_WITHIN_US: u64 = 1_000_000;
/// A request that nobody waits for any more is gone within this.
const GONE_WITHIN_US: u64 = 3_000_000;
/// What was begun before the world came right may still wait for an answer that was lost.
const COMES_RIGHT_US: u64 = 5_000_000;

#[derive(Debug)]
struct Call {
    uuid: String,
    node: u64,
    since_us: u64,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Calls {
    open: BTreeMap<u64, Call>,
    last: u64,
    /// Since when each request that is waited for has been seen to hold.
    holding: BTreeMap<String, u64>,
    /// Requests that nobody will ask for again, from when on nobody waits for them.
    given_up: BTreeMap<String, u64>,
    /// Which nodes have served a request that its client has no certain answer to.
    served_by: BTreeMap<String, BTreeSet<u64>>,
    /// How often each was asked for.
    tries: BTreeMap<String, u32>,
    /// Requests that nobody has to look after.
    excused: BTreeSet<String>,
}

impl Calls {
    /// A node begins to serve a call; gives its number.
    pub fn begins(&mut self, uuid: &str, node: u64, now_us: u64) -> u64 {
        self.last += 1;
        *self.tries.entry(uuid.to_owned()).or_default() += 1;
        self.open.insert(self.last, Call { uuid: uuid.to_owned(), node, since_us: now_us });
        self.served_by.entry(uuid.to_owned()).or_default().insert(node);
        self.last
    }

    /// The call is over, because the node has its answer or has noticed that its caller is gone. `keeps` if the node
    /// left the request in the queue on purpose: it holds, or its session will ask for it elsewhere.
    pub fn ends(&mut self, call: u64, keeps: bool, now_us: u64) {
        let Some(Call { uuid, .. }) = self.open.remove(&call) else { return };
        if let Some(since_us) = self.given_up.get_mut(&uuid) {
            *since_us = now_us.max(*since_us);
        }
        if keeps {
            self.excused.insert(uuid);
        }
    }

    /// A node has gone down, and knows of no call any more.
    pub fn died(&mut self, node: u64) {
        self.open.retain(|_, call| call.node != node);
        let left = self.served_by.iter().filter(|(_, nodes)| nodes.contains(&node)).map(|(uuid, _)| uuid.clone());
        self.excused.extend(left);
    }

    /// A client has a certain answer to its request.
    pub fn settled(&mut self, uuid: &str) {
        self.served_by.remove(uuid);
    }

    /// A client will not ask for this again, and does not know what has become of it.
    pub fn gave_up(&mut self, uuid: &str, now_us: u64) {
        self.given_up.insert(uuid.to_owned(), now_us);
    }

    /// Whether everyone has what they must have by now; all has been well since `right_us`.
    ///
    /// # Errors
    /// If a caller whose turn has come has not been told, or a request without a caller is still there.
    pub fn overdue(&mut self, now_us: u64, right_us: u64, stands: impl Fn(&str) -> Stands) -> Checked {
        let right_us = right_us + COMES_RIGHT_US;
        let waited_for: BTreeSet<&String> = self.open.values().map(|call| &call.uuid).collect();
        self.holding.retain(|uuid, _| waited_for.contains(uuid) && stands(uuid) == Stands::Holds);
        for call in self.open.values() {
            if stands(&call.uuid) != Stands::Holds {
                continue;
            }
            let since_us = *self.holding.entry(call.uuid.clone()).or_insert(now_us);
            let due_us = since_us.max(call.since_us).max(right_us) + TOLD_WITHIN_US;
            if now_us > due_us {
                return Err(format!(
                    "request {} has held since {since_us} us, and its caller at node {} since {} us was not told by \
                     {now_us} us",
                    call.uuid, call.node, call.since_us
                ));
            }
        }
        self.given_up.retain(|uuid, _| stands(uuid) != Stands::Not || waited_for.contains(uuid));
        for (uuid, since_us) in &self.given_up {
            let may_be_reported = self.tries.get(uuid).is_some_and(|tries| *tries > 1) && stands(uuid) == Stands::Holds;
            let left = !waited_for.contains(uuid) && !self.excused.contains(uuid) && !may_be_reported;
            if left && now_us > *since_us.max(&right_us) + GONE_WITHIN_US {
                return Err(format!(
                    "nobody has waited for request {uuid} since {since_us} us, and it was still there at {now_us} us"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    fn holds(_: &str) -> Stands {
        Stands::Holds
    }

    fn waits(_: &str) -> Stands {
        Stands::Waits
    }

    #[test]
    fn a_caller_who_is_not_told_is_noticed() {
        let mut calls = Calls::default();
        let call = calls.begins("a", 1, 10 * S);
        calls.overdue(20 * S, 0, waits).unwrap();
        calls.overdue(21 * S, 0, holds).unwrap();
        calls.overdue(22 * S, 0, holds).unwrap();
        // Where the world has only just come right, there is time.
        calls.overdue(23 * S, 18 * S, holds).unwrap();
        calls.overdue(23 * S, 0, holds).unwrap_err();
        calls.ends(call, true, 23 * S);
        calls.overdue(23 * S, 0, holds).unwrap();
    }

    #[test]
    fn one_who_waits_again_or_at_a_node_that_died_is_another_matter() {
        let mut calls = Calls::default();
        calls.begins("a", 1, 10 * S);
        calls.overdue(10 * S, 0, holds).unwrap();
        calls.died(1);
        calls.overdue(20 * S, 0, holds).unwrap();
        calls.begins("a", 2, 20 * S);
        calls.overdue(21 * S, 0, holds).unwrap();
        calls.overdue(22 * S, 0, holds).unwrap();
        calls.overdue(23 * S, 0, holds).unwrap_err();
    }

    #[test]
    fn a_request_that_nobody_takes_back_is_noticed() {
        for stands in [waits, holds] {
            let mut calls = Calls::default();
            let call = calls.begins("a", 1, 10 * S);
            calls.gave_up("a", 11 * S);
            calls.ends(call, false, 12 * S);
            calls.overdue(15 * S, 0, stands).unwrap();
            calls.overdue(16 * S, 0, stands).unwrap_err();
            calls.overdue(16 * S, 0, |_| Stands::Not).unwrap();
            calls.overdue(60 * S, 0, stands).unwrap();
        }
    }

    #[test]
    fn one_that_was_asked_for_again_may_be_held_by_who_was_told_and_waits_for_nobody() {
        let mut calls = Calls::default();
        for node in [1, 2] {
            let call = calls.begins("a", node, S);
            calls.ends(call, false, 2 * S);
        }
        calls.gave_up("a", 2 * S);
        calls.overdue(60 * S, 0, holds).unwrap();
        calls.overdue(60 * S, 0, waits).unwrap_err();
    }

    #[test]
    fn what_nobody_can_take_back_may_stay() {
        let mut calls = Calls::default();
        let (answered, dies) = (calls.begins("answered", 1, S), calls.begins("dies", 2, S));
        calls.gave_up("answered", S);
        calls.gave_up("dies", S);
        calls.ends(answered, true, 2 * S);
        calls.ends(dies, false, 2 * S);
        calls.died(2);
        calls.overdue(60 * S, 0, waits).unwrap();
    }
}
