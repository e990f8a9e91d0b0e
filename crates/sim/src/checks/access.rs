//! Promise P14, as far as the state decides it: what is for guests and for the administrator is done for nobody else, a
//! token that was withdrawn counts for nothing from that point of the order on, and its sessions end.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_core::access::{ANYONE, TOKEN, TOKEN_ID_DIGITS};
use lockkeeper_core::{AccessOp, Actor, Command, Event, NodeEventKind, Op, Principals};

use super::Checked;
use super::change::Change;

/// The hash of the administrator's token.
pub const ADMINISTRATOR: &str = "adadadadadadadadadadadadadadadadadadadadadadadadadadadadadadadad";
/// A principal, its role, and the name below which that role has rights.
pub const GUEST: &str = "guest";
/// How long a session may outlive its token in a world in which nothing is wrong.
const GONE_WITHIN_US: u64 = 3_000_000;

/// See the module's text.
#[derive(Debug, Default)]
pub struct AccessControl {
    is_enforced: bool,
    /// Principals by the hashes of their tokens.
    tokens: BTreeMap<String, String>,
    grants: BTreeSet<(String, String)>,
    /// The tokens of sessions that belong to the principal of one.
    sessions: BTreeMap<u64, String>,
    /// Sessions whose token was withdrawn, and when.
    condemned: BTreeMap<u64, u64>,
}

fn token_of(principals: &Principals) -> Option<&str> {
    principals.identities.iter().find(|identity| *identity.scheme == *TOKEN).map(|identity| &*identity.id)
}

fn is_guests(path: &str) -> bool {
    path.strip_prefix('/')
        .and_then(|path| path.strip_prefix(GUEST))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl AccessControl {
    fn has_role(&self, principal: &str) -> bool {
        self.grants.contains(&(principal.to_owned(), GUEST.to_owned()))
    }

    /// Takes in a command of the log.
    ///
    /// # Errors
    /// It was carried out for a caller without the right to it.
    pub fn change(&mut self, change: &Change<'_>) -> Checked {
        let zxid = change.outcome.zxid;
        match change.command {
            Command::Do { actor, op } if change.outcome.changed => {
                self.may(actor, op, change).map_err(|why| format!("a change was carried out at {zxid} {why}"))?;
                if let Op::Access(op) = op {
                    self.follow(op, change.at_us);
                }
            }
            Command::OpenSessionAs { principals, .. } if change.outcome.changed => {
                let token = token_of(principals).map(str::to_owned);
                if self.is_enforced && token.as_ref().is_some_and(|token| !self.tokens.contains_key(token)) {
                    return Err(format!("a session was opened at {zxid} with a token that does not count"));
                }
                // A session is its principal's if that has a role, and otherwise anyone's.
                let token = token.filter(|token| self.tokens.get(token).is_some_and(|known| self.has_role(known)));
                for event in &change.outcome.events {
                    if let (Event::SessionOpened { session, .. }, Some(token)) = (event, &token) {
                        self.sessions.insert(session.0, token.clone());
                    }
                }
            }
            _ => {}
        }
        for event in &change.outcome.events {
            if let Event::SessionEnded { session, .. } = event {
                self.sessions.remove(&session.0);
                self.condemned.remove(&session.0);
            }
        }
        Ok(())
    }

    fn may(&self, actor: &Actor, op: &Op, change: &Change<'_>) -> Result<(), &'static str> {
        if !self.is_enforced {
            return Ok(());
        }
        let token = token_of(&actor.principals);
        let principal = token.and_then(|token| self.tokens.get(token)).map(String::as_str);
        match op {
            Op::Access(AccessOp::Identify) => {}
            Op::Access(_) if token != Some(ADMINISTRATOR) => return Err("for somebody who is not the administrator"),
            _ => {}
        }
        let is_written = |kind| matches!(kind, NodeEventKind::Created | NodeEventKind::DataChanged);
        let written = change.node_events().filter(|(_, kind, _)| is_written(*kind)).map(|(_, _, path)| path);
        let written: Vec<&str> = written.collect();
        if !written.is_empty() && token.is_some() && principal.is_none() {
            return Err("with a token that does not count");
        }
        let is_allowed = [principal, Some(ANYONE)].into_iter().flatten().any(|known| self.has_role(known));
        if written.into_iter().any(is_guests) && !is_allowed { Err("without the role of a guest") } else { Ok(()) }
    }

    fn follow(&mut self, op: &AccessOp, at_us: u64) {
        match op {
            AccessOp::Enable { first } => {
                self.is_enforced = true;
                self.tokens.extend(first.iter().map(|hash| (hash.to_string(), "admin".to_owned())));
            }
            AccessOp::Disable => self.is_enforced = false,
            AccessOp::CreateToken { hash, principal, .. } => {
                self.tokens.insert(hash.to_string(), principal.to_string());
            }
            AccessOp::RevokeToken { id } => {
                self.tokens.retain(|hash, _| hash[..TOKEN_ID_DIGITS] != **id);
                let of_token = self.sessions.iter().filter(|(_, hash)| hash[..TOKEN_ID_DIGITS] == **id);
                self.condemned.extend(of_token.map(|(session, _)| (*session, at_us)));
            }
            AccessOp::Grant { principal, role } => {
                self.grants.insert((principal.to_string(), role.to_string()));
            }
            AccessOp::Revoke { principal, role } => {
                self.grants.remove(&(principal.to_string(), role.to_string()));
            }
            AccessOp::PutRole { .. }
            | AccessOp::DeleteRole { .. }
            | AccessOp::Identify
            | AccessOp::PutNamespace { .. }
            | AccessOp::DeleteNamespace { .. } => {}
        }
    }

    /// Nothing has been wrong with the world since `right_us`.
    ///
    /// # Errors
    /// A session outlives its token.
    pub fn overdue(&self, now_us: u64, right_us: u64) -> Checked {
        let is_late = |at_us: u64| now_us > at_us.max(right_us) + GONE_WITHIN_US;
        match self.condemned.iter().find(|(_, at_us)| is_late(**at_us)) {
            Some((session, at_us)) => {
                Err(format!("session {session} is open, and its token was withdrawn at {at_us} us"))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{Identity, NodeKind, Outcome, SessionId};

    use super::super::test_history::{History, change, create};
    use super::*;

    const TOKEN_OF_GUEST: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

    fn with(hash: &str) -> Principals {
        Principals { address: None, identities: vec![Identity { scheme: TOKEN.into(), id: hash.into() }] }
    }

    fn as_holder(history: &mut History, hash: &str, session: Option<u64>, op: impl Into<Op>) {
        let actor = Actor { principals: with(hash), session: session.map(SessionId), ..Actor::default() };
        history.apply(Command::Do { actor, op: op.into() });
    }

    fn grant(role: &str) -> AccessOp {
        AccessOp::Grant { principal: GUEST.into(), role: role.into() }
    }

    /// Enforced, with a guest's session.
    fn enforced() -> (History, u64) {
        let mut history = History::default();
        let rights = lockkeeper_core::access::Rights::WRITE;
        let rule = |prefix: &str| lockkeeper_core::access::Rule {
            resource: lockkeeper_core::access::Resource::Nodes,
            prefix: prefix.into(),
            rights,
        };
        history.run(None, AccessOp::PutRole { name: GUEST.into(), rules: vec![rule("/guest")], version: None });
        history.run(None, AccessOp::Enable { first: Some(ADMINISTRATOR.into()) });
        let token = AccessOp::CreateToken { hash: TOKEN_OF_GUEST.into(), principal: GUEST.into(), ttl_ms: None };
        as_holder(&mut history, ADMINISTRATOR, None, token);
        as_holder(&mut history, ADMINISTRATOR, None, grant(GUEST));
        let open = Command::OpenSessionAs {
            principals: with(TOKEN_OF_GUEST),
            proves_later: false,
            secret_hash: [0; 32],
            timeout_ms: 2_000,
            label: "guest".into(),
        };
        history.apply(open);
        let session = history.state.sessions().next().unwrap().0.0;
        as_holder(&mut history, TOKEN_OF_GUEST, Some(session), create("/guest", "", NodeKind::Persistent));
        (history, session)
    }

    #[test]
    fn what_a_guest_does_takes_the_token_and_the_role() {
        let (mut history, session) = enforced();
        let mut checks = AccessControl::default();
        history.each(|change| checks.change(change).unwrap());
        as_holder(&mut history, TOKEN_OF_GUEST, Some(session), create("/guest/a", "", NodeKind::Persistent));
        let (command, outcome) = history.last();
        assert!(outcome.changed);
        let show = |checks: &mut AccessControl, command: &Command, outcome: &Outcome| {
            checks.change(&change(command, outcome, 1))
        };
        show(&mut checks, &command, &outcome).unwrap();
        let Command::Do { mut actor, op } = command.clone() else { return };
        actor.principals = Principals::default();
        let by_nobody = Command::Do { actor, op };
        assert!(show(&mut checks, &by_nobody, &outcome).unwrap_err().contains("without the role"));
        let grants = std::mem::take(&mut checks.grants);
        assert!(show(&mut checks, &command, &outcome).unwrap_err().contains("without the role"));
        (checks.grants, checks.tokens) = (grants, BTreeMap::new());
        assert!(show(&mut checks, &command, &outcome).unwrap_err().contains("does not count"));
    }

    #[test]
    fn only_the_administrator_changes_rights() {
        let (mut history, _) = enforced();
        let mut checks = AccessControl::default();
        history.each(|change| checks.change(change).unwrap());
        as_holder(&mut history, ADMINISTRATOR, None, AccessOp::Revoke { principal: GUEST.into(), role: GUEST.into() });
        let (mut command, outcome) = history.last();
        if let Command::Do { actor, .. } = &mut command {
            actor.principals = with(TOKEN_OF_GUEST);
        }
        assert!(checks.change(&change(&command, &outcome, 1)).unwrap_err().contains("not the administrator"));
    }

    #[test]
    fn a_session_without_its_token_ends_soon() {
        let (mut history, session) = enforced();
        let mut checks = AccessControl::default();
        as_holder(
            &mut history,
            ADMINISTRATOR,
            None,
            AccessOp::RevokeToken { id: TOKEN_OF_GUEST[..TOKEN_ID_DIGITS].into() },
        );
        history.each(|change| checks.change(change).unwrap());
        let at_us = checks.condemned[&session];
        checks.overdue(at_us + GONE_WITHIN_US, 0).unwrap();
        checks.overdue(at_us + GONE_WITHIN_US + 1, at_us + 1).unwrap();
        checks.overdue(at_us + GONE_WITHIN_US + 1, 0).unwrap_err();
        history.apply(Command::EndUnauthorised { sessions: vec![SessionId(session)] });
        history.each(|change| checks.change(change).unwrap());
        checks.overdue(at_us + GONE_WITHIN_US + 1, 0).unwrap();
    }
}
