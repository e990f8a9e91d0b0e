//! Clients that keep data in nodes: registers that they read, write, compare and set; ephemeral and sequential nodes.

use lockkeeper_core::{NodeData, NodeKind, NodeOp, NodePath, Op, Reply, State};
use lockkeeper_node::{At, Consistency};
use rand::Rng;

use super::attempt::{Attempt, TRY};
use super::retry::OpResult;
use super::session::Session;
use super::{Client, Outcome, create};
use crate::checks::Check;

const REGISTERS: u64 = 4;

impl Client {
    /// Reads or writes a register.
    pub(super) async fn use_data(&mut self, session: &Session) {
        let name = match self.rng.random_range(0..=REGISTERS) {
            REGISTERS => "/data/guarded".to_owned(),
            number => format!("/data/r{number}"),
        };
        let Ok(path) = NodePath::parse(&name) else { return };
        match self.rng.random_range(0..10) {
            0..=3 => self.read_register(path).await,
            4 => self.read_stale(path).await,
            5 if name != "/data/guarded" => {
                let op_result = self.mutate(session, "delete", NodeOp::Delete { path, version: None }).await;
                self.note_progress(&op_result);
            }
            6 => self.compare_and_set(session, path).await,
            _ => self.write(session, path).await,
        }
    }

    fn note_progress<T>(&self, op_result: &OpResult<T>) {
        if matches!(op_result, OpResult::Done(_) | OpResult::Refused(_)) {
            self.progress();
        }
    }

    /// Mostly something that nobody else writes; null and empty now and then, which are to be kept apart.
    fn new_data(&mut self) -> NodeData {
        match self.new_id() {
            id if id % 16 == 0 => NodeData::NULL,
            id if id % 16 == 1 => NodeData::from([]),
            id => format!("{} {id:x}", self.number).into_bytes().into(),
        }
    }

    async fn read_register(&mut self, path: NodePath) {
        let at = path.clone();
        let read = self.read("read", move |state: &State| state.get(&at).map(|node| node.data.clone())).await;
        if let Some(At { value, zxid }) = read {
            self.was_read(&path, zxid.0, value.as_ref());
            self.progress();
        }
    }

    async fn read_stale(&mut self, path: NodePath) {
        let at = path.clone();
        let look = move |state: &State| state.get(&at).map(|node| node.data.clone());
        let tried = self.call(TRY, move |node| async move { node.read(Consistency::Stale, look).await }).await;
        if let Attempt::Done(At { value, zxid }) = tried {
            self.lab.count("stale read", Outcome::Ok);
            self.was_read(&path, zxid.0, value.as_ref());
        }
    }

    fn was_read(&self, path: &NodePath, zxid: u64, data: Option<&NodeData>) {
        self.lab.checkers.lock().judge(Check::Linearizable, |it| it.reads.read(path.as_str(), zxid, data));
    }

    async fn write(&mut self, session: &Session, path: NodePath) {
        let set = NodeOp::SetData { path: path.clone(), data: self.new_data(), version: None };
        let op_result = self.mutate(session, "write", set).await;
        self.note_progress(&op_result);
        if matches!(op_result, OpResult::Refused(_)) {
            let parent = path.parent().unwrap_or_else(NodePath::root);
            drop(self.mutate(session, "create", create(parent, NodeData::NULL, NodeKind::Persistent, false)).await);
            let data = self.new_data();
            drop(self.mutate(session, "create", create(path, data, NodeKind::Persistent, false)).await);
        }
    }

    async fn compare_and_set(&mut self, session: &Session, path: NodePath) {
        let at = path.clone();
        let version = self.read("read", move |state: &State| state.get(&at).map(|node| node.stat.version)).await;
        let Some(At { value: Some(version), .. }) = version else { return };
        let data = self.new_data();
        let set = NodeOp::SetData { path: path.clone(), data, version: Some(version) };
        let op = match self.rng.random_bool(0.5) {
            true => set.into(),
            false => {
                let second = NodeOp::SetData { path: path.clone(), data: self.new_data(), version: None };
                Op::Multi(vec![NodeOp::Check { path, version: Some(version) }, second])
            }
        };
        let op_result = self.mutate(session, "compare and set", op).await;
        self.note_progress(&op_result);
    }

    /// Makes ephemerals, looks at them, and sometimes takes one away.
    pub(super) async fn use_ephemerals(&mut self, session: &Session) {
        let Ok(home) = NodePath::parse("/members") else { return };
        let name = format!("/members/m{}-", self.number);
        let Ok(path) = NodePath::parse(&name) else { return };
        let sequential = self.rng.random_bool(0.7);
        let data = self.new_data();
        let id = self.new_id();
        let op = create(path, data, NodeKind::Ephemeral, sequential);
        let mut op_result = self.mutate_as(session, "create ephemeral", op.clone(), id).await;
        if let OpResult::Refused(lockkeeper_core::Refusal::NoNode(_)) = op_result {
            drop(
                self.mutate(session, "create", create(home.clone(), NodeData::NULL, NodeKind::Persistent, false)).await,
            );
            op_result = self.mutate(session, "create ephemeral", op).await;
        } else if matches!(op_result, OpResult::Done(_)) && self.rng.random_bool(0.2) {
            self.mutate_again(session, "create again", op, id).await;
        }
        self.note_progress(&op_result);
        self.look_at_members(home).await;
        if let OpResult::Done(At { value: Reply::Created { path, .. }, .. }) = op_result
            && self.rng.random_bool(0.3)
        {
            drop(self.mutate(session, "delete", NodeOp::Delete { path, version: None }).await);
        }
    }

    async fn look_at_members(&mut self, home: NodePath) {
        let look = move |state: &State| -> Option<Vec<(String, Option<u64>)>> {
            let names = state.children(&home)?;
            let owner = |name: &str| {
                let path = home.child(name).ok()?;
                state.get(&path)?.stat.ephemeral_owner.map(|session| session.0)
            };
            Some(names.map(|name| (name.to_string(), owner(name))).collect())
        };
        let again = look.clone();
        if let Some(At { value, zxid }) = self.read("list", look).await {
            self.lab.checkers.lock().looked("a list of ephemerals", zxid.0, &value, again);
        }
    }
}
