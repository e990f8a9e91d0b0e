//! Judges what was seen while the certificates were replaced.

use super::handshakes::{HandshakeOutcome, HandshakeSeen};
use super::honest::HonestWork;
use crate::proofs::prelude::*;

/// An honest client may wait no longer from one cycle to the next.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// Who did fewer cycles, or fewer calls over the stream, was no load.
const LEAST_CYCLES: u64 = 50;
const LEAST_CALLS: u64 = 50;
/// The listeners of a node, all of which read the same files.
pub(super) const LISTENERS: u64 = 3;
/// Connections between peers that are broken at least: the leader's with each follower.
const LEAST_BROKEN: u64 = 2;
/// Findings of a kind that are quoted.
const QUOTED: usize = 5;

/// How many listeners `lockkeeper_tls_reload_failed` counted.
#[derive(Debug)]
pub(super) struct ReloadFailed {
    /// At the node with half a certificate.
    pub(super) during: u64,
    /// At all nodes, once all had whole ones.
    pub(super) after: u64,
}

/// What became of the cluster when all connections between peers were broken at the end.
#[derive(Debug)]
pub(super) struct PeersReconnected {
    pub(super) broken: u64,
    /// Until each node had taken a change and all had the same state.
    pub(super) took: Duration,
    pub(super) failures: Vec<String>,
}

/// All that is judged.
#[derive(Debug)]
pub(super) struct RotationResult {
    pub(super) honest: HonestWork,
    pub(super) term: u64,
    /// At the end, by node.
    pub(super) terms_after: Vec<(u64, u64)>,
    pub(super) handshakes: Vec<HandshakeSeen>,
    pub(super) reload_failed: ReloadFailed,
    pub(super) peers: PeersReconnected,
    /// The longest time until new files were in use, of nodes that got SIGHUP and of the one that never did.
    pub(super) by_signal: Duration,
    pub(super) by_change: Duration,
}

impl RotationResult {
    pub(super) fn findings(&self) -> Vec<String> {
        let cycles = self.honest.cycles.iter().flat_map(|work| work.failures.iter().cloned());
        let stream = self.honest.stream.failures.iter().map(|why| format!("the stream: {why}"));
        let failed: Vec<String> = cycles.chain(stream).collect();
        let unexpected = self.handshakes.iter().filter(|seen| !seen.is_as_expected());
        let unexpected: Vec<String> = unexpected.map(ToString::to_string).collect();
        let mut findings = Vec::new();
        for (what, those) in [
            ("requests of honest clients failed", &failed),
            ("sessions or locks were lost", &self.honest.lost),
            ("handshakes had another outcome than expected", &unexpected),
            ("checks failed after the connections between peers were broken", &self.peers.failures),
        ] {
            if !those.is_empty() {
                let quoted: Vec<&str> = those.iter().take(QUOTED).map(String::as_str).collect();
                findings.push(format!("{} {what}, such as: {}", those.len(), quoted.join(", ")));
            }
        }
        let (term, after) = (self.term, &self.terms_after);
        if after.len() != 3 || after.iter().any(|(_, now)| *now != term) {
            findings.push(format!("there was an election: the term was {term}, and is (node, term) {after:?}"));
        }
        let longest = self.longest_pause();
        if longest > LONGEST_PAUSE {
            let (longest, bound) = (millis(longest), millis(LONGEST_PAUSE));
            findings.push(format!("an honest client paused for {longest}; {bound} are allowed"));
        }
        if self.reload_failed.during != LISTENERS || self.reload_failed.after != 0 {
            let ReloadFailed { during, after } = self.reload_failed;
            findings.push(format!(
                "lockkeeper_tls_reload_failed counted {during} of {LISTENERS} listeners with half a certificate, and \
                 {after} of 0 with whole ones"
            ));
        }
        findings.extend(self.too_little());
        findings
    }

    fn longest_pause(&self) -> Duration {
        self.honest.cycles.iter().map(|work| work.longest_pause).max().unwrap_or_default()
    }

    fn let_in(&self) -> usize {
        self.handshakes.iter().filter(|seen| matches!(seen.outcome, HandshakeOutcome::LetIn)).count()
    }

    /// Why this shows nothing, if so.
    fn too_little(&self) -> Option<String> {
        let least = self.honest.cycles.iter().map(|work| work.cycles).min().unwrap_or(0);
        let (calls, let_in, broken) = (self.honest.stream.calls, self.let_in(), self.peers.broken);
        let turned_away = self.handshakes.len() - let_in;
        let is_enough = least >= LEAST_CYCLES && calls >= LEAST_CALLS && broken >= LEAST_BROKEN;
        (!is_enough || let_in == 0 || turned_away == 0).then(|| {
            format!(
                "too little was tried: {least} cycles of the slowest client, {calls} calls over the stream, {let_in} \
                 handshakes let in, {turned_away} turned away, {broken} connections between peers broken"
            )
        })
    }

    pub(super) fn describe(&self) -> String {
        let cycles: u64 = self.honest.cycles.iter().map(|work| work.cycles).sum();
        let (let_in, all) = (self.let_in(), self.handshakes.len());
        format!(
            "{cycles} cycles over HTTP and {} calls over one stream, none failed, longest pause {}; term {} \
             throughout; no session lost; {let_in} handshakes let in and {} turned away, as expected; new files in use \
             {} after SIGHUP, {} after a change alone; {} connections between peers broken, all well {} later",
            self.honest.stream.calls,
            millis(self.longest_pause()),
            self.term,
            all - let_in,
            millis(self.by_signal),
            millis(self.by_change),
            self.peers.broken,
            millis(self.peers.took),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::authorities::TlsState;
    use super::super::handshakes::Expected;
    use super::super::honest::StreamCalls;
    use super::*;
    use crate::net::Listener;
    use crate::proofs::lock_cycles::CycleWork;

    fn handshake(caller: TlsState, outcome: HandshakeOutcome) -> HandshakeSeen {
        let of = Expected { stage: "after", node: 1, state: TlsState::AFTER };
        HandshakeSeen { of, listener: Listener::Client, caller, outcome }
    }

    fn turned_away() -> HandshakeOutcome {
        HandshakeOutcome::TurnedAway("UnknownCA".into())
    }

    fn good() -> RotationResult {
        let cycles = vec![CycleWork { cycles: LEAST_CYCLES, ..CycleWork::default() }];
        let stream = StreamCalls { calls: LEAST_CALLS, ..StreamCalls::default() };
        RotationResult {
            honest: HonestWork { cycles, stream, lost: Vec::new() },
            term: 4,
            terms_after: vec![(1, 4), (2, 4), (3, 4)],
            handshakes: vec![
                handshake(TlsState::AFTER, HandshakeOutcome::LetIn),
                handshake(TlsState::BEFORE, turned_away()),
                handshake(TlsState::BUNDLED, turned_away()),
            ],
            reload_failed: ReloadFailed { during: LISTENERS, after: 0 },
            peers: PeersReconnected { broken: LEAST_BROKEN, took: Duration::ZERO, failures: Vec::new() },
            by_signal: Duration::ZERO,
            by_change: Duration::ZERO,
        }
    }

    #[test]
    fn each_kind_of_finding_breaks_the_promise() {
        assert!(good().findings().is_empty(), "{:?}", good().findings());
        let spoil: [fn(&mut RotationResult); 14] = [
            |result| result.honest.cycles[0].failures.push("no leader".into()),
            |result| result.honest.cycles[0].longest_pause = LONGEST_PAUSE * 2,
            |result| result.honest.cycles[0].cycles -= 1,
            |result| result.honest.stream.failures.push("it ended".into()),
            |result| result.honest.stream.calls -= 1,
            |result| result.honest.lost.push("session 7".into()),
            |result| result.terms_after[1].1 += 1,
            // A node that does not answer.
            |result| result.terms_after.truncate(2),
            |result| result.handshakes[0].outcome = HandshakeOutcome::Unclear("reset".into()),
            |result| result.handshakes[1].outcome = HandshakeOutcome::LetIn,
            |result| result.reload_failed.during -= 1,
            |result| result.reload_failed.after += 1,
            |result| result.peers.failures.push("node 2 takes no change".into()),
            |result| result.peers.broken = LEAST_BROKEN - 1,
        ];
        for (number, spoil) in spoil.iter().enumerate() {
            let mut result = good();
            spoil(&mut result);
            let findings = result.findings();
            // A handshake that fails is not one that was let in.
            assert!(!findings.is_empty() && findings.len() <= 2, "{number}: {findings:?}");
        }
    }

    #[test]
    fn a_finding_names_who_was_let_in() {
        let mut result = good();
        result.handshakes[2].outcome = HandshakeOutcome::LetIn;
        let findings = result.findings();
        let [finding] = &findings[..] else { panic!("{findings:?}") };
        assert!(finding.contains("a certificate of the old authority that trusts both authorities"), "{finding}");
        assert!(finding.contains("must be turned away and was let in"), "{finding}");
    }

    #[test]
    fn what_was_always_let_in_or_always_turned_away_shows_nothing() {
        for keep in [0, 1] {
            let mut result = good();
            result.handshakes = vec![result.handshakes.swap_remove(keep)];
            let findings = result.findings();
            assert!(findings.iter().any(|finding| finding.contains("too little")), "{findings:?}");
        }
    }
}
