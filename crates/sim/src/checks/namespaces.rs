//! Promise P13, as far as the state decides it: nothing is added to a namespace beyond a limit, and nothing is refused
//! below it. Counts afresh from the events of nodes.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_checkers::name;
use lockkeeper_core::{AccessOp, Command, NamespaceBound, NamespaceLimits, NodeEventKind, Op, Refusal, Reply};

use super::Checked;
use super::change::Change;

/// See the module's text.
#[derive(Debug, Default)]
pub struct Namespaces {
    limits: BTreeMap<String, NamespaceLimits>,
    nodes: BTreeMap<String, BTreeSet<String>>,
}

impl Namespaces {
    fn used(&self, namespace: &str, bound: NamespaceBound) -> u64 {
        let Some(nodes) = self.nodes.get(namespace) else { return 0 };
        let is_request =
            |path: &&String| name::lock_and_name(path).is_some_and(|(_, name)| name::parse(name).is_some());
        match bound {
            NamespaceBound::LockRequests => nodes.iter().filter(is_request).count() as u64,
            _ => nodes.len() as u64,
        }
    }

    fn limit(&self, namespace: &str, bound: NamespaceBound) -> Option<u64> {
        let limits = self.limits.get(namespace)?;
        if bound == NamespaceBound::LockRequests { limits.lock_requests } else { limits.nodes }
    }

    /// Takes in a command of the log.
    ///
    /// # Errors
    /// It added to a namespace that had as much as it may, or was refused although there was room.
    pub fn change(&mut self, change: &Change<'_>) -> Checked {
        const BOUNDS: [NamespaceBound; 2] = [NamespaceBound::Nodes, NamespaceBound::LockRequests];
        let of_events =
            change.node_events().filter_map(|(_, kind, path)| Some((kind, path, name::namespace_of(path)?)));
        let of_events: Vec<_> = of_events.collect();
        let touched: BTreeSet<&str> = of_events.iter().map(|(_, _, namespace)| *namespace).collect();
        let count = |it: &Self| -> Vec<u64> {
            touched.iter().flat_map(|namespace| BOUNDS.map(|bound| it.used(namespace, bound))).collect()
        };
        let before = count(self);
        for (kind, path, namespace) in of_events {
            let nodes = self.nodes.entry(namespace.to_owned()).or_default();
            match kind {
                NodeEventKind::Created => drop(nodes.insert(path.to_owned())),
                NodeEventKind::Deleted => drop(nodes.remove(path)),
                NodeEventKind::DataChanged | NodeEventKind::ChildrenChanged => {}
            }
        }
        let Command::Do { op, .. } = change.command else { return Ok(()) };
        let pairs = touched.iter().flat_map(|namespace| BOUNDS.map(|bound| (*namespace, bound)));
        for (((namespace, bound), now), before) in pairs.zip(count(self)).zip(before) {
            if let Some(limit) = self.limit(namespace, bound).filter(|limit| now > before && now > *limit) {
                let zxid = change.outcome.zxid;
                return Err(format!("namespace {namespace} has {now} {bound} at {zxid}, beyond its limit of {limit}"));
            }
        }
        self.refused(change.outcome.reply.as_ref().err())?;
        match (op, &change.outcome.reply) {
            (Op::Access(AccessOp::PutNamespace { name, limits, .. }), Ok(Reply::AccessChanged)) => {
                self.limits.insert(name.to_string(), *limits);
            }
            (Op::Access(AccessOp::DeleteNamespace { name }), Ok(_)) => drop(self.limits.remove(&**name)),
            _ => {}
        }
        Ok(())
    }

    /// A refusal names what is used and what is allowed.
    fn refused(&self, refusal: Option<&Refusal>) -> Checked {
        match refusal {
            Some(Refusal::MultiFailed { cause, .. }) => self.refused(Some(cause)),
            Some(Refusal::NamespaceFull { namespace, bound, used, limit })
                if matches!(bound, NamespaceBound::Nodes | NamespaceBound::LockRequests) =>
            {
                let due = (self.used(namespace, *bound), self.limit(namespace, *bound));
                // A transaction may have added some before it was refused.
                if *used < due.0 || Some(*limit) != due.1 {
                    return Err(format!("a refusal says {used} of {limit} {bound} of namespace {namespace}: {due:?}"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{LockMode, NodeKind};

    use super::super::test_history::{History, create};
    use super::*;

    fn limit(history: &mut History, nodes: Option<u64>, lock_requests: Option<u64>) {
        let limits = NamespaceLimits { nodes, lock_requests, ..NamespaceLimits::default() };
        history.run(None, AccessOp::PutNamespace { name: "n".into(), owner: None, limits, version: None });
    }

    #[test]
    fn a_node_beyond_the_limit_is_seen_and_one_below_is_not() {
        let (mut history, mut strict) = (History::default(), Namespaces::default());
        let mut limits = NamespaceLimits { nodes: Some(2), ..NamespaceLimits::default() };
        limit(&mut history, None, None);
        history.create("/n", "");
        history.create("/n/a", "");
        history.create("/other", "");
        history.each(|change| strict.change(change).unwrap());
        strict.limits.insert("n".into(), limits);
        history.create("/n/b", "");
        history.each(|change| assert!(strict.change(change).unwrap_err().contains("beyond its limit of 2")));
        limits.nodes = Some(4);
        strict.limits.insert("n".into(), limits);
        history.create("/n/c", "");
        history.each(|change| strict.change(change).unwrap());
    }

    #[test]
    fn requests_for_locks_are_counted_apart() {
        let (mut history, mut strict) = (History::default(), Namespaces::default());
        limit(&mut history, None, Some(1));
        let session = history.open();
        history.acquire(session, "n/l", LockMode::Exclusive, 0);
        history.acquire(session, "n/l", LockMode::Exclusive, 0);
        history.run(Some(session), create("/n", "", NodeKind::Ephemeral));
        history.each(|change| strict.change(change).unwrap());
        assert_eq!(strict.used("n", NamespaceBound::LockRequests), 1);
        limit(&mut history, None, None);
        history.acquire(session, "n/l", LockMode::Exclusive, 0);
        history.each(|change| {
            if !matches!(change.command, Command::Do { op: Op::Access(_), .. }) {
                strict.change(change).unwrap_err();
            }
        });
    }

    #[test]
    fn a_refusal_where_there_is_room_is_seen() {
        let (mut history, mut strict) = (History::default(), Namespaces::default());
        limit(&mut history, Some(0), None);
        history.create("/n", "");
        let refused = history.last();
        history.each(|change| strict.change(change).unwrap());
        let shown = |refused: &(Command, lockkeeper_core::Outcome), checks: &mut Namespaces| {
            checks.change(&super::super::test_history::change(&refused.0, &refused.1, 1))
        };
        shown(&refused, &mut strict).unwrap();
        strict.limits.clear();
        shown(&refused, &mut strict).unwrap_err();
    }
}
