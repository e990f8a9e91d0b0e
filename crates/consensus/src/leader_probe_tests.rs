//! Probes of a leader that answers as a script says, on a clock that the tests move.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::time::timeout;

use super::*;
use crate::admission::auth::{PeerBook, PeerIdentity};
use crate::admission::claim::{DirectoryClaim, Start, StartId};
use crate::admission::guard::RollbackGuard;
use crate::admission::levels::AnnouncedLevels;
use crate::transport::Transport;

const LEADER: u64 = 2;

/// What becomes of a probe.
#[derive(Clone)]
enum Step {
    Answered,
    TimesOut,
    /// As [`TimesOut`](Self::TimesOut), while this node stands still.
    TimesOutInStall,
    Fails(TransportError),
}
use Step::{Answered, Fails, TimesOut, TimesOutInStall};

/// A leader that answers every probe after the last step.
struct ScriptedLeader {
    steps: Mutex<VecDeque<Step>>,
    probes: AtomicUsize,
    reconnects: AtomicUsize,
}

#[async_trait]
impl Transport for ScriptedLeader {
    async fn call(&self, _: u64, _: PeerKind, _: Bytes, deadline: Duration) -> Result<Bytes, TransportError> {
        self.probes.fetch_add(1, Ordering::Relaxed);
        let step = self.steps.lock().pop_front();
        match step {
            None | Some(Answered) => Ok(Bytes::new()),
            Some(Fails(error)) => Err(error),
            Some(TimesOut) => {
                sleep(deadline).await;
                Err(TransportError::TimedOut)
            }
            Some(TimesOutInStall) => {
                sleep(deadline + 2 * STALL).await;
                Err(TransportError::TimedOut)
            }
        }
    }

    fn reconnect(&self, node: u64, kind: PeerKind) {
        assert_eq!((node, kind), (LEADER, PeerKind::LivenessCheck));
        self.reconnects.fetch_add(1, Ordering::Relaxed);
    }
}

/// A follower and its leader.
struct ProbedPair {
    peers: Peers,
    leader: Arc<ScriptedLeader>,
    _directory: TempDir,
}

impl ProbedPair {
    fn new(steps: &[Step]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let start = StartId { number: 1, boot: 1 };
        let identity = PeerIdentity { cluster: "test".into(), node: 1, directory: 7, start };
        let book = PeerBook::open(directory.path(), identity, &BTreeMap::new()).unwrap();
        let claim = DirectoryClaim { directory: 7, starts: vec![Start { id: start, term: 0, last: 0 }] };
        let (guard, _) = RollbackGuard::new(1, claim, book, Arc::new(|_: String| ()), (1..=3).collect(), true);
        let leader = Arc::new(ScriptedLeader {
            steps: Mutex::new(steps.iter().cloned().collect()),
            probes: AtomicUsize::default(),
            reconnects: AtomicUsize::default(),
        });
        Self { peers: Peers::new(1, leader.clone(), guard, AnnouncedLevels::new(1)), leader, _directory: directory }
    }

    /// Probes until the end, for at most a minute. Also gives the milliseconds until then.
    async fn probe(&self) -> (Option<ProbingEnd>, u128) {
        let began = Instant::now();
        let probing = probe_until_silent(&self.peers, LEADER, times());
        let end = timeout(Duration::from_secs(60), probing).await.ok();
        (end, began.elapsed().as_millis())
    }

    fn reconnects(&self) -> usize {
        self.leader.reconnects.load(Ordering::Relaxed)
    }
}

/// Those of a server's usual settings.
fn times() -> ProbeTimes {
    ProbeTimes::of(&Config::new("test", 1, BTreeMap::new()))
}

fn rejected(code: &str) -> Step {
    Fails(TransportError::Rejected { code: code.into(), detail: String::new() })
}

#[tokio::test(start_paused = true)]
async fn two_timeouts_in_a_row_are_silence_and_the_second_probe_uses_a_new_connection() {
    let pair = ProbedPair::new(&[Answered, TimesOut, TimesOut]);
    let (end, took_ms) = pair.probe().await;
    assert_eq!((end, pair.reconnects()), (Some(ProbingEnd::Silent), 2));
    // An interval of 100 ms, and two deadlines of 225 ms. Some milliseconds may be added by the rounding of timers. A
    // leader freezes 50 ms after its last answer in the median, and an election takes some 50 ms.
    assert!((550..560).contains(&took_ms), "{took_ms} ms");
}

#[tokio::test(start_paused = true)]
async fn one_timeout_is_no_silence_and_moves_the_open_call() {
    let pair = ProbedPair::new(&[Answered, TimesOut, Answered]);
    assert_eq!((pair.probe().await.0, pair.reconnects()), (Some(ProbingEnd::Reconnected), 1));
    let pair = ProbedPair::new(&[Answered, TimesOut, Fails(TransportError::Refused)]);
    assert_eq!(pair.probe().await.0, Some(ProbingEnd::Reconnected), "the open call may not notice that on its own");
}

#[tokio::test(start_paused = true)]
async fn timeouts_while_this_node_stands_still_do_not_count() {
    let pair = ProbedPair::new(&[Answered, TimesOutInStall, TimesOutInStall, TimesOutInStall, Answered]);
    assert_eq!((pair.probe().await.0, pair.reconnects()), (None, 0));
    let pair = ProbedPair::new(&[Answered, TimesOut, TimesOutInStall, TimesOut]);
    assert_eq!(pair.probe().await.0, Some(ProbingEnd::Silent), "a stall in between hides no silence");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_has_not_answered_is_never_silent() {
    let pair = ProbedPair::new(&[TimesOut, TimesOut, TimesOut, Answered]);
    assert_eq!((pair.probe().await.0, pair.reconnects()), (Some(ProbingEnd::Reconnected), 3));
    for error in [TransportError::Reset, TransportError::Unreachable(String::new())] {
        // Another process may be there since.
        let pair = ProbedPair::new(&[Answered, Fails(error), TimesOut, TimesOut, TimesOut, Answered]);
        assert_eq!(pair.probe().await.0, Some(ProbingEnd::Reconnected));
    }
    let pair = ProbedPair::new(&[rejected("not_ready"), TimesOut, TimesOut]);
    assert_eq!(pair.probe().await.0, Some(ProbingEnd::Silent), "a rejection is an answer");
}

#[tokio::test(start_paused = true)]
async fn rounds_end_when_the_leader_answers_again() {
    let pair = ProbedPair::new(&[TimesOut, Fails(TransportError::Refused), rejected(CODE_GOING_DOWN), Answered]);
    assert!(run_until_answered(&pair.peers, LEADER, std::future::pending()).await);
    assert_eq!((pair.leader.probes.load(Ordering::Relaxed), pair.reconnects()), (4, 1));

    let pair = ProbedPair::new(&[TimesOut, TimesOut, TimesOut]);
    let rounds = sleep(Duration::from_millis(350));
    assert!(!run_until_answered(&pair.peers, LEADER, rounds).await, "a silent leader does not end them");
}
