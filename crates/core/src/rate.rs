//! Rate limits: at most `limit` permits in `per_ms` milliseconds of the replicated clock, as a token bucket.
//!
//! A bucket holds `limit` permits and refills at a constant rate, `limit` in each `per_ms`. A permit is counted as
//! `per_ms` units, of which each millisecond brings `limit` back: so the arithmetic is exact in whole numbers and does
//! not drift. Only a bucket that is not full is stored.
//!
//! A node may *lease* permits: it takes them before anybody asks for them, and hands them out from memory. The units of
//! a leased permit begin to come back only when the lease ends, by when the node no longer hands it out. So whenever in
//! the lease a permit is handed out, no interval of t milliseconds has more than `limit + t × limit / per_ms` of them.

use std::fmt;
use std::sync::Arc;

use lockkeeper_mutants::mutant;
use serde::{Deserialize, Serialize};

use crate::limits::{MAX_RATE_LIMIT, MAX_RATE_PER_MS};
use crate::path::{NodePath, PathError};

/// The directory under which buckets live.
pub const RATES_ROOT: &str = "/rates";
/// How long a lease of permits lasts, in milliseconds of the replicated clock; up to 50 ms longer for the bucket.
pub const LEASE_MS: u64 = 250;
/// Leases end at multiples of this, so that a bucket has few of them, however many nodes have one.
const LEASE_STEP_MS: u64 = 50;
/// The shortest `per_ms` of which permits are leased. With a shorter one, most of the bucket would be out on lease.
const SHORTEST_LEASED_PER_MS: u64 = 1_000;
/// A lease has at most so many milliseconds' worth of the refill.
const LEASED_REFILL_MS: u64 = 100;
/// Most leases of a bucket: as many as end at different times.
const MAX_LEASES: usize = (LEASE_MS / LEASE_STEP_MS + 1) as usize;

/// The name of a rate limit, such as `mails/welcome`: a valid path without its leading slash.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Arc<str>", into = "Arc<str>")]
pub struct RateName(Arc<str>);

impl RateName {
    /// Validates `name`.
    ///
    /// # Errors
    /// Says which rule of [`NodePath`] the bucket's node would break.
    pub fn parse(name: &str) -> Result<Self, PathError> {
        Self::try_from(Arc::from(name))
    }

    /// The name of the bucket at this path; `None` for a path outside of [`RATES_ROOT`].
    pub fn of_node(path: &NodePath) -> Option<&str> {
        path.as_str().strip_prefix(RATES_ROOT)?.strip_prefix('/')
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The bucket's node in the tree.
    pub fn path(&self) -> NodePath {
        // The name was checked as part of this very path.
        NodePath::parse(&format!("{RATES_ROOT}/{}", self.0)).unwrap_or_else(|_| NodePath::root())
    }
}

impl TryFrom<Arc<str>> for RateName {
    type Error = PathError;

    fn try_from(name: Arc<str>) -> Result<Self, PathError> {
        NodePath::of_name(RATES_ROOT, &name)?;
        Ok(Self(name))
    }
}

impl From<RateName> for Arc<str> {
    fn from(name: RateName) -> Self {
        name.0
    }
}

impl fmt::Display for RateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// So many permits in so much time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rate {
    /// How many permits a full bucket has, and how many come back in `per_ms`.
    pub limit: u32,
    /// Milliseconds.
    pub per_ms: u64,
}

impl Rate {
    /// Checks the bounds.
    ///
    /// # Errors
    /// Says which one it exceeds.
    pub fn check(self) -> Result<(), String> {
        if !(1..=MAX_RATE_LIMIT).contains(&self.limit) {
            return Err(format!("the limit of a rate is from 1 to {MAX_RATE_LIMIT} permits, not {}", self.limit));
        }
        if !(1..=MAX_RATE_PER_MS).contains(&self.per_ms) {
            return Err(format!("the time of a rate is from 1 to {MAX_RATE_PER_MS} ms, not {}", self.per_ms));
        }
        Ok(())
    }

    /// The most permits that one lease has; 0 where none are leased. A tenth of the bucket at most.
    pub fn longest_lease(self) -> u32 {
        if self.per_ms < SHORTEST_LEASED_PER_MS {
            return 0;
        }
        let refill = u64::from(self.limit) * LEASED_REFILL_MS / self.per_ms;
        u32::try_from(refill).unwrap_or(u32::MAX).min(self.limit / 10)
    }

    /// The units of a full bucket. Below 2^59, by the bounds.
    fn capacity(self) -> u64 {
        self.units(self.limit)
    }

    fn units(self, permits: u32) -> u64 {
        u64::from(permits) * self.per_ms
    }

    /// In how many milliseconds so many units come back.
    fn refill_ms(self, units: u64) -> u64 {
        units.div_ceil(u64::from(self.limit))
    }
}

/// "100 in 1000 ms".
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {} ms", self.limit, self.per_ms)
    }
}

/// A bucket at some moment of the replicated clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bucket {
    pub(crate) rate: Rate,
    /// Units that are gone and come back.
    missing: u64,
    pub(crate) as_of_ms: u64,
    /// In order of their ends, which are after `as_of_ms`.
    leases: Vec<Lease>,
}

/// Permits that a node may hand out until the lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Lease {
    ends_ms: u64,
    permits: u32,
}

impl Bucket {
    pub(crate) fn full(rate: Rate, now_ms: u64) -> Self {
        Self { rate, missing: 0, as_of_ms: now_ms, leases: Vec::new() }
    }

    /// The bucket at a later moment. An earlier one changes nothing.
    pub(crate) fn advance(&mut self, now_ms: u64) {
        while let Some(Lease { ends_ms, permits }) = self.leases.first().copied().filter(|it| it.ends_ms <= now_ms) {
            self.refill(ends_ms);
            // More than the capacity only where the rate has changed since.
            self.missing = self.missing.saturating_add(self.rate.units(permits)).min(self.rate.capacity());
            self.leases.remove(0);
        }
        self.refill(now_ms);
    }

    fn refill(&mut self, until_ms: u64) {
        let elapsed_ms = until_ms.saturating_sub(self.as_of_ms) * if mutant!(RefillTwice) { 2 } else { 1 };
        self.missing = self.missing.saturating_sub(elapsed_ms.saturating_mul(self.rate.limit.into()));
        self.as_of_ms = self.as_of_ms.max(until_ms);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.used() == 0
    }

    /// Permits that are out on lease.
    pub(crate) fn leased(&self) -> u32 {
        self.leases.iter().fold(0, |sum: u32, lease| sum.saturating_add(lease.permits))
    }

    fn used(&self) -> u64 {
        self.missing.saturating_add(self.rate.units(self.leased()))
    }

    /// Whole permits that can be taken now.
    pub(crate) fn available(&self) -> u32 {
        let units = self.rate.capacity().saturating_sub(self.used());
        u32::try_from(units / self.rate.per_ms).unwrap_or(u32::MAX)
    }

    /// Takes permits, all or none.
    pub(crate) fn take(&mut self, permits: u32) -> bool {
        let is_there = permits <= self.available();
        if is_there {
            self.missing += self.rate.units(permits);
        }
        is_there
    }

    /// Leases up to so many permits; gives how many.
    pub(crate) fn lease(&mut self, permits: u32) -> u32 {
        let permits = permits.min(self.rate.longest_lease()).min(self.available());
        if permits > 0 {
            let at_least_ms = self.as_of_ms.saturating_add(LEASE_MS);
            let ends_ms = at_least_ms.checked_next_multiple_of(LEASE_STEP_MS).unwrap_or(u64::MAX);
            match self.leases.last_mut().filter(|last| last.ends_ms == ends_ms) {
                Some(last) => last.permits = last.permits.saturating_add(permits),
                None => self.leases.push(Lease { ends_ms, permits }),
            }
        }
        permits
    }

    /// In how many milliseconds so many permits, at most the limit, can be taken if nobody takes any until then.
    pub(crate) fn ms_until(&self, permits: u32) -> u64 {
        let mut later = self.clone();
        loop {
            let short = (later.used().saturating_add(self.rate.units(permits))).saturating_sub(self.rate.capacity());
            let there_ms = later.as_of_ms.saturating_add(self.rate.refill_ms(short));
            match later.leases.first().map(|lease| lease.ends_ms) {
                // Leased permits do not come back before their lease ends.
                Some(ends_ms) if short > later.missing || there_ms > ends_ms => later.advance(ends_ms),
                _ => return there_ms - self.as_of_ms,
            }
        }
    }

    /// When it is full if nobody takes any until then.
    pub(crate) fn full_at_ms(&self) -> u64 {
        self.as_of_ms.saturating_add(self.ms_until(self.rate.limit))
    }

    /// The same bucket with another rate: the permits that are gone stay gone.
    pub(crate) fn reconfigured(&self, rate: Rate) -> Self {
        // Below 2^94 before the division; the capacity bounds the result.
        let gone = (u128::from(self.missing) * u128::from(rate.per_ms)).div_ceil(self.rate.per_ms.into());
        let missing = u64::try_from(gone).unwrap_or(u64::MAX).min(rate.capacity());
        Self { rate, missing, ..self.clone() }
    }

    /// The record in the bucket's node.
    pub(crate) fn encode(&self) -> Arc<[u8]> {
        // Encoding these types into memory cannot fail. If it did, no reader would accept the bytes as a record.
        postcard::to_extend(self, vec![RECORD_VERSION]).unwrap_or_default().into()
    }

    /// Decodes what [`encode`](Self::encode) wrote; `None` for anything else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (&RECORD_VERSION, body) = bytes.split_first()? else { return None };
        let (bucket, rest): (Self, _) = postcard::take_from_bytes(body).ok()?;
        (rest.is_empty() && bucket.is_sound()).then_some(bucket)
    }

    fn is_sound(&self) -> bool {
        let in_order = self.leases.windows(2).all(|pair| pair[0].ends_ms < pair[1].ends_ms);
        let later = self.leases.first().is_none_or(|lease| lease.ends_ms > self.as_of_ms);
        let is_bounded = self.leases.iter().all(|lease| (1..=MAX_RATE_LIMIT).contains(&lease.permits));
        self.rate.check().is_ok()
            && self.missing <= self.rate.capacity()
            && self.leases.len() <= MAX_LEASES
            && in_order
            && later
            && is_bounded
    }
}

/// The record format that this program writes.
const RECORD_VERSION: u8 = 1;

#[cfg(test)]
#[path = "rate_tests.rs"]
mod tests;
