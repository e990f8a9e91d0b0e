//! Applied agreement: every state that a replica shows is one that the log gives, bit by bit.
//!
//! The log is applied once more, entry by entry, and the states are kept for a while. The state of a replica, however
//! old, must be one of those with its zxid. No correct replica shows a zxid at which the log never stood between two
//! entries.

use std::collections::BTreeMap;

use lockkeeper_core::State;

use super::Checked;

/// How many past states are kept to compare replicas and answers with.
const KEPT: usize = 4_096;

/// See the module's text.
#[derive(Debug)]
pub struct AppliedAgreement {
    /// The state after each of the last entries, by their index.
    states: BTreeMap<u64, State>,
    /// By zxid: the first and the last kept entry after which the state had it. The clock, origins and remembered
    /// replies move without a zxid.
    spans: BTreeMap<u64, (u64, u64)>,
    /// By zxid.
    checksums: BTreeMap<u64, u64>,
    kept: usize,
    compared: u64,
}

impl Default for AppliedAgreement {
    fn default() -> Self {
        Self::keeping(KEPT)
    }
}

impl AppliedAgreement {
    fn keeping(kept: usize) -> Self {
        let (states, spans) = (BTreeMap::from([(0, State::new())]), BTreeMap::from([(0, (0, 0))]));
        Self { states, spans, checksums: BTreeMap::new(), kept, compared: 0 }
    }

    /// The log gives this state after the entry at `index`.
    pub fn follow(&mut self, index: u64, state: &State) {
        let zxid = state.zxid().0;
        self.spans.entry(zxid).or_insert((index, index)).1 = index;
        self.states.insert(index, state.clone());
        while self.states.len() > self.kept {
            let Some((oldest, state)) = self.states.pop_first() else { break };
            let zxid = state.zxid().0;
            if let Some(span) = self.spans.get_mut(&zxid) {
                span.0 = oldest + 1;
                if span.0 > span.1 {
                    self.spans.remove(&zxid);
                    self.checksums.remove(&zxid);
                }
            }
        }
    }

    /// The state that the log gave last with this zxid; none where that is so long ago that it is not kept.
    ///
    /// # Errors
    /// If the log never stood at this zxid.
    pub fn at(&self, zxid: u64) -> Result<Option<&State>, String> {
        if let Some((_, last)) = self.spans.get(&zxid) {
            return Ok(self.states.get(last));
        }
        let oldest = self.spans.first_key_value().map_or(0, |(oldest, _)| *oldest);
        if zxid < oldest {
            return Ok(None);
        }
        let newest = self.spans.last_key_value().map_or(0, |(newest, _)| *newest);
        Err(format!("zxid {zxid} is at no end of an entry of the log, which has come to {newest}"))
    }

    /// A replica shows this state.
    ///
    /// # Errors
    /// If the log gives no such state: other data, another clock, other origins or other remembered replies.
    pub fn shown(&mut self, node: u64, shown: &State) -> Checked {
        let zxid = shown.zxid().0;
        if self.at(zxid).map_err(|what| format!("node {node} shows a state that cannot be: {what}"))?.is_none() {
            return Ok(());
        }
        self.compared += 1;
        let Some(&(first, last)) = self.spans.get(&zxid) else { return Ok(()) };
        if self.states.range(first..=last).rev().any(|(_, state)| state == shown) {
            return Ok(());
        }
        Err(format!("node {node} shows at zxid {zxid} what the log gives after no entry from {first} to {last}"))
    }

    /// The same by the product's own checksum, which is what operators compare.
    ///
    /// # Errors
    /// If the checksums at the same zxid differ.
    pub fn summed(&mut self, node: u64, shown: &State) -> Checked {
        let zxid = shown.zxid().0;
        let Ok(Some(state)) = self.at(zxid).map(Option::<&State>::cloned) else { return Ok(()) };
        let expected = *self.checksums.entry(zxid).or_insert_with(|| state.checksum());
        let checksum = shown.checksum();
        if expected == checksum {
            return Ok(());
        }
        Err(format!("node {node} has checksum {checksum:016x} at zxid {zxid}, and the log gives {expected:016x}"))
    }

    /// How many states of replicas were compared.
    pub fn compared(&self) -> u64 {
        self.compared
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{Actor, Command, NodeOp, RequestId, RequestKey, SessionId};

    use super::super::test_history::{Log, made, path};
    use super::*;

    #[test]
    fn what_the_log_gives_is_right_however_old_it_is() {
        let (mut log, mut agreement) = (Log::default(), AppliedAgreement::default());
        let states: Vec<_> = ["/a", "/b", "/c"].map(|path| log.make(path)).into();
        for (index, state) in &states {
            agreement.follow(*index, state);
        }
        agreement.shown(1, &State::new()).unwrap();
        for (_, state) in &states {
            agreement.shown(1, state).unwrap();
            agreement.summed(1, state).unwrap();
        }
        assert_eq!(agreement.compared(), 4);
    }

    #[test]
    fn other_data_at_the_same_zxid_is_refused() {
        let (mut log, mut other, mut agreement) = (Log::default(), Log::default(), AppliedAgreement::default());
        let (index, state) = log.make("/a");
        agreement.follow(index, &state);
        let (_, state) = other.make("/b");
        agreement.shown(2, &state).unwrap_err();
        agreement.summed(2, &state).unwrap_err();
    }

    /// Nothing that a checksum covers: an answer that is remembered, or the clock.
    #[test]
    fn what_moves_without_a_zxid_is_compared_too() {
        let open = || Command::OpenSession { secret_hash: [0; 32], timeout_ms: 2_000, label: "".into() };
        let refused = |id| {
            let request = Some(RequestKey { id: RequestId(id), acknowledged: Vec::new() });
            let op = NodeOp::Delete { path: path("/none"), version: None };
            vec![Command::Do { actor: Actor::of(SessionId(1)).asking(request), op: op.into() }]
        };
        let (mut log, mut other, mut agreement) = (Log::default(), Log::default(), AppliedAgreement::default());
        for log in [&mut log, &mut other] {
            let (index, state) = log.append(vec![open()]);
            agreement.follow(index, &state);
        }
        let before = log.state.clone();
        let (index, state) = log.append(refused(7));
        agreement.follow(index, &state);
        agreement.shown(1, &before).unwrap();
        agreement.shown(1, &state).unwrap();
        let (_, spoilt) = other.append(refused(8));
        assert_eq!(spoilt.zxid(), state.zxid());
        agreement.summed(2, &spoilt).unwrap();
        agreement.shown(2, &spoilt).unwrap_err();
    }

    #[test]
    fn a_zxid_at_which_the_log_never_stood_is_refused() {
        let (mut log, mut other, mut agreement) = (Log::default(), Log::default(), AppliedAgreement::default());
        let (index, state) = log.append(vec![made("/a"), made("/b")]);
        agreement.follow(index, &state);
        // Half of an entry; beyond the log.
        let (_, half) = other.make("/a");
        agreement.shown(1, &half).unwrap_err();
        agreement.at(half.zxid().0).unwrap_err();
        let (_, beyond) = log.make("/c");
        agreement.shown(1, &beyond).unwrap_err();
        agreement.at(99).unwrap_err();
    }

    #[test]
    fn what_is_no_longer_kept_is_passed_over() {
        let (mut log, mut agreement) = (Log::default(), AppliedAgreement::keeping(2));
        for path in ["/a", "/b", "/c"] {
            let (index, state) = log.make(path);
            agreement.follow(index, &state);
        }
        agreement.shown(1, &State::new()).unwrap();
        assert!(agreement.at(0).unwrap().is_none() && agreement.at(2).unwrap().is_some());
        assert_eq!((agreement.compared(), agreement.states.len(), agreement.spans.len()), (0, 2, 2));
    }
}
