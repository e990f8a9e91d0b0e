//! Compares the clients' answers about nodes with a replay of the log through a second model of the tree: a map from
//! paths to versions and values. It shares no code with the server, and takes from it only the watches' word on which
//! node changed at which zxid.
//!
//! Each acknowledged change is in the log once, at its zxid; each change in the log was requested; each version is the
//! count of changes; and each read shows the tree as it was at its zxid.

use std::collections::{BTreeMap, BTreeSet};

use super::Check;
use crate::history::Recorded;
use crate::history::{Completion, Op};

/// What was asked, and where it was answered, the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeOp {
    /// It was created with this value.
    Created(Option<String>),
    /// Its data was set.
    Set {
        /// The version that it had to have.
        expected: Option<i32>,
        /// To what; none where the client does not tell.
        value: Option<String>,
        /// The version it has now, where the answer tells.
        version: Option<i32>,
    },
    /// It was created or set, whichever it took.
    Put,
    /// It was deleted.
    Deleted {
        /// The version that it had to have.
        expected: Option<i32>,
    },
    /// It was read.
    Found {
        /// Its value.
        value: String,
        /// Its version, where the client tells.
        version: Option<i32>,
    },
}

/// One operation on one node: answered at a zxid, or of unknown outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Who asked, and under which number.
    pub by: (u32, u64),
    /// When it was asked.
    pub invoked_us: u64,
    /// When it was answered.
    pub completed_us: Option<u64>,
    /// Where the answer stands; none if there was none.
    pub zxid: Option<u64>,
    /// Which node.
    pub path: String,
    /// What was asked and answered.
    pub what: NodeOp,
}

impl Reply {
    /// As it stands in a history; none if it was certainly not carried out, or was answered without a zxid.
    ///
    /// ```
    /// use jepsen_style_tests::check::model::{NodeOp, Reply};
    /// use jepsen_style_tests::history::{Completion, Op};
    /// let op = Op { client: 1, op: 7, what: "write".into(), invoked_us: 10, completed_us: Some(30),
    ///     ended: Completion::Ok,
    ///     input: "x".into(), output: 4.into(), zxid: Some(99) };
    /// let set = NodeOp::Set { expected: None, value: Some("x".into()), version: Some(4) };
    /// assert_eq!(Reply::of(&op, "/registers/a", set).unwrap().zxid, Some(99));
    /// ```
    pub fn of(op: &Op, path: impl Into<String>, what: NodeOp) -> Option<Self> {
        let (path, by) = (path.into(), (op.client, op.op));
        let reply = Self { by, invoked_us: op.invoked_us, completed_us: op.completed_us, zxid: op.zxid, path, what };
        match op.ended {
            Completion::Ok => reply.zxid.is_some().then_some(reply),
            Completion::Info => Some(Self { completed_us: None, zxid: None, ..reply }),
            Completion::Fail => None,
        }
    }

    fn line(&self) -> String {
        let Self { by: (client, op), invoked_us, completed_us, zxid, path, what } = self;
        let at = zxid.map_or("of unknown outcome".to_owned(), |zxid| format!("answered at zxid {zxid}"));
        let to = completed_us.map_or("open".to_owned(), |at| format!("{at} us"));
        format!("client {client} op {op}: {path} {what:?}, {at} [{invoked_us} us, {to}]")
    }
}

/// What the log did to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LogEffect {
    // In this order within a transaction: what goes makes room for what comes, which may then be set.
    Deleted,
    Created,
    Set,
}

impl LogEffect {
    fn may_be_of(self, what: &NodeOp) -> bool {
        match self {
            Self::Deleted => matches!(what, NodeOp::Deleted { .. }),
            Self::Created => matches!(what, NodeOp::Created(_) | NodeOp::Put),
            Self::Set => matches!(what, NodeOp::Set { .. } | NodeOp::Put),
        }
    }
}

/// A node of the tree.
#[derive(Clone, Debug)]
struct NodeModel {
    version: i32,
    /// What it may hold; none where nobody knows.
    values: Option<BTreeSet<String>>,
}

struct Broken {
    what: String,
    lines: Vec<String>,
    at_us: Option<u64>,
}

/// Replays the part of the log below `root`, which nobody but the clients changes, against what they were told.
pub fn replay(name: &str, promises: &str, root: &str, run: &Recorded, replies: &[Reply]) -> Check {
    let mut tree = Tree::new(run, replies);
    match tree.run(root) {
        Err(Broken { what, lines, at_us }) => Check { at_us, ..Check::invalid(name, promises, what, lines) },
        Ok(()) if tree.answered == 0 => Check::unknown(name, promises, "nothing was answered"),
        Ok(()) => {
            let Tree { effects, answered, reads, by_unknown, .. } = &tree;
            let detail = format!(
                "{effects} changes replayed: {answered} of them were acknowledged, {by_unknown} are of operations of \
                    unknown outcome; {reads} reads told what the tree held"
            );
            Check::valid(name, promises, detail)
        }
    }
}

struct Tree<'a> {
    run: &'a Recorded,
    nodes: BTreeMap<String, NodeModel>,
    /// Acknowledged changes by zxid and path.
    acknowledged: BTreeMap<(u64, &'a str), Vec<&'a Reply>>,
    /// Reads by zxid.
    looks: BTreeMap<u64, Vec<&'a Reply>>,
    /// Changes of unknown outcome that nothing in the log is known to be of yet.
    open: BTreeMap<&'a str, Vec<&'a Reply>>,
    effects: usize,
    answered: usize,
    reads: usize,
    by_unknown: usize,
}

impl<'a> Tree<'a> {
    fn new(run: &'a Recorded, replies: &'a [Reply]) -> Self {
        let (nodes, effects, answered, reads, by_unknown) = (BTreeMap::new(), 0, 0, 0, 0);
        let (mut acknowledged, mut looks, mut open) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for reply in replies {
            match (&reply.what, reply.zxid) {
                (NodeOp::Found { .. }, None) => {}
                (NodeOp::Found { .. }, Some(zxid)) => looks.entry(zxid).or_insert_with(Vec::new).push(reply),
                (_, Some(zxid)) => {
                    acknowledged.entry((zxid, reply.path.as_str())).or_insert_with(Vec::new).push(reply);
                }
                (_, None) => open.entry(reply.path.as_str()).or_insert_with(Vec::new).push(reply),
            }
        }
        Self { run, nodes, acknowledged, looks, open, effects, answered, reads, by_unknown }
    }

    fn run(&mut self, root: &str) -> Result<(), Broken> {
        let mut looks = std::mem::take(&mut self.looks).into_iter().peekable();
        for (zxid, effects) in effects(self.run, root) {
            while let Some((at, replies)) = looks.next_if(|(at, _)| *at < zxid) {
                replies.iter().try_for_each(|reply| self.look(at, reply))?;
            }
            for (effect, path) in effects {
                self.apply(zxid, effect, path)?;
            }
        }
        for (at, replies) in looks {
            replies.iter().try_for_each(|reply| self.look(at, reply))?;
        }
        // What is left was acknowledged and did not happen.
        match self.acknowledged.values().flatten().next() {
            Some(lost) => Err(Broken {
                what: format!("a change of {} was acknowledged and is not in the log", lost.path),
                lines: vec![lost.line()],
                at_us: lost.completed_us,
            }),
            None => Ok(()),
        }
    }

    fn apply(&mut self, zxid: u64, effect: LogEffect, path: &'a str) -> Result<(), Broken> {
        self.effects += 1;
        let before = self.nodes.get(path).map(|node| node.version);
        let broken = |what: String, replies: &[&Reply]| Broken {
            what: format!("zxid {zxid}: {path} {what}"),
            lines: replies.iter().map(|reply| reply.line()).collect(),
            at_us: self.run.seen_us.get(&zxid).copied(),
        };
        if (effect == LogEffect::Created) == before.is_some() {
            return Err(broken(format!("was {effect:?}, and had the version {before:?} before that"), &[]));
        }
        let acknowledged = self.acknowledged.remove(&(zxid, path)).unwrap_or_default();
        let (of_this, others): (Vec<_>, Vec<_>) = acknowledged.into_iter().partition(|r| effect.may_be_of(&r.what));
        if of_this.len() > 1 {
            return Err(broken(format!("was {effect:?} once, and two were told that they did it"), &of_this));
        }
        let values = match of_this.first() {
            Some(reply) => {
                self.answered += 1;
                told_rightly(reply, before).map_err(|what| broken(what, &of_this))?;
                value(reply).map(BTreeSet::from)
            }
            None => {
                self.by_unknown += 1;
                let may = self.by_unknown_reply(zxid, effect, path, before);
                let may = may.ok_or_else(|| broken(format!("was {effect:?}, and nobody asked for that"), &[]))?;
                may.into_iter().map(|reply| value(reply).map(|[value]| value)).collect()
            }
        };
        if !others.is_empty() {
            self.acknowledged.insert((zxid, others[0].path.as_str()), others);
        }
        match effect {
            LogEffect::Deleted => drop(self.nodes.remove(path)),
            LogEffect::Created => drop(self.nodes.insert(path.to_owned(), NodeModel { version: 0, values })),
            LogEffect::Set => {
                let version = before.map_or(0, |version| version + 1);
                self.nodes.insert(path.to_owned(), NodeModel { version, values });
            }
        }
        Ok(())
    }

    /// The operations of unknown outcome that this may be of; one that it must be of is used up.
    fn by_unknown_reply(
        &mut self,
        zxid: u64,
        effect: LogEffect,
        path: &str,
        before: Option<i32>,
    ) -> Option<Vec<&'a Reply>> {
        let seen_us = self.run.seen_us.get(&zxid).copied().unwrap_or(u64::MAX);
        let open = self.open.get_mut(path)?;
        let may = |reply: &Reply| {
            reply.invoked_us <= seen_us
                && effect.may_be_of(&reply.what)
                && expected(&reply.what).is_none_or(|e| before == Some(e))
        };
        let found: Vec<&'a Reply> = open.iter().copied().filter(|reply| may(reply)).collect();
        if let [one] = found.as_slice() {
            open.retain(|reply| !std::ptr::eq(*reply, *one));
        }
        (!found.is_empty()).then_some(found)
    }

    fn look(&mut self, zxid: u64, reply: &Reply) -> Result<(), Broken> {
        let NodeOp::Found { value, version } = &reply.what else { return Ok(()) };
        self.reads += 1;
        let node = self.nodes.get_mut(&reply.path);
        let held = format!("{node:?}");
        let right = node.is_some_and(|node| {
            let right = version.is_none_or(|version| version == node.version)
                && node.values.as_ref().is_none_or(|values| values.contains(value));
            // From here on it is known which it was.
            node.values = Some(BTreeSet::from([value.clone()]));
            right
        });
        if right {
            return Ok(());
        }
        Err(Broken {
            what: format!("a read of {} at zxid {zxid} is not what the tree held", reply.path),
            lines: vec![reply.line(), format!("the tree held {held}")],
            at_us: reply.completed_us,
        })
    }
}

fn effects<'a>(run: &'a Recorded, root: &str) -> BTreeMap<u64, BTreeSet<(LogEffect, &'a str)>> {
    let below = |path: &str| path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/'));
    let mut effects: BTreeMap<u64, BTreeSet<(LogEffect, &str)>> = BTreeMap::new();
    for event in run.log.iter().filter(|event| below(&event.path)) {
        let effect = if event.created { LogEffect::Created } else { LogEffect::Deleted };
        effects.entry(event.zxid).or_default().insert((effect, &event.path));
    }
    for set in run.data.iter().filter(|set| below(&set.path)) {
        effects.entry(set.zxid).or_default().insert((LogEffect::Set, &set.path));
    }
    effects
}

fn expected(what: &NodeOp) -> Option<i32> {
    match what {
        NodeOp::Set { expected, .. } | NodeOp::Deleted { expected } => *expected,
        NodeOp::Created(_) | NodeOp::Put | NodeOp::Found { .. } => None,
    }
}

fn value(reply: &Reply) -> Option<[String; 1]> {
    match &reply.what {
        NodeOp::Created(value) | NodeOp::Set { value, .. } => value.clone().map(|value| [value]),
        NodeOp::Put | NodeOp::Deleted { .. } | NodeOp::Found { .. } => None,
    }
}

/// Whether an acknowledged change tells the version that comes of the one before.
fn told_rightly(reply: &Reply, before: Option<i32>) -> Result<(), String> {
    if let Some(expected) = expected(&reply.what).filter(|expected| before != Some(*expected)) {
        return Err(format!("was to have version {expected}, and had {before:?}"));
    }
    match reply.what {
        NodeOp::Set { version: Some(version), .. } if before.is_none_or(|before| version != before + 1) => {
            Err(format!("was said to have version {version} now, and had {before:?} before"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_checkers::lives::NodeEvent;

    use super::*;
    use crate::check::Verdict;
    use crate::history::DataSet;

    const PATH: &str = "/registers/a";

    fn reply(op: u64, zxid: Option<u64>, what: NodeOp) -> Reply {
        let completed_us = zxid.map(|zxid| zxid * 1_000 + 100);
        Reply { by: (1, op), invoked_us: op * 1_000, completed_us, zxid, path: PATH.into(), what }
    }

    fn created(value: &str) -> NodeOp {
        NodeOp::Created(Some(value.into()))
    }

    fn set(expected: Option<i32>, value: &str, version: i32) -> NodeOp {
        NodeOp::Set { expected, value: Some(value.into()), version: Some(version) }
    }

    fn found(value: &str, version: i32) -> NodeOp {
        NodeOp::Found { value: value.into(), version: Some(version) }
    }

    /// Created at 5, set at 6 and 8, deleted at 9, created at 10.
    fn run() -> Recorded {
        let event = |zxid, created| NodeEvent { zxid, created, path: PATH.into() };
        let data = |zxid| DataSet { zxid, path: PATH.into() };
        Recorded {
            log: [event(5, true), event(9, false), event(10, true)].into(),
            data: [data(6), data(8)].into(),
            seen_us: (0..20).map(|zxid| (zxid, zxid * 1_000 + 50)).collect(),
            ..Recorded::default()
        }
    }

    fn replies() -> Vec<Reply> {
        vec![
            reply(5, Some(5), created("a")),
            reply(6, Some(6), set(Some(0), "b", 1)),
            reply(2, Some(7), found("b", 1)),
            reply(3, None, set(None, "c", 0)),
            reply(8, Some(8), found("c", 2)),
            reply(9, Some(9), NodeOp::Deleted { expected: Some(2) }),
            reply(10, Some(10), created("d")),
            reply(11, Some(12), found("d", 0)),
        ]
    }

    fn judged(replies: &[Reply]) -> Check {
        replay("replay", "P7", "/registers", &run(), replies)
    }

    /// With one reply changed.
    fn with(at: usize, change: impl FnOnce(&mut Reply)) -> Check {
        let mut replies = replies();
        change(&mut replies[at]);
        judged(&replies)
    }

    #[test]
    fn what_was_told_is_what_was_replayed() {
        let check = judged(&replies());
        assert_eq!(check.verdict, Verdict::Valid, "{check:?}");
        assert!(check.detail.starts_with("5 changes replayed: 4 of them were acknowledged, 1 are"), "{}", check.detail);
        assert_eq!(replay("replay", "P7", "/elsewhere", &run(), &[]).verdict, Verdict::Unknown);
    }

    #[test]
    fn each_lie_is_caught() {
        let caught = |check: Check, of: &str| {
            assert_eq!(check.verdict, Verdict::Invalid, "{of}");
            assert!(check.detail.contains(of), "{} does not say {of}", check.detail);
        };
        caught(with(2, |read| read.what = found("a", 1)), "not what the tree held");
        caught(with(2, |read| read.what = found("b", 0)), "not what the tree held");
        caught(with(2, |read| read.zxid = Some(9)), "not what the tree held");
        caught(with(4, |read| read.what = found("z", 2)), "not what the tree held");
        caught(with(1, |set| set.zxid = Some(7)), "not what the tree held");
        caught(with(1, |write| write.what = set(Some(0), "b", 2)), "said to have version 2");
        caught(with(1, |write| write.what = set(Some(3), "b", 1)), "was to have version 3");
        caught(with(3, |open| open.path = "/registers/b".into()), "nobody asked");
        caught(with(3, |open| open.invoked_us = 9_000), "nobody asked");
        caught(with(6, |create| create.zxid = Some(11)), "nobody asked");
        let twice = [replies().as_slice(), &[reply(20, Some(6), set(None, "x", 1))]].concat();
        caught(judged(&twice), "two were told");
        let lost = [replies().as_slice(), &[reply(20, Some(11), set(None, "x", 1))]].concat();
        caught(judged(&lost), "not in the log");
    }

    #[test]
    fn one_of_unknown_outcome_happens_once() {
        let run = {
            let mut run = run();
            run.data.insert(DataSet { zxid: 7, path: PATH.into() });
            run
        };
        let mut replies = replies();
        replies.retain(|reply| !matches!(reply.what, NodeOp::Found { .. } | NodeOp::Deleted { .. }));
        replies.push(reply(9, Some(9), NodeOp::Deleted { expected: None }));
        assert!(replay("replay", "P7", "/registers", &run, &replies).detail.contains("nobody asked"));
        replies.push(reply(4, None, set(None, "e", 0)));
        assert_eq!(replay("replay", "P7", "/registers", &run, &replies).verdict, Verdict::Valid);
    }
}
