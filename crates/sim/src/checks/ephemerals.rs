//! Promise P6: everything that a session owned is deleted at the zxid at which it ends, and it owns nothing before or
//! after.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_core::{
    Actor, Command, Event, GateOp, LockOp, NodeEventKind, NodeKind, NodeOp, Op, Reply, SessionId, State,
};

use super::Checked;
use super::change::Change;

/// Who owns what, by what was asked and answered.
#[derive(Debug, Default)]
pub struct Ephemerals {
    owner: BTreeMap<String, u64>,
    owned: BTreeMap<u64, BTreeSet<String>>,
    live: BTreeSet<u64>,
    ended: BTreeMap<u64, u64>,
}

impl Ephemerals {
    /// Takes in a command of the log.
    ///
    /// # Errors
    /// If something of an ended session stays or is deleted at another zxid, or if an ended session owns something
    /// new.
    pub fn change(&mut self, change: &Change<'_>) -> Checked {
        let made = made_by(change);
        let ends = matches!(
            change.command,
            Command::CloseSession { .. } | Command::ExpireSessions { .. } | Command::EndUnauthorised { .. }
        );
        for (zxid, events) in change.transactions() {
            for event in events {
                match event {
                    Event::Node { kind: NodeEventKind::Deleted, path, .. } => {
                        if ends {
                            self.goes_with_its_session(path.as_str(), zxid, events)?;
                        }
                        self.remove(path.as_str());
                    }
                    Event::Node { kind: NodeEventKind::Created, path, .. } => {
                        if let Some(session) = made.as_ref().filter(|made| made.paths.contains(path.as_str())) {
                            self.add(path.as_str(), session.session, zxid)?;
                        }
                    }
                    Event::Node { .. } | Event::ForcedDeletion { .. } | Event::SessionAttached { .. } => {}
                    Event::SessionOpened { session, .. } => drop(self.live.insert(session.0)),
                    Event::SessionEnded { session, .. } => self.end(session.0, zxid)?,
                }
            }
        }
        Ok(())
    }

    /// What goes because sessions end, goes in the transaction in which its own one does.
    fn goes_with_its_session(&self, path: &str, zxid: u64, events: &[Event]) -> Checked {
        let owner = self.owner.get(path).copied();
        let ends = |event: &Event| matches!(event, Event::SessionEnded { session, .. } if Some(session.0) == owner);
        if events.iter().any(ends) {
            return Ok(());
        }
        Err(format!("{path} of session {owner:?} went at {zxid}, and its session did not end there"))
    }

    fn add(&mut self, path: &str, session: u64, zxid: u64) -> Checked {
        if !self.live.contains(&session) {
            return Err(format!("{path} was made at {zxid} for session {session}, which is not there"));
        }
        self.owner.insert(path.to_owned(), session);
        self.owned.entry(session).or_default().insert(path.to_owned());
        Ok(())
    }

    fn remove(&mut self, path: &str) {
        if let Some(session) = self.owner.remove(path)
            && let Some(owned) = self.owned.get_mut(&session)
        {
            owned.remove(path);
        }
    }

    fn end(&mut self, session: u64, zxid: u64) -> Checked {
        if !self.live.remove(&session) {
            return Err(format!("session {session} ended at {zxid}, and was not there"));
        }
        self.ended.insert(session, zxid);
        match self.owned.remove(&session).unwrap_or_default().first() {
            None => Ok(()),
            Some(left) => Err(format!("session {session} ended at {zxid}, and its ephemeral {left} was still there")),
        }
    }

    /// No session owns more than the configuration allows.
    ///
    /// # Errors
    /// If one does.
    pub fn bounded(&self, most: u32) -> Checked {
        match self.owned.iter().find(|(_, owned)| owned.len() > most as usize) {
            None => Ok(()),
            Some((session, owned)) => {
                Err(format!("session {session} owns {} ephemerals, and {most} are allowed", owned.len()))
            }
        }
    }

    /// A client was told that this session is no more.
    ///
    /// # Errors
    /// If it is.
    pub fn session_end_reported(&self, session: u64) -> Checked {
        if self.ended.contains_key(&session) {
            return Ok(());
        }
        Err(format!("session {session} was said to have expired, and no log says so"))
    }

    /// A node says that this session is no more, and shows its state at that moment.
    ///
    /// # Errors
    /// If what the session owned is still there.
    pub fn session_end_shown(&self, session: u64, shown: &State) -> Checked {
        if shown.session(SessionId(session)).is_none() {
            return Ok(());
        }
        Err(format!(
            "session {session} was said to have expired by a node that has applied the log up to {}, and has it still",
            shown.zxid()
        ))
    }

    /// The sessions that live.
    pub fn live(&self) -> impl Iterator<Item = u64> {
        self.live.iter().copied()
    }

    /// What this session owns.
    pub fn of(&self, session: u64) -> usize {
        self.owned.get(&session).map_or(0, BTreeSet::len)
    }
}

/// A session's new nodes.
struct Created {
    session: u64,
    paths: BTreeSet<String>,
}

fn made_by(change: &Change<'_>) -> Option<Created> {
    let Command::Do { actor: Actor { session: Some(session), .. }, op } = change.command else { return None };
    let reply = change.outcome.reply.as_ref().ok().filter(|_| change.outcome.changed)?;
    let mut paths = BTreeSet::new();
    collect(op, reply, &mut paths);
    (!paths.is_empty()).then_some(Created { session: session.0, paths })
}

fn collect(op: &Op, reply: &Reply, paths: &mut BTreeSet<String>) {
    match (op, reply) {
        (_, Reply::Downgraded { path }) => drop(paths.insert(path.to_string())),
        (Op::Node(op), reply) => paths.extend(created(op, reply)),
        (Op::Multi(ops), Reply::Multi(replies)) => {
            paths.extend(ops.iter().zip(replies).filter_map(|(op, reply)| created(op, reply)));
        }
        (Op::Lock(LockOp::Acquire { .. } | LockOp::AcquireReentrant { .. }), Reply::Queued { paths: queued, .. }) => {
            paths.extend(queued.iter().map(ToString::to_string));
        }
        (Op::Gate(GateOp::Begin { key, .. }), Reply::Gate(_)) => drop(paths.insert(key.path().to_string())),
        _ => {}
    }
}

fn created(op: &NodeOp, reply: &Reply) -> Option<String> {
    match (op, reply) {
        (NodeOp::Create { kind: NodeKind::Ephemeral, .. }, Reply::Created { path, .. }) => Some(path.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{LockMode, Outcome, Zxid};

    use super::super::test_history::{History, change, create};
    use super::*;

    fn with_three() -> (History, Ephemerals, u64) {
        let (mut history, mut ephemerals) = (History::default(), Ephemerals::default());
        let session = history.open();
        history.run(Some(session), create("/e", "", NodeKind::Ephemeral));
        history.run(Some(session), create("/f", "", NodeKind::Ephemeral));
        history.acquire(session, "l", LockMode::Exclusive, 0);
        history.each(|each| ephemerals.change(each).unwrap());
        assert_eq!(ephemerals.of(session), 3);
        (history, ephemerals, session)
    }

    #[test]
    fn all_at_one_point_is_right() {
        let (mut history, mut ephemerals, session) = with_three();
        history.expire(session);
        ephemerals.session_end_reported(session).unwrap_err();
        history.each(|each| ephemerals.change(each).unwrap());
        ephemerals.session_end_reported(session).unwrap();
    }

    #[test]
    fn a_node_that_speaks_of_an_end_which_it_has_not_applied_is_refused() {
        let (mut history, ephemerals, session) = with_three();
        let before = history.state.clone();
        history.expire(session);
        ephemerals.session_end_shown(session, &before).unwrap_err();
        ephemerals.session_end_shown(session, &history.state).unwrap();
    }

    #[test]
    fn one_by_one_is_refused() {
        let (mut history, mut ephemerals, session) = with_three();
        history.expire(session);
        let (command, mut outcome) = history.last();
        // The end comes first, and each deletion later under a zxid of its own.
        outcome.events.reverse();
        let mut zxid = 100;
        for event in &mut outcome.events {
            zxid += 1;
            match event {
                Event::Node { zxid: at, .. } | Event::SessionEnded { zxid: at, .. } => *at = Zxid(zxid),
                Event::ForcedDeletion { .. } | Event::SessionOpened { .. } | Event::SessionAttached { .. } => {}
            }
        }
        ephemerals.change(&change(&command, &outcome, 9)).unwrap_err();
    }

    #[test]
    fn those_that_go_before_their_session_are_refused() {
        let (mut history, mut ephemerals, session) = with_three();
        history.expire(session);
        let (command, mut outcome) = history.last();
        for event in &mut outcome.events {
            if let Event::Node { zxid, path, .. } = event
                && path.as_str() == "/e"
            {
                zxid.0 -= 1;
            }
        }
        outcome.events.sort_by_key(super::super::change::zxid_of);
        ephemerals.change(&change(&command, &outcome, 9)).unwrap_err();
    }

    #[test]
    fn one_left_behind_is_refused() {
        let (mut history, mut ephemerals, session) = with_three();
        history.expire(session);
        let (command, outcome) = history.last();
        let left = |event: &Event| !matches!(event, Event::Node { path, .. } if path.as_str() == "/e");
        let events = outcome.events.iter().filter(|event| left(event)).cloned().collect();
        ephemerals.change(&change(&command, &Outcome { events, ..outcome }, 9)).unwrap_err();
    }

    #[test]
    fn more_than_may_be_is_refused() {
        let (_, ephemerals, _) = with_three();
        ephemerals.bounded(3).unwrap();
        ephemerals.bounded(2).unwrap_err();
    }

    #[test]
    fn a_dead_session_owns_nothing_new() {
        let (mut history, mut ephemerals, session) = with_three();
        history.expire(session);
        let (mut elsewhere, _, same) = with_three();
        assert_eq!(same, session);
        elsewhere.run(Some(same), create("/late", "", NodeKind::Ephemeral));
        let late = elsewhere.last();
        history.each(|each| ephemerals.change(each).unwrap());
        ephemerals.change(&change(&late.0, &late.1, 9)).unwrap_err();
    }
}
