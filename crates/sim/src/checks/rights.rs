//! Promise P14, as far as the simulated clients can break it: only its own session changes a lock request, and others
//! delete one only with the right to force. Names that do not see each other are not in one queue (P1 for clients
//! that create their nodes themselves).

use std::collections::BTreeMap;

use lockkeeper_checkers::name;
use lockkeeper_core::{Actor, Command, NodeEventKind, NodeOp, Op};

use super::Checked;
use super::change::Change;

/// Whose names: those that Lockkeeper gives, or kazoo's own, whose clients see no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    Ours,
    Kazoo,
}

fn names_of(node: &str) -> Option<Names> {
    name::parse(node)?;
    let is_kazoos = node[..node.len() - 10].ends_with("lock__");
    Some(if is_kazoos { Names::Kazoo } else { Names::Ours })
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Rights {
    /// The owner of each request, by lock and name.
    queues: BTreeMap<String, BTreeMap<String, (Names, Option<u64>)>>,
}

impl Rights {
    /// Takes in a command of the log.
    ///
    /// # Errors
    /// It did to another's request what it had no right to, or made a request that those before it do not see.
    pub fn change(&mut self, change: &Change<'_>) -> Checked {
        let (session, by_hand, may_force) = match change.command {
            Command::Do { actor: Actor { session, may_force, .. }, op } => {
                let on_nodes = matches!(
                    op,
                    Op::Node(NodeOp::Delete { .. } | NodeOp::SetData { .. } | NodeOp::SetAcl { .. }) | Op::Multi(_)
                );
                (session.map(|session| session.0), on_nodes, *may_force)
            }
            _ => (None, false, false),
        };
        for (zxid, kind, path) in change.node_events() {
            let Some((lock, name)) = name::lock_and_name(path) else { continue };
            let Some(names) = names_of(name) else { continue };
            let queue = self.queues.entry(lock.to_owned()).or_default();
            match kind {
                NodeEventKind::Created => {
                    if let Some((other, _)) = queue.iter().find(|(_, (other, _))| *other != names) {
                        return Err(format!("{path} came at {zxid} beside {other}, and the two do not see each other"));
                    }
                    queue.insert(name.to_owned(), (names, session));
                }
                NodeEventKind::Deleted => {
                    let owner = queue.remove(name).and_then(|(_, owner)| owner);
                    if by_hand && !may_force && (owner.is_none() || owner != session) {
                        return Err(format!(
                            "{path} of session {owner:?} was deleted at {zxid} by {session:?} without the right to \
                             force"
                        ));
                    }
                }
                NodeEventKind::DataChanged => {
                    let owner = queue.get(name).and_then(|(_, owner)| *owner);
                    if by_hand && (owner.is_none() || owner != session) {
                        return Err(format!("{path} of session {owner:?} was written at {zxid} by {session:?}"));
                    }
                }
                NodeEventKind::ChildrenChanged => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{LockMode, NodeKind, Sequential};

    use super::super::test_history::{History, create, path};
    use super::*;

    /// Where a request stands.
    fn held(history: &mut History) -> (u64, String) {
        let session = history.open();
        history.acquire(session, "l", LockMode::Exclusive, 0);
        let lock = lockkeeper_core::LockName::parse("l").unwrap();
        let first = history.state.lock(&lock).unwrap().requests().next().unwrap();
        (session, first.path.to_string())
    }

    #[test]
    fn what_others_do_to_a_request_takes_the_right_to_force() {
        let mut history = History::default();
        let (_, at) = held(&mut history);
        let stranger = history.open();
        let actor = Actor { may_force: true, ..Actor::of(lockkeeper_core::SessionId(stranger)) };
        let (strict, lenient) = (&mut Rights::default(), &mut Rights::default());
        history.each(|change| {
            strict.change(change).unwrap();
            lenient.change(change).unwrap();
        });
        history.apply(Command::Do { actor, op: NodeOp::Delete { path: path(&at), version: None }.into() });
        let (mut command, outcome) = history.last();
        lenient.change(&super::super::test_history::change(&command, &outcome, 1)).unwrap();
        if let Command::Do { actor, .. } = &mut command {
            actor.may_force = false;
        }
        strict.change(&super::super::test_history::change(&command, &outcome, 1)).unwrap_err();
    }

    #[test]
    fn its_own_session_may_delete_it() {
        let mut history = History::default();
        let (session, at) = held(&mut history);
        history.run(Some(session), NodeOp::Delete { path: path(&at), version: None });
        let mut rights = Rights::default();
        history.each(|change| rights.change(change).unwrap());
    }

    #[test]
    fn names_that_do_not_see_each_other_do_not_meet() {
        let (mut ours, mut theirs, mut rights) = (History::default(), History::default(), Rights::default());
        held(&mut ours);
        let session = theirs.open();
        theirs.create("/locks", "");
        theirs.create("/locks/l", "");
        theirs.each(|change| rights.change(change).unwrap());
        let NodeOp::Create { path, data, acl, .. } = create("/locks/l/8f14__lock__", "", NodeKind::Ephemeral) else {
            return;
        };
        let sequential = Sequential::Suffix;
        theirs.run(Some(session), NodeOp::Create { path, data, acl, kind: NodeKind::Ephemeral, sequential });
        theirs.each(|change| rights.change(change).unwrap());
        let mut met = Ok(());
        ours.each(|change| met = met.clone().and(rights.change(change)));
        met.unwrap_err();
    }
}
