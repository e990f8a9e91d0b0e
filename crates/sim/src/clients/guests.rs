//! Guests: clients with a token and a role, which are taken away while they work (promise P14). Everyone else keeps
//! what the role of `anyone` allows, and that has nothing of the guests.

use std::sync::Arc;

use lockkeeper_core::access::{ANYONE, Resource, Rights, Rule, TOKEN, TOKEN_ID_DIGITS};
use lockkeeper_core::{AccessOp, Identity, NodeData, NodeKind, NodeOp, NodePath, Principals};
use lockkeeper_node::Caller;
use rand::Rng;

use super::retry::OpResult;
use super::session::Session;
use super::{Client, create};
use crate::checks::access::{ADMINISTRATOR, GUEST};

/// How long a guest stays after it has lost its token, longer than its session may live.
const STAYS_MS: u64 = 5_000;

pub(super) fn administrator() -> Caller {
    Caller { principals: with_token(ADMINISTRATOR.into()), ..Caller::default() }
}

fn with_token(hash: Arc<str>) -> Principals {
    Principals { address: None, identities: vec![Identity { scheme: TOKEN.into(), id: hash }] }
}

fn rule(resource: Resource, prefix: &str, rights: Rights) -> Rule {
    Rule { resource, prefix: prefix.into(), rights }
}

/// What clients of other work need.
fn open_rules() -> Vec<Rule> {
    let both = Rights::READ.and(Rights::WRITE);
    let nodes = ["/data", "/members", "/many", "/never", "/tenant0", "/tenant1"];
    let locks = ["x", "rw", "sem", "tenant0", "tenant1"];
    let all = |resource, prefix| rule(resource, prefix, Rights::READ.and(Rights::ACQUIRE).and(Rights::FORCE));
    let nodes = nodes.into_iter().map(|prefix| rule(Resource::Nodes, prefix, both));
    let locks = locks.into_iter().map(|prefix| rule(Resource::Locks, prefix, Rights::READ.and(Rights::ACQUIRE)));
    nodes.chain(locks).chain([all(Resource::Gates, "job"), all(Resource::Rates, "r")]).collect()
}

impl Client {
    /// Has access control enforced, if it is not yet. Every step may be repeated.
    async fn enforce_access(&mut self) -> bool {
        let guest = format!("/{GUEST}");
        let rules = vec![rule(Resource::Nodes, &guest, Rights::READ.and(Rights::WRITE))];
        let grant = |principal: &str, role: &str| AccessOp::Grant { principal: principal.into(), role: role.into() };
        let steps = [
            AccessOp::PutRole { name: "open".into(), rules: open_rules(), version: None },
            grant(ANYONE, "open"),
            AccessOp::PutRole { name: GUEST.into(), rules, version: None },
            AccessOp::Enable { first: Some(ADMINISTRATOR.into()) },
        ];
        for step in steps {
            if !self.administer(step).await {
                return false;
            }
        }
        true
    }

    /// Is a guest for a while, under a session and a token of its own.
    pub(super) async fn be_guest(&mut self) {
        self.has_access = self.has_access || self.enforce_access().await;
        let hash: Arc<str> = format!("{:032x}{:032x}", self.new_id(), self.rng.random::<u128>()).into();
        let token = AccessOp::CreateToken { hash: hash.clone(), principal: GUEST.into(), ttl_ms: None };
        let grant = AccessOp::Grant { principal: GUEST.into(), role: GUEST.into() };
        if !self.has_access || !self.administer(token).await || !self.administer(grant).await {
            return;
        }
        let timeout_ms = self.lab.plan.session_timeout_ms;
        let Some(session) = Session::open_as(self, timeout_ms, with_token(hash.clone())).await else { return };
        self.act_as_guest(&session).await;
        let has_token = self.rng.random_bool(0.4);
        let taken_away = match has_token {
            true => AccessOp::Revoke { principal: GUEST.into(), role: GUEST.into() },
            false => AccessOp::RevokeToken { id: hash[..TOKEN_ID_DIGITS].into() },
        };
        let is_taken_away = self.administer(taken_away).await;
        self.act_as_guest(&session).await;
        if is_taken_away && !has_token {
            self.sleep_ms(STAYS_MS).await;
        }
        session.close(self).await;
        self.progress();
    }

    async fn act_as_guest(&mut self, session: &Session) {
        let top = format!("/{GUEST}");
        let (Ok(home), Ok(path)) = (NodePath::parse(&top), NodePath::parse(&format!("{top}/g-"))) else { return };
        for _ in 0..self.rng.random_range(1..=3) {
            let op = match self.rng.random_range(0..3) {
                0 => create(home.clone(), NodeData::NULL, NodeKind::Persistent, false),
                1 => NodeOp::SetData { path: home.clone(), data: (*b"a guest was here").into(), version: None },
                _ => create(path.clone(), NodeData::NULL, NodeKind::Ephemeral, true),
            };
            match self.mutate(session, "act as a guest", op).await {
                OpResult::Done(_) | OpResult::Refused(_) => {}
                OpResult::Failed | OpResult::Unknown | OpResult::SessionEnded => return,
            }
        }
    }

    /// Tries to do what is for guests and for administrators, without being one.
    pub(super) async fn intrude(&mut self, session: &Session) {
        if self.rng.random_bool(0.5) {
            return self.act_as_guest(session).await;
        }
        let op = AccessOp::Grant { principal: ANYONE.into(), role: GUEST.into() };
        // Before access control is enforced, anybody may do this; then nobody is an intruder.
        if self.has_access {
            drop(self.mutate(session, "grant", op).await);
        }
    }
}
