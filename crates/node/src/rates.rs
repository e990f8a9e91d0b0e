//! Permits of rate limits (see `lockkeeper_core::rate`): takes them from the replicated bucket, for all callers that
//! wait at this node together, and hands out from memory what it has leased.
//!
//! For each name there is at most one command in flight; requests that come meanwhile go into the next one. A node that
//! is asked often leases permits ahead, as many as it handed out in about the time of a lease, so that most requests
//! need no command. A request that was refused for want of permits says until when others for as many are, too: nobody
//! gives permits back.
//!
//! This module must never hand out a permit that the state has not given it, nor one whose lease may be over.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lockkeeper_core::limits::MAX_TAKES_TOGETHER;
use lockkeeper_core::rate::LEASE_MS;
use lockkeeper_core::{Principals, Rate, RateName, Refusal, Reply, TraceContext, Zxid};
use lockkeeper_mutants::mutant;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::error::{Bound, NodeError};
use crate::request::{At, Caller};
use crate::time::clock::whole_ms;

/// How long this node hands out what it has leased, from when it sent the command. The replicated clock, by which the
/// lease ends, runs at most 1 % faster than this node's.
const HAND_OUT: Duration = Duration::from_millis(LEASE_MS * 9 / 10);
/// Longest time for which a refusal is remembered: the bucket may be deleted or get another rate, which nobody tells.
const LONGEST_REFUSAL: Duration = Duration::from_secs(1);
/// Most names about which something is remembered. Beyond it everything but what is in flight is forgotten.
const MAX_NAMES: usize = 4_096;
/// Most requests for one name that wait for a command.
const MAX_WAITING: usize = 8 * MAX_TAKES_TOGETHER;

/// A request for permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakePermits {
    /// The rate limit.
    pub name: RateName,
    /// Its rate.
    pub rate: Rate,
    /// How many permits, all or none: from 1 to the limit.
    pub permits: u32,
    /// Whether a bucket with another rate gets this one instead of a refusal.
    pub reconfigure: bool,
}

/// The answer to a request for permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitsTaken {
    /// Whether the permits were taken.
    pub granted: bool,
    /// About how many are left.
    pub available: u32,
    /// If they were not taken: in how many milliseconds they will be there, if nobody takes any until then.
    pub retry_after_ms: u64,
}

/// What this node knows about rate limits.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    names: Mutex<BTreeMap<RateName, Known>>,
}

/// What this node knows about one rate limit.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The rate to which the rest belongs.
    rate: Option<Rate>,
    /// Leased permits, and until when they may be handed out.
    leased: u32,
    leased_until: Duration,
    refused: Option<Refused>,
    available: u32,
    zxid: Zxid,
    /// Permits handed out since the last command was sent.
    handed_out: u32,
    sent_at: Option<Duration>,
    pub(crate) is_in_flight: bool,
    waiting: VecDeque<Waiting>,
}

/// What is known of permits that were not there.
#[derive(Clone, Copy, Debug)]
struct Refused {
    /// So many and more are not there.
    permits: u32,
    /// Before this time, if the bucket stays as it is.
    until: Duration,
    /// For how long that counts.
    known_until: Duration,
}

#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) taking: TakePermits,
    pub(crate) principals: Principals,
    pub(crate) trace: Option<TraceContext>,
    answer: oneshot::Sender<Result<At<PermitsTaken>, NodeError>>,
}

/// What becomes of a request.
pub(crate) enum Taken {
    Answered(At<PermitsTaken>),
    /// The answer comes with the next command; the flag says whether the caller has it sent.
    Later(oneshot::Receiver<Result<At<PermitsTaken>, NodeError>>, bool),
}

impl Known {
    /// Answers from memory, if that is possible.
    fn answer(&mut self, taking: &TakePermits, now: Duration) -> Option<At<PermitsTaken>> {
        if self.rate != Some(taking.rate) || taking.reconfigure {
            return None;
        }
        if taking.permits <= self.leased && now < self.leased_until {
            if !mutant!(HandOutLeaseAgain) {
                self.leased -= taking.permits;
            }
            return Some(self.grant(taking.permits, self.leased));
        }
        let refused = self.refused.filter(|refused| now < refused.known_until)?;
        (refused.permits <= taking.permits).then(|| self.refuse(refused.until - now))
    }

    fn grant(&mut self, permits: u32, also_left: u32) -> At<PermitsTaken> {
        self.handed_out = self.handed_out.saturating_add(permits);
        metrics::counter!("lockkeeper_rate_permits_total", "outcome" => "granted").increment(permits.into());
        let available = self.available.saturating_add(also_left);
        At { value: PermitsTaken { granted: true, available, retry_after_ms: 0 }, zxid: self.zxid }
    }

    fn refuse(&self, wait: Duration) -> At<PermitsTaken> {
        metrics::counter!("lockkeeper_rate_requests_refused_total").increment(1);
        let retry_after_ms = whole_ms(wait).saturating_add(1);
        At { value: PermitsTaken { granted: false, available: self.available, retry_after_ms }, zxid: self.zxid }
    }

    /// Takes the requests of the next command: the first ones, as far as they are alike.
    pub(crate) fn next_batch(&mut self) -> Vec<Waiting> {
        let mut batch: Vec<Waiting> = Vec::new();
        while let Some(next) = self.waiting.pop_front() {
            if next.answer.is_closed() {
                continue;
            }
            let is_alike = |first: &Waiting| {
                (first.taking.rate, first.taking.reconfigure) == (next.taking.rate, next.taking.reconfigure)
            };
            if batch.len() == MAX_TAKES_TOGETHER || !batch.first().is_none_or(is_alike) {
                self.waiting.push_front(next);
                break;
            }
            batch.push(next);
        }
        batch
    }

    /// How many permits to lease ahead: as many as were handed out since the last command, if that is not long ago.
    pub(crate) fn ahead(&mut self, rate: Rate, now: Duration) -> u32 {
        let is_recent = self.sent_at.is_some_and(|sent_at| now - sent_at < HAND_OUT);
        let is_known = self.rate == Some(rate);
        self.sent_at = Some(now);
        let handed_out = std::mem::take(&mut self.handed_out);
        if is_recent && is_known { handed_out } else { 0 }
    }

    /// Notes what a command has brought.
    fn learn(&mut self, rate: Rate, sent_at: Duration, leased: u32, available: u32, zxid: Zxid) {
        let lapsed = std::mem::replace(&mut self.leased, leased);
        metrics::counter!("lockkeeper_rate_permits_total", "outcome" => "lapsed").increment(lapsed.into());
        metrics::counter!("lockkeeper_rate_permits_total", "outcome" => "leased").increment(leased.into());
        self.leased_until = sent_at + HAND_OUT;
        (self.rate, self.available, self.zxid, self.refused) = (Some(rate), available, zxid, None);
    }

    fn is_of_use(&self, now: Duration) -> bool {
        self.is_in_flight
            || self.sent_at.is_some_and(|sent_at| now - sent_at < HAND_OUT)
            || self.refused.is_some_and(|refused| now < refused.known_until)
    }
}

impl Rates {
    pub(crate) fn enqueue(&self, taking: TakePermits, caller: Caller, now: Duration) -> Result<Taken, NodeError> {
        let mut names = self.names.lock();
        if names.len() >= MAX_NAMES && !names.contains_key(&taking.name) {
            names.retain(|_, known| known.is_of_use(now));
            if names.len() >= MAX_NAMES {
                names.retain(|_, known| known.is_in_flight);
            }
        }
        let known = names.entry(taking.name.clone()).or_default();
        if let Some(answer) = known.answer(&taking, now) {
            return Ok(Taken::Answered(answer));
        }
        if known.waiting.len() >= MAX_WAITING {
            return Err(NodeError::overloaded(Bound::QueuedChanges));
        }
        let (answer, receiver) = oneshot::channel();
        let Caller { principals, trace, .. } = caller;
        known.waiting.push_back(Waiting { taking, principals, trace, answer });
        let is_first = !std::mem::replace(&mut known.is_in_flight, true);
        Ok(Taken::Later(receiver, is_first))
    }

    pub(crate) fn with<T>(&self, name: &RateName, change: impl FnOnce(&mut Known) -> T) -> T {
        change(self.names.lock().entry(name.clone()).or_default())
    }
}

impl Known {
    /// Answers the requests of a command.
    pub(crate) fn settle(
        &mut self,
        rate: Rate,
        sent_at: Duration,
        batch: Vec<Waiting>,
        done: Result<At<Reply>, NodeError>,
    ) {
        let mut batch = VecDeque::from(batch);
        match done {
            Ok(At { value: Reply::PermitsTaken { granted, leased, available, wait_ms }, zxid }) => {
                self.learn(rate, sent_at, leased, available, zxid);
                for waiting in batch.drain(..(granted as usize).min(batch.len())) {
                    let answer = self.grant(waiting.taking.permits, leased);
                    let _ = waiting.answer.send(Ok(answer));
                }
                if let Some(permits) = batch.front().map(|waiting| waiting.taking.permits) {
                    let wait = Duration::from_millis(wait_ms);
                    let known_until = sent_at + wait.min(LONGEST_REFUSAL);
                    self.refused = Some(Refused { permits, until: sent_at + wait, known_until });
                    self.refuse_or_keep(batch, permits, wait);
                }
            }
            Ok(other) => {
                let why = format!("the state answered with something else: {other:?}");
                answer_all(batch, &NodeError::Fatal(why));
            }
            // The right of the one in whose name it was asked; the others have been found to have theirs.
            Err(error) if is_of_the_caller(&error) => {
                if let Some(first) = batch.pop_front() {
                    let _ = first.answer.send(Err(error));
                }
                self.put_back(batch);
            }
            Err(error) => answer_all(batch, &error),
        }
    }

    /// Refuses the requests for so many permits or more; the others may be granted by the next command.
    fn refuse_or_keep(&mut self, batch: VecDeque<Waiting>, permits: u32, wait: Duration) {
        let mut kept = VecDeque::new();
        for waiting in batch {
            if waiting.taking.permits < permits {
                kept.push_back(waiting);
            } else {
                let _ = waiting.answer.send(Ok(self.refuse(wait)));
            }
        }
        self.put_back(kept);
    }

    fn put_back(&mut self, mut kept: VecDeque<Waiting>) {
        kept.append(&mut self.waiting);
        self.waiting = kept;
    }
}

fn answer_all(batch: VecDeque<Waiting>, error: &NodeError) {
    for waiting in batch {
        let _ = waiting.answer.send(Err(error.clone()));
    }
}

fn is_of_the_caller(error: &NodeError) -> bool {
    matches!(error, NodeError::Refused(Refusal::NoAuth { .. } | Refusal::Forbidden(_) | Refusal::Unauthenticated(_)))
}

#[cfg(test)]
#[path = "rates_tests.rs"]
mod tests;
