//! The throttle of namespaces: requests a second of each (promise P13), by a token bucket at each node. The rate limits
//! that clients take permits of are the state's (`core/src/rate.rs`).
//!
//! A request above the rate waits for its turn, and is refused only after that, so that a client which repeats what is
//! refused costs little. A caller without any right to a name uses up nothing of that name's namespace. What keeps or
//! gives back is not charged.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::access::Resource as ApiResource;
use lockkeeper_api::nodes::TxnOp;
use lockkeeper_api::row::Charged;
use lockkeeper_api::{Call, Code};
use lockkeeper_core::access::{Need, Resource, Rights};
use lockkeeper_core::limits::MAX_NAMESPACES;
use lockkeeper_core::namespace::first_part;
use lockkeeper_core::{Principals, State};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::failure::Failure;
use crate::rights::resource_in;

/// Longest time for which a request waits for its turn.
const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// So much of a rate may be used at once.
const BURST: Duration = Duration::from_secs(1);

/// The buckets of this node.
#[derive(Debug, Default)]
pub struct Throttle {
    buckets: Mutex<HashMap<Arc<str>, Bucket>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    full_at: Instant,
    /// Requests that waited for their turn.
    delayed: u64,
    /// Requests that were refused.
    refused: u64,
}

/// A namespace in which a request counts, and its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    namespace: Arc<str>,
    per_s: u64,
}

/// The turn of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// At once.
    Now,
    /// After this time.
    After(Duration),
    /// Not at all: too many wait. It is told so after the longest wait, so that a client that repeats it at once does
    /// so twice a second.
    TooMany(Throttled),
}

impl Turn {
    /// Waits for the turn.
    ///
    /// # Errors
    /// The namespace has too many requests.
    pub async fn wait(self) -> Result<(), Throttled> {
        match self {
            Self::Now => Ok(()),
            Self::After(wait) => {
                sleep(wait).await;
                Ok(())
            }
            Self::TooMany(exceeded) => {
                sleep(LONGEST_WAIT).await;
                Err(exceeded)
            }
        }
    }
}

/// A request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Throttled {
    charge: Charge,
    /// When there is room again.
    retry_after: Duration,
}

impl From<Throttled> for Failure {
    fn from(exceeded: Throttled) -> Self {
        let Charge { namespace, per_s } = exceeded.charge;
        let detail = format!(
            "namespace {namespace} has more than {per_s} requests a second at this node (limit requests_per_s); not \
             executed; send fewer, or retry later"
        );
        let retry_after_ms = u64::try_from(exceeded.retry_after.as_millis()).unwrap_or(u64::MAX).max(1);
        Self::new(Code::RateLimited, detail).retry_after(retry_after_ms)
    }
}

impl Throttle {
    /// The turn of a request: the latest of those in its namespaces.
    pub fn turn(&self, charges: &[Charge]) -> Turn {
        let mut latest = Turn::Now;
        let mut buckets = self.buckets.lock();
        for charge in charges {
            let now = Instant::now();
            if buckets.len() > MAX_NAMESPACES {
                buckets.retain(|_, bucket| bucket.full_at > now);
            }
            let empty = Bucket { full_at: now, delayed: 0, refused: 0 };
            let bucket = buckets.entry(charge.namespace.clone()).or_insert(empty);
            let turn = take(&mut bucket.full_at, charge, now);
            match (&turn, &latest) {
                (Turn::Now, _) => {}
                (Turn::TooMany(_), _) => {
                    bucket.refused += 1;
                    return turn;
                }
                (Turn::After(wait), Turn::After(known)) if wait <= known => {}
                (Turn::After(_), _) => {
                    bucket.delayed += 1;
                    latest = turn;
                }
            }
        }
        latest
    }

    /// What was delayed and refused, by namespace. Forgets those that have no limits any more.
    pub fn counts(&self, state: &State) -> Vec<ThrottleCount> {
        let mut buckets = self.buckets.lock();
        buckets.retain(|name, _| state.namespace(name).is_some());
        let count = |(name, bucket): (&Arc<str>, &Bucket)| ThrottleCount {
            namespace: name.clone(),
            delayed: bucket.delayed,
            refused: bucket.refused,
        };
        let mut counts: Vec<ThrottleCount> = buckets.iter().map(count).collect();
        counts.sort_unstable_by(|one, other| one.namespace.cmp(&other.namespace));
        counts
    }
}

/// What the throttle has done to a namespace at this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThrottleCount {
    /// The namespace.
    pub namespace: Arc<str>,
    /// Requests that waited for their turn.
    pub delayed: u64,
    /// Requests that were refused.
    pub refused: u64,
}

/// Takes a token from a bucket, by the generic cell rate algorithm (ITU-T I.371): a bucket is known by the time at
/// which it is full again.
fn take(full_at: &mut Instant, charge: &Charge, now: Instant) -> Turn {
    let at = (*full_at).max(now);
    let wait = at.saturating_duration_since(now).saturating_sub(BURST);
    if wait > LONGEST_WAIT {
        return Turn::TooMany(Throttled { charge: charge.clone(), retry_after: wait - LONGEST_WAIT });
    }
    *full_at = at + Duration::from_nanos(1_000_000_000 / charge.per_s.max(1));
    if wait.is_zero() { Turn::Now } else { Turn::After(wait) }
}

/// The names of a request: those that it adds to, changes or reads.
pub enum Named<'a> {
    /// It gives back, or administers: it is never held up.
    Exempt,
    /// It has none, and counts in the namespace of its caller.
    Nameless,
    /// It has these.
    Names(Vec<(Resource, &'a str)>),
}

/// The namespaces in which a call counts.
pub(crate) fn charges_of_call(state: &State, who: &Principals, call: &Call) -> Vec<Charge> {
    let named = match call {
        Call::AcquireLock { name, body } => {
            Named::Names(body.also.iter().chain([name]).map(|name| (Resource::Locks, name.as_str())).collect())
        }
        // A deletion of what is not there gives nothing back.
        Call::DeleteNode { path, .. } if is_there(state, path) => Named::Exempt,
        Call::RunTransaction { body } => of_transaction(&body.operations),
        Call::ListLocks { query } => of_prefix(state, Resource::Locks, query.prefix.as_deref()),
        Call::ListGates { query } => of_prefix(state, Resource::Gates, query.prefix.as_deref()),
        Call::ListRates { query } => of_prefix(state, Resource::Rates, query.prefix.as_deref()),
        _ => match (call.row().rules.charged, call.name()) {
            (Charged::Name, Some(name)) => Named::Names(vec![name_in_state(call.row().resource(), name)]),
            (Charged::Caller, _) | (Charged::Name, None) => Named::Nameless,
            (Charged::Nothing, _) => Named::Exempt,
        },
    };
    charges(state, who, named)
}

fn name_in_state(resource: ApiResource, name: &str) -> (Resource, &str) {
    match resource {
        ApiResource::Nodes => node(name),
        other => (resource_in(other), name),
    }
}

/// The beginning of a namespace is a name of many.
fn of_prefix<'a>(state: &State, resource: Resource, prefix: Option<&'a str>) -> Named<'a> {
    let is_of_one = |prefix: &&str| {
        prefix.contains('/') || first_part(prefix).is_some_and(|namespace| state.namespace(namespace).is_some())
    };
    match prefix.filter(is_of_one) {
        Some(prefix) => Named::Names(vec![(resource, prefix)]),
        None => Named::Nameless,
    }
}

/// The namespaces in which a request counts.
pub fn charges(state: &State, who: &Principals, named: Named<'_>) -> Vec<Charge> {
    let mut found: Vec<Charge> = Vec::new();
    let mut add = |namespace: &str| {
        let limit = state.namespace(namespace).and_then(|namespace| namespace.limits.requests_per_s);
        if let Some(per_s) = limit.filter(|_| found.iter().all(|known| *known.namespace != *namespace)) {
            found.push(Charge { namespace: namespace.into(), per_s });
        }
    };
    match named {
        Named::Exempt => {}
        Named::Nameless => state.namespace_owned_by(who).iter().for_each(|own| add(own)),
        Named::Names(names) => {
            for (resource, name) in names {
                if let Some(namespace) = first_part(name)
                    && state.check_right(who, &Need::of(resource, name, Rights::ALL)).is_ok()
                {
                    add(namespace);
                }
            }
        }
    }
    found
}

fn is_there(state: &State, path: &str) -> bool {
    lockkeeper_core::NodePath::parse(path).is_ok_and(|path| state.get(&path).is_some())
}

/// The resource that a path is of, and its name there.
pub fn node(path: &str) -> (Resource, &str) {
    lockkeeper_core::NodePath::parse(path).map_or((Resource::Nodes, path), |parsed| {
        let (resource, name) = Resource::of_node(&parsed);
        (resource, &path[path.len() - name.len()..])
    })
}

/// A transaction that does nothing but delete gives back.
fn of_transaction(operations: &[TxnOp]) -> Named<'_> {
    fn name(operation: &TxnOp) -> Option<(Resource, &str)> {
        match operation {
            TxnOp::Create { path, .. }
            | TxnOp::Set { path, .. }
            | TxnOp::Add { path, .. }
            | TxnOp::Check { path, .. } => Some(node(path)),
            TxnOp::LockHeld { lock, .. } => Some((Resource::Locks, lock.as_str())),
            TxnOp::Delete { .. } => None,
        }
    }
    let names: Vec<_> = operations.iter().filter_map(name).collect();
    if names.is_empty() { Named::Exempt } else { Named::Names(names) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charge(per_s: u64) -> Charge {
        Charge { namespace: "orders".into(), per_s }
    }

    #[test]
    fn a_bucket_gives_its_burst_then_its_rate_and_then_refuses() {
        let now = Instant::now();
        let mut full_at = now;
        let mut take = |at_ms: u64| take(&mut full_at, &charge(10), now + Duration::from_millis(at_ms));
        // One that is just going and a second's worth beside it.
        for _ in 0..11 {
            assert_eq!(take(0), Turn::Now);
        }
        for turn in 1..=5 {
            assert_eq!(take(0), Turn::After(Duration::from_millis(100 * turn)));
        }
        let refused = Turn::TooMany(Throttled { charge: charge(10), retry_after: Duration::from_millis(100) });
        assert_eq!(take(0), refused);
        assert_eq!(take(0), refused, "a refusal takes nothing");
        assert_eq!(take(100), Turn::After(Duration::from_millis(500)));
        assert_eq!(take(10_000), Turn::Now);
    }

    #[tokio::test(start_paused = true)]
    async fn buckets_of_namespaces_that_are_gone_are_forgotten() {
        let limits = Throttle::default();
        for number in 0..=MAX_NAMESPACES {
            limits.turn(&[Charge { namespace: number.to_string().into(), per_s: 10 }]);
        }
        tokio::time::advance(Duration::from_secs(2)).await;
        limits.turn(&[charge(10)]);
        assert_eq!(limits.buckets.lock().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_its_turn_and_a_refusal_takes_as_long_as_the_longest_wait() {
        let (limits, charges, began) = (Throttle::default(), [charge(4)], Instant::now());
        let turns = (0..8).map(|_| async {
            let turn = limits.turn(&charges).wait().await;
            (began.elapsed(), turn)
        });
        let mut turns = futures::future::join_all(turns).await;
        let (waited, refused) = turns.pop().unwrap();
        let waits: Vec<Duration> = turns.iter().map(|(waited, _)| *waited).collect();
        let ms = Duration::from_millis;
        assert_eq!(waits, [ms(0), ms(0), ms(0), ms(0), ms(0), ms(250), LONGEST_WAIT]);
        assert!(turns.iter().all(|(_, turn)| turn.is_ok()), "{turns:?}");
        assert_eq!(waited, LONGEST_WAIT);
        let failure = Failure::from(refused.unwrap_err());
        assert_eq!(failure.code(), Code::RateLimited);
        assert!(failure.problem().detail.contains("namespace orders"), "{:?}", failure.problem());
    }

    #[test]
    fn a_path_is_of_what_it_is_the_node_of() {
        assert_eq!(node("/locks/orders/42"), (Resource::Locks, "orders/42"));
        assert_eq!(node("/orders/42"), (Resource::Nodes, "/orders/42"));
        assert_eq!(node("no path"), (Resource::Nodes, "no path"));
        assert_eq!(node("/"), (Resource::Nodes, "/"));
        assert_eq!(node("/gates"), (Resource::Gates, ""));
    }
}
