//! Bounded resources, and the share that each address and session may have (promise P13).
//!
//! A share is a fraction of what is still free, not a fixed number. One greedy address gets half of a budget, two get a
//! third each, and the next client always finds room, while a lone client on an idle node meets no limit. Requests that
//! give something back (keepalive, release, verify, close of a session) must never depend on a budget: see `admission`.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use lockkeeper_api::Code;
use lockkeeper_node::network_of;
use parking_lot::Mutex;

use crate::failure::Failure;

/// When a client may retry after a refusal.
const RETRY_AFTER_MS: u64 = 100;

/// The holder of an amount: an address, and its session where that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    address: IpAddr,
    session: Option<u64>,
    /// The session is not open yet, so it holds nothing.
    is_new: bool,
}

impl Holder {
    /// An address, for what belongs to no session.
    pub fn address(address: IpAddr) -> Self {
        Self { address: network_of(address), session: None, is_new: false }
    }

    /// A session that will be opened for this amount alone.
    pub(crate) fn new_session(address: IpAddr) -> Self {
        Self { is_new: true, ..Self::address(address) }
    }

    /// A session at an address.
    pub fn session(address: IpAddr, session: u64) -> Self {
        Self { session: Some(session), ..Self::address(address) }
    }
}

/// A bounded resource.
#[derive(Debug)]
pub struct Budget {
    /// The label of its metrics.
    name: &'static str,
    /// What it counts, for people.
    things: &'static str,
    /// The key of the configuration that bounds it.
    key: &'static str,
    limit: usize,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    all: usize,
    addresses: HashMap<IpAddr, usize>,
    sessions: HashMap<u64, usize>,
}

/// The bound that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All that there is.
    All,
    /// The share of an address.
    Address,
    /// The share of a session.
    Session,
}

impl Share {
    /// The label of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Address => "address",
            Self::Session => "session",
        }
    }
}

/// The budget refused an amount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// The bound.
    pub share: Share,
    held: usize,
    limit: usize,
    things: &'static str,
    key: &'static str,
}

impl std::fmt::Display for Exceeded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { held, limit, things, key, .. } = self;
        match self.share {
            Share::All => write!(f, "too many {things} on this node: {held} of {limit} ({key})"),
            whose => write!(f, "this {} has its share of this node's {limit} {things}: {held} ({key})", whose.as_str()),
        }
    }
}

impl From<Exceeded> for Failure {
    fn from(exceeded: Exceeded) -> Self {
        let remedy = match exceeded.share {
            Share::All => "retry later, or at another node",
            _ => "finish some first, or retry later",
        };
        Self::new(Code::Overloaded, format!("{exceeded}; not executed; {remedy}")).retry_after(RETRY_AFTER_MS)
    }
}

/// Whether a holder of `held` may take `amount` more: in all at most `weight` times what is free. A first piece may
/// have any size that is free.
pub fn within_share(held: usize, amount: usize, free: usize, (times, parts): (usize, usize)) -> bool {
    amount <= free && (held == 0 || held.saturating_add(amount) <= free.saturating_mul(times) / parts)
}

/// Weight of an address: alone it gets at most half.
pub const OF_ADDRESS: (usize, usize) = (1, 1);
/// Weight of an address for a session's or connection's first piece: a newcomer behind the same address as a greedy
/// client gets one.
pub const OF_ADDRESS_FOR_NEWCOMERS: (usize, usize) = (3, 1);
/// Weight of a session or connection: alone it gets at most a fifth.
pub(crate) const OF_ONE: (usize, usize) = (1, 4);

impl Budget {
    /// A budget of `limit` things. `name` is the label of its metrics, `key` the configuration key of the limit.
    pub fn new(name: &'static str, things: &'static str, key: &'static str, limit: usize) -> Arc<Self> {
        Arc::new(Self { name, things, key, limit, used: Mutex::default() })
    }

    /// Takes an amount, which is given back when the result is dropped.
    ///
    /// # Errors
    /// The budget is used up, or the holder has its share.
    pub fn take(self: &Arc<Self>, holder: Holder, amount: usize) -> Result<Taken, Exceeded> {
        let mut taken = Taken { budget: self.clone(), holder, amount: 0 };
        taken.grow(amount)?;
        Ok(taken)
    }

    /// Checks for room before costly work whose result would take it.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn check(self: &Arc<Self>, holder: Holder, amount: usize) -> Result<(), Exceeded> {
        self.admit(&self.used.lock(), holder, amount).inspect_err(|exceeded| self.count(exceeded))
    }

    fn count(&self, exceeded: &Exceeded) {
        let (budget, share) = (self.name, exceeded.share.as_str());
        metrics::counter!("lockkeeper_budget_refusals_total", "budget" => budget, "share" => share).increment(1);
    }

    fn admit(&self, used: &Used, holder: Holder, amount: usize) -> Result<(), Exceeded> {
        let free = self.limit.saturating_sub(used.all);
        let exceeded = |share, held| Exceeded { share, held, limit: self.limit, things: self.things, key: self.key };
        if amount > free {
            return Err(exceeded(Share::All, used.all));
        }
        let own = holder.session.map(|session| used.sessions.get(&session).copied().unwrap_or(0));
        if let Some(held) = own
            && !within_share(held, amount, free, OF_ONE)
        {
            return Err(exceeded(Share::Session, held));
        }
        let weight = if holder.is_new || own == Some(0) { OF_ADDRESS_FOR_NEWCOMERS } else { OF_ADDRESS };
        let held = used.addresses.get(&holder.address).copied().unwrap_or(0);
        if within_share(held, amount, free, weight) { Ok(()) } else { Err(exceeded(Share::Address, held)) }
    }

    /// The amount taken.
    pub fn used(&self) -> usize {
        self.used.lock().all
    }

    /// Sets the gauges.
    pub fn show(&self) {
        metrics::gauge!("lockkeeper_budget_used", "budget" => self.name).set(self.used() as f64);
        metrics::gauge!("lockkeeper_budget_limit", "budget" => self.name).set(self.limit as f64);
    }
}

/// An amount taken from a budget, given back when it is dropped.
#[derive(Debug)]
pub struct Taken {
    budget: Arc<Budget>,
    holder: Holder,
    amount: usize,
}

impl Taken {
    /// Takes more.
    ///
    /// # Errors
    /// As [`Budget::take`]; what was taken before stays.
    pub fn grow(&mut self, amount: usize) -> Result<(), Exceeded> {
        let mut used = self.budget.used.lock();
        if let Err(exceeded) = self.budget.admit(&used, self.holder, amount) {
            drop(used);
            self.budget.count(&exceeded);
            return Err(exceeded);
        }
        used.all += amount;
        *used.addresses.entry(self.holder.address).or_default() += amount;
        if let Some(session) = self.holder.session {
            *used.sessions.entry(session).or_default() += amount;
        }
        drop(used);
        self.amount += amount;
        Ok(())
    }
}

/// Bytes that count against a budget until their last reference is dropped.
struct CountedBytes {
    bytes: Bytes,
    _taken: Taken,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Taken {
    /// The amount.
    pub fn amount(&self) -> usize {
        self.amount
    }

    /// Ties the amount to bytes: it is given back with their last reference.
    pub fn with(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(CountedBytes { bytes, _taken: self })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut used = self.budget.used.lock();
        used.all -= self.amount;
        give_back(&mut used.addresses, self.holder.address, self.amount);
        if let Some(session) = self.holder.session {
            give_back(&mut used.sessions, session, self.amount);
        }
    }
}

/// Takes an amount off what `key` holds, and forgets a key that holds nothing.
pub fn give_back<K: std::hash::Hash + Eq>(held: &mut HashMap<K, usize>, key: K, amount: usize) {
    if let Some(count) = held.get_mut(&key) {
        *count = count.saturating_sub(amount);
        if *count == 0 {
            held.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: u8) -> Holder {
        Holder::address(IpAddr::from([10, 0, 0, host]))
    }

    fn session(host: u8, session: u64) -> Holder {
        Holder::session(IpAddr::from([10, 0, 0, host]), session)
    }

    fn fill(budget: &Arc<Budget>, holder: impl Fn(u64) -> Holder) -> (Vec<Taken>, Exceeded) {
        let mut taken = Vec::new();
        loop {
            match budget.take(holder(taken.len() as u64), 1) {
                Ok(more) => taken.push(more),
                Err(exceeded) => return (taken, exceeded),
            }
        }
    }

    #[test]
    fn each_greedy_address_leaves_room_for_the_next() {
        let budget = Budget::new("test", "things", "limits.things", 1_000);
        let (first, why) = fill(&budget, |_| at(1));
        assert_eq!((first.len(), why.share), (500, Share::Address));
        assert!(why.to_string().contains("limits.things") && why.to_string().contains("address"), "{why}");
        let (second, _) = fill(&budget, |_| at(2));
        assert_eq!(second.len(), 250);
        let (third, _) = fill(&budget, |_| at(3));
        assert_eq!(third.len(), 125);
        drop(first);
        assert_eq!(budget.used(), 375);
        drop((second, third));
        assert_eq!((budget.used(), budget.used.lock().addresses.len()), (0, 0));
    }

    #[test]
    fn a_session_has_less_than_its_address_and_a_newcomer_there_gets_its_first() {
        let budget = Budget::new("test", "things", "limits.things", 1_000);
        let (one, why) = fill(&budget, |_| session(1, 1));
        assert_eq!((one.len(), why.share), (200, Share::Session));
        let (_others, _) = fill(&budget, |n| session(1, 2 + n % 4));
        let (_many, why) = fill(&budget, |n| session(1, 100 + n));
        assert_eq!(why.share, Share::Address);
        assert_eq!(budget.used(), 750, "three quarters of it, from whatever number of sessions");
        let (honest, _) = fill(&budget, |_| session(2, 9));
        assert!(!honest.is_empty());
        assert!(budget.used.lock().sessions.contains_key(&9));
    }

    #[test]
    fn a_session_to_come_counts_as_a_newcomer() {
        let budget = Budget::new("test", "things", "limits.things", 1_000);
        let to_come = Holder::new_session(IpAddr::from([10, 0, 0, 1]));
        let (taken, why) = fill(&budget, |_| to_come);
        assert_eq!((taken.len(), why.share), (750, Share::Address));
        assert_eq!(budget.check(to_come, 1), Err(why));
        assert_eq!((budget.check(at(2), 1), budget.used()), (Ok(()), 750), "nothing is taken");
    }

    #[test]
    fn a_first_piece_may_be_large_and_what_grows_is_counted() {
        let budget = Budget::new("test", "bytes", "limits.bytes", 100);
        let mut taken = budget.take(at(1), 70).unwrap();
        assert_eq!(taken.grow(1).unwrap_err().share, Share::Address);
        assert_eq!(budget.take(at(2), 31).unwrap_err().share, Share::All);
        let _other = budget.take(at(2), 10).unwrap();
        assert_eq!(budget.used(), 80);
    }
}
