//! The naive model's operations on one node, each with its checks in ZooKeeper's order: arguments, existence,
//! permissions, versions, and conflicts. A caller that may not create or delete a child does not learn whether it
//! exists.

use lockkeeper_checkers::name::{is_kept_place, parse};
use lockkeeper_core::limits::*;
use lockkeeper_core::*;

use super::access;
use super::naive::{MNode, Model, ModelReply, bad, is_lock_directory, join, split};
use crate::world::path;

impl Model {
    pub(crate) fn run_on_node(&mut self, zxid: u64, session: Option<SessionId>, op: &NodeOp) -> ModelReply {
        match op {
            NodeOp::Create { path, data, kind, sequential, acl } => {
                self.create(zxid, session, path.as_str(), data, *kind, *sequential, acl)
            }
            NodeOp::Delete { path, version } => {
                let at = path.as_str();
                let Some((parent, _)) = split(at) else { return bad() };
                self.there(&parent).map_err(|_| Refusal::NoNode(path.clone()))?;
                self.allow(&parent, Permissions::DELETE)?;
                let version_there = self.there(at)?.version;
                let by_force = self.goes_by_force(session, at)?;
                expect(at, *version, version_there)?;
                if !self.children(at).is_empty() {
                    return Err(Refusal::NotEmpty(path.clone()));
                }
                let token = FencingToken(self.nodes[at].czxid);
                let answer = self.remove(zxid, at);
                if by_force {
                    self.tell(Event::ForcedDeletion { zxid: Zxid(zxid), path: path.clone(), token });
                }
                answer
            }
            NodeOp::SetData { path, data, version } => {
                if data.len() > MAX_DATA_BYTES {
                    return bad();
                }
                let at = path.as_str();
                let actual = self.there(at)?.version;
                self.allow(at, Permissions::WRITE)?;
                self.check_data_is_theirs(session, at)?;
                expect(at, *version, actual)?;
                let clock = self.clock;
                let node = self.nodes.get_mut(at).unwrap();
                node.data = data.bytes().map(<[u8]>::to_vec);
                node.version += 1;
                node.mzxid = zxid;
                node.mtime = clock;
                self.note(zxid, NodeEventKind::DataChanged, at);
                Ok(Reply::DataSet(self.stat(at)))
            }
            NodeOp::SetAcl { path, acl, version } => {
                access::is_valid(acl)?;
                let at = path.as_str();
                let actual = self.there(at)?.aversion;
                self.allow(at, Permissions::ADMIN)?;
                self.check_list_is_theirs(session, at)?;
                expect(at, *version, actual)?;
                let node = self.nodes.get_mut(at).unwrap();
                node.acl = acl.clone();
                node.aversion += 1;
                Ok(Reply::AclSet(self.stat(at)))
            }
            NodeOp::Check { path, version } => {
                let at = path.as_str();
                let actual = self.there(at)?.version;
                self.allow(at, Permissions::READ)?;
                expect(at, *version, actual)?;
                Ok(Reply::Checked)
            }
            NodeOp::Add { path, delta, min, max } => self.add_up(zxid, session, path, *delta, *min, *max),
            NodeOp::CheckLock { lock, token } => self.holder(lock, *token, |_| true).map(|_| Reply::Checked),
        }
    }

    fn add_up(
        &mut self,
        zxid: u64,
        session: Option<SessionId>,
        path: &NodePath,
        delta: i64,
        min: Option<i64>,
        max: Option<i64>,
    ) -> ModelReply {
        let at = path.as_str();
        let is_there = self.nodes.contains_key(at);
        let mut value = 0;
        if is_there {
            self.allow(at, Permissions::WRITE)?;
            let data = self.nodes[at].data.clone().unwrap_or_default();
            let number = String::from_utf8(data.clone()).ok().and_then(|text| text.parse::<i64>().ok());
            value = number.ok_or(Refusal::NotANumber { path: path.clone(), bytes: data.len() as u32 })?;
        }
        let sum = i128::from(value) + i128::from(delta);
        let (low, high) = (min.unwrap_or(i64::MIN), max.unwrap_or(i64::MAX));
        if delta > 0 && sum > i128::from(high) || delta < 0 && sum < i128::from(low) {
            let bound = if delta > 0 { high } else { low };
            return Err(Refusal::OutOfBounds { path: path.clone(), value, delta, bound });
        }
        let sum = sum as i64;
        if delta == 0 {
            if !is_there {
                let (parent, _) = split(at).unwrap();
                self.there(&parent)?;
                self.allow(&parent, Permissions::CREATE)?;
            }
            return Ok(Reply::Added(sum));
        }
        let data = sum.to_string().as_bytes().into();
        if is_there {
            self.run_on_node(zxid, session, &NodeOp::SetData { path: path.clone(), data, version: None })?;
        } else {
            self.create(zxid, session, at, &data, NodeKind::Persistent, Sequential::No, &[AclEntry::open()])?;
        }
        Ok(Reply::Added(sum))
    }

    fn there(&self, at: &str) -> Result<&MNode, Refusal> {
        self.nodes.get(at).ok_or_else(|| Refusal::NoNode(path(at)))
    }

    #[allow(clippy::too_many_arguments)] // the fields of one op
    fn create(
        &mut self,
        zxid: u64,
        session: Option<SessionId>,
        at: &str,
        data: &NodeData,
        kind: NodeKind,
        sequential: Sequential,
        acl: &[AclEntry],
    ) -> ModelReply {
        let owner = if kind == NodeKind::Ephemeral { Some(session.ok_or(Refusal::SessionRequired)?.0) } else { None };
        if let NodeKind::Ttl { ttl_ms } = kind
            && (ttl_ms == 0 || ttl_ms > MAX_TTL_MS)
        {
            return bad();
        }
        if data.len() > MAX_DATA_BYTES {
            return bad();
        }
        access::is_valid(acl)?;
        let (parent, name) = match sequential {
            Sequential::Alone => (at.to_string(), String::new()),
            Sequential::No | Sequential::Suffix => split(at).unwrap_or(("/".into(), String::new())),
        };
        let births = self.there(&parent)?.births;
        self.allow(&parent, Permissions::CREATE)?;
        let is_sequential = sequential != Sequential::No;
        let name = if is_sequential { format!("{name}{births:010}") } else { name };
        if name.is_empty() {
            return Err(Refusal::NodeExists(path("/")));
        }
        let at = join(&parent, &name);
        if name.len() > MAX_PART_BYTES || at.len() > MAX_PATH_BYTES {
            return bad();
        }
        if self.nodes.contains_key(&at) {
            return Err(Refusal::NodeExists(path(&at)));
        }
        if self.nodes[&parent].kind == NodeKind::Ephemeral {
            return Err(Refusal::NoChildrenForEphemerals(path(&parent)));
        }
        if split(&parent).is_some_and(|(_, name)| is_kept_place(&name)) {
            return bad();
        }
        if is_lock_directory(&parent)
            && let Some(request) = parse(&name)
        {
            let twice = self.queue(&parent).iter().any(|(other, _)| self.nodes[&join(&parent, other)].czxid == zxid);
            if !is_sequential || twice || is_kept_place(&name) {
                return bad();
            }
            self.check_kind(&parent, request.mode.permits())?;
        }
        if is_sequential && kind == NodeKind::Ephemeral {
            self.check_names(&parent, Some(&name))?;
        }
        let list = self.check_made_by_hand(&at, kind)?;
        self.add(zxid, &at, data.bytes(), list.as_deref().unwrap_or(acl), kind, owner);
        Ok(Reply::Created { path: path(&at), stat: self.stat(&at) })
    }
}

fn expect(at: &str, version: Option<i32>, actual: i32) -> Result<(), Refusal> {
    match version {
        Some(expected) if expected != actual => Err(Refusal::BadVersion { path: path(at), expected, actual }),
        _ => Ok(()),
    }
}
