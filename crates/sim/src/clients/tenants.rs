//! Clients of namespaces whose limits come, change and go (promise P13): they create and delete nodes and take locks,
//! and are refused at the limit.

use lockkeeper_core::{
    AccessOp, FencingToken, IfHolding, LockMode, LockName, LockOp, NamespaceLimits, NodeData, NodeKind, NodeOp,
    NodePath, Op, Reply, RequestId,
};
use lockkeeper_node::At;
use rand::Rng;

use super::attempt::{Attempt, TRY};
use super::retry::OpResult;
use super::session::Session;
use super::{Client, Outcome, create};

const TENANTS: u64 = 2;

impl Client {
    /// Sets limits, or uses what they limit.
    pub(super) async fn use_namespace(&mut self, session: &Session) {
        let tenant = format!("tenant{}", self.rng.random_range(0..TENANTS));
        match self.rng.random_range(0..10) {
            0 | 1 => self.change_limits(&tenant).await,
            2..=4 => self.lock_in_namespace(session, &tenant).await,
            _ => self.fill_namespace(session, &tenant).await,
        }
    }

    async fn change_limits(&mut self, tenant: &str) {
        let name = tenant.into();
        let op = if self.rng.random_bool(0.2) {
            AccessOp::DeleteNamespace { name }
        } else {
            let nodes = self.rng.random_bool(0.8).then(|| self.rng.random_range(2..=8));
            let lock_requests = self.rng.random_bool(0.5).then(|| self.rng.random_range(1..=3));
            let limits = NamespaceLimits { nodes, lock_requests, ..NamespaceLimits::default() };
            AccessOp::PutNamespace { name, owner: None, limits, version: None }
        };
        self.administer(op).await;
    }

    async fn fill_namespace(&mut self, session: &Session, tenant: &str) {
        let top = format!("/{tenant}");
        let (Ok(home), Ok(path)) = (NodePath::parse(&top), NodePath::parse(&format!("{top}/n{}-", self.number))) else {
            return;
        };
        let node = |path, kind, sequential| create(path, NodeData::default(), kind, sequential);
        let mut made = Vec::new();
        for _ in 0..self.rng.random_range(1..=4) {
            let op = match self.rng.random_range(0..4) {
                0 => node(home.clone(), NodeKind::Persistent, false).into(),
                1 => Op::Multi(vec![node(path.clone(), NodeKind::Ephemeral, true); 3]),
                _ => node(path.clone(), NodeKind::Ephemeral, true).into(),
            };
            match self.mutate(session, "create in a namespace", op).await {
                OpResult::Done(At { value: Reply::Created { path, .. }, .. }) if path != home => made.push(path),
                OpResult::Done(_) | OpResult::Refused(_) => self.progress(),
                OpResult::Failed | OpResult::Unknown | OpResult::SessionEnded => return,
            }
        }
        for path in made.into_iter().skip(self.rng.random_range(0..=2)) {
            drop(self.mutate(session, "delete", NodeOp::Delete { path, version: None }).await);
        }
    }

    /// Enters the queue of a lock and leaves it, whether it holds or not.
    async fn lock_in_namespace(&mut self, session: &Session, tenant: &str) {
        let Ok(lock) = LockName::parse(&format!("{tenant}/l{}", self.rng.random_range(0..3))) else { return };
        let (uuid, mode) = (RequestId(self.new_id()), LockMode::Exclusive);
        let acquire = LockOp::Acquire { locks: vec![lock.clone()], mode, delay_ms: 0, uuid, label: "tenant".into() };
        match self.mutate(session, "queue in a namespace", acquire).await {
            OpResult::Done(At { value: Reply::Queued { token: FencingToken(token), .. }, .. }) => {
                let pause_ms = self.rng.random_range(0..=100);
                self.sleep_ms(pause_ms).await;
                let if_holding = IfHolding::Release;
                let withdraw = LockOp::Withdraw { locks: vec![lock], token: FencingToken(token), if_holding };
                drop(self.mutate(session, "leave the queue", withdraw).await);
            }
            OpResult::Refused(_) | OpResult::Done(_) => self.progress(),
            OpResult::Unknown => self.leave_after(0),
            OpResult::Failed | OpResult::SessionEnded => {}
        }
    }

    /// One attempt as the administrator; whether it was carried out.
    pub(super) async fn administer(&mut self, op: impl Into<Op>) -> bool {
        let (caller, op) = (super::guests::administrator(), op.into());
        let answer = self.call(TRY, move |node| async move { node.execute(caller, op).await }).await;
        let is_done = matches!(answer, Attempt::Done(_));
        self.lab.count("administer", if is_done { Outcome::Ok } else { Outcome::Unknown });
        is_done
    }
}
