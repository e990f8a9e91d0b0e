//! Rate limits: takes permits from a bucket, or says in how long they will be there (see [`crate::rate`]).
//!
//! A bucket that is not full is a TTL node below the root of the rate limits, whose time ends when it is full. It
//! belongs to no session.

use lockkeeper_mutants::invariant;

use super::State;
use super::arguments::bad;
use super::bounds::Adds;
use super::nodes::next_version;
use super::transaction::Transaction;
use super::tree::{Node, Tree};
use crate::access::{Need, Resource, Rights};
use crate::acl::{Permissions, Principals};
use crate::command::NodeKind;
use crate::limits::MAX_TAKES_TOGETHER;
use crate::path::{NodePath, check_readable};
use crate::rate::{Bucket, RATES_ROOT, Rate, RateName};
use crate::reply::{Refusal, Reply};

/// The arguments of a take.
pub(crate) struct Taking<'a> {
    pub(crate) name: &'a RateName,
    pub(crate) rate: Rate,
    pub(crate) permits: &'a [u32],
    pub(crate) ahead: u32,
    pub(crate) reconfigure: bool,
}

/// A bucket that is not full, as of the state's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateView {
    /// Its rate.
    pub rate: Rate,
    /// Whole permits that can be taken.
    pub available: u32,
    /// Permits that nodes have leased.
    pub leased: u32,
    /// When it is full if nobody takes any until then.
    pub full_at_ms: u64,
}

/// A page of a list of rate limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RatePage<'a> {
    /// Path, name and bucket of each, in the order of their names.
    pub rates: Vec<(&'a NodePath, &'a str, RateView)>,
    /// The name after which the next page starts, if there may be more. A page may be empty and have one.
    pub next: Option<&'a str>,
}

impl State {
    /// A rate limit's bucket; `None` if it is full, with whatever rate.
    ///
    /// # Errors
    /// The node at its path is no bucket.
    pub fn rate(&self, name: &RateName) -> Result<Option<RateView>, Refusal> {
        let found = self.tree.bucket(name)?;
        Ok(found.and_then(|(_, bucket)| self.view_of(bucket)))
    }

    /// A page of the buckets that are not full, in order of their names: those whose names begin with `prefix` and come
    /// after `after`, at most `limit`. Looks at no more than
    /// [`MAX_NODES_PER_PAGE`](crate::limits::MAX_NODES_PER_PAGE) nodes.
    pub fn rates<'a>(&'a self, prefix: &str, after: Option<&str>, limit: usize) -> RatePage<'a> {
        let view = |path, node| Some((path, RateName::of_node(path)?, self.view_of(bucket_in(node)?)?));
        let (rates, last) = self.tree.page(RATES_ROOT, prefix, after, limit, view);
        RatePage { rates, next: last.and_then(RateName::of_node) }
    }

    /// Checks that a caller may take permits, as of this state: for a node that hands out what it has leased.
    ///
    /// # Errors
    /// The right is missing, or the access control list of the bucket or of the directory above it does not allow it.
    pub fn check_taking(&self, who: &Principals, name: &RateName) -> Result<(), Refusal> {
        if self.access.is_enabled() {
            self.access.check_known_token(who, self.clock_ms)?;
            self.check_right(who, &Need::of(Resource::Rates, name.as_str(), Rights::ACQUIRE))?;
        }
        let path = name.path();
        // As the command does: the root's access control list does not apply to rate limits.
        let above = std::iter::successors(path.parent(), NodePath::parent).find(|path| self.tree.contains(path));
        let above = above.filter(|directory| !directory.is_root()).map(|directory| (directory, Permissions::CREATE));
        for (path, wanted) in above.into_iter().chain([(path, Permissions::WRITE)]) {
            if self.tree.get(&path).is_some_and(|node| !who.may(wanted, &node.acl)) {
                return Err(Refusal::NoAuth { path, wanted });
            }
        }
        Ok(())
    }

    fn view_of(&self, mut bucket: Bucket) -> Option<RateView> {
        bucket.advance(self.clock_ms);
        let Bucket { rate, .. } = bucket;
        let (available, leased, full_at_ms) = (bucket.available(), bucket.leased(), bucket.full_at_ms());
        (!bucket.is_full()).then_some(RateView { rate, available, leased, full_at_ms })
    }
}

/// The bucket in a node that a rate limit made.
fn bucket_in(node: &Node) -> Option<Bucket> {
    let bucket = Bucket::decode(&node.data)?;
    let ttl_ms = bucket.full_at_ms() - bucket.as_of_ms;
    let is_own = node.kind == NodeKind::Ttl { ttl_ms } && node.mtime_ms == bucket.as_of_ms;
    (is_own && node.children().is_empty()).then_some(bucket)
}

impl Tree {
    /// The bucket at a rate limit's path, even if it is full by now.
    fn bucket(&self, name: &RateName) -> Result<Option<(&Node, Bucket)>, Refusal> {
        let path = name.path();
        let Some(node) = self.get(&path) else { return Ok(None) };
        if node.kind == NodeKind::Container {
            let why = format!("there are rate limits below '{name}', so it can be none itself; choose another name");
            return Err(bad(why));
        }
        match bucket_in(node) {
            Some(bucket) => Ok(Some((node, bucket))),
            None => {
                Err(bad(format!("the node {path} was not made by a rate limit; delete it, or choose another name")))
            }
        }
    }
}

impl Transaction<'_> {
    /// Takes permits for requests in their order, until one cannot be granted. Changes nothing if none is granted.
    pub(crate) fn take_permits(&mut self, taking: &Taking<'_>) -> Result<Reply, Refusal> {
        check_taking(taking)?;
        let (name, rate) = (taking.name, taking.rate);
        let path = name.path();
        self.check_directories(&path)?;
        let found = self.tree.bucket(name)?;
        let mut bucket = Bucket::full(rate, self.clock_ms);
        let mut is_reconfigured = false;
        if let Some((node, mut known)) = found {
            self.check_access(&path, node, Permissions::WRITE)?;
            known.advance(self.clock_ms);
            if known.rate == rate {
                bucket = known;
            } else if !known.is_full() {
                let Rate { limit, per_ms } = known.rate;
                if !taking.reconfigure {
                    return Err(Refusal::RateMismatch { name: name.clone(), limit, per_ms });
                }
                (bucket, is_reconfigured) = (known.reconfigured(rate), true);
            }
        }
        let granted = taking.permits.iter().take_while(|permits| bucket.take(**permits)).count();
        let refused = taking.permits.get(granted);
        let leased = if refused.is_none() { bucket.lease(taking.ahead) } else { 0 };
        let wait_ms = refused.map_or(0, |permits| bucket.ms_until(*permits));
        let available = bucket.available();
        if granted > 0 || is_reconfigured {
            self.store_bucket(&path, &bucket)?;
        }
        Ok(Reply::PermitsTaken { granted: granted as u32, leased, available, wait_ms })
    }

    fn store_bucket(&mut self, path: &NodePath, bucket: &Bucket) -> Result<(), Refusal> {
        invariant!(!bucket.is_full(), "only a bucket that is not full is stored");
        let kind = NodeKind::Ttl { ttl_ms: bucket.full_at_ms() - bucket.as_of_ms };
        let data = bucket.encode();
        let Some(old) = self.tree.get(path) else {
            let node = Node::new(data, self.acl_above(path), kind, None);
            self.check_new_below(path, &node, Adds::Data)?;
            if let Some(directory) = path.parent() {
                self.make_directories(&directory)?;
            }
            self.create(path, node);
            return Ok(());
        };
        self.check_growth(path, data.len().saturating_sub(old.data.len()) as u64)?;
        let (zxid, clock_ms) = (self.zxid, self.clock_ms);
        self.change(path, |node| {
            node.data = data.into();
            node.kind = kind;
            node.version = next_version(node.version);
            node.mzxid = zxid;
            node.mtime_ms = clock_ms;
        });
        self.publish_data_changed(path);
        Ok(())
    }

    /// Between the root of the rate limits and a bucket there are only directories that the service made.
    fn check_directories(&self, path: &NodePath) -> Result<(), Refusal> {
        let mut above = path.parent();
        while let Some(directory) = above {
            match self.tree.get(&directory) {
                None => above = directory.parent(),
                // The root's access control list does not apply to rate limits.
                Some(_) if directory.is_root() => return Ok(()),
                Some(node) => {
                    self.check_access(&directory, node, Permissions::CREATE)?;
                    if node.kind == NodeKind::Container
                        || directory.as_str() == RATES_ROOT && node.kind == NodeKind::Persistent
                    {
                        return Ok(());
                    }
                    let why =
                        format!("{directory} is a rate limit itself, or was not made by one; choose another name");
                    return Err(bad(why));
                }
            }
        }
        Ok(())
    }
}

fn check_taking(taking: &Taking<'_>) -> Result<(), Refusal> {
    let Taking { name, rate, permits, .. } = taking;
    check_readable(name.as_str()).map_err(|error| bad(format!("the name of a rate limit: {error}")))?;
    rate.check().map_err(bad)?;
    if !(1..=MAX_TAKES_TOGETHER).contains(&permits.len()) {
        let count = permits.len();
        return Err(bad(format!("permits are taken for 1 to {MAX_TAKES_TOGETHER} requests together, not for {count}")));
    }
    match permits.iter().find(|permits| !(1..=rate.limit).contains(permits)) {
        Some(other) => Err(bad(format!("a request takes from 1 to {} permits, the limit, not {other}", rate.limit))),
        None => Ok(()),
    }
}
