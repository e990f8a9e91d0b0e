//! The naive model's queues: a scan of all names, sorted, each time anyone asks.

use lockkeeper_core::limits::MAX_LABEL_BYTES;
use lockkeeper_core::*;

use super::naive::{Answer, Model, Place, bad, join, path, read_name, split};

impl Model {
    pub(crate) fn acquire(
        &mut self,
        zxid: u64,
        session: Option<SessionId>,
        lock: &LockName,
        mode: LockMode,
        uuid: RequestId,
        label: &str,
    ) -> Answer {
        let session = session.ok_or(Refusal::SessionRequired)?;
        let parts: Vec<&str> = lock.as_str().split('/').collect();
        if label.len() > MAX_LABEL_BYTES || parts[1..].iter().any(|part| read_name(part).is_some()) {
            return bad();
        }
        let directory = format!("/locks/{lock}");
        let stems = [
            (LockMode::Exclusive, format!("_c_{uuid}-lock-")),
            (LockMode::Shared, format!("_c_{uuid}-__READ__")),
            (LockMode::Write, format!("_c_{uuid}-__WRIT__")),
        ];
        let stem = &stems.iter().find(|(m, _)| *m == mode).unwrap().1;
        // By name: that is how a client that lists the children finds its own.
        for name in self.children(&directory) {
            let own = self.nodes[&join(&directory, &name)].owner == Some(session.0);
            if own && stems.iter().any(|(_, s)| name.len() == s.len() + 10 && name.starts_with(s)) {
                return if name.starts_with(stem) {
                    Ok(self.queued(&join(&directory, &name)))
                } else {
                    Err(Refusal::RequestMismatch)
                };
            }
        }
        let mut missing = Vec::new();
        let mut above = String::new();
        for part in std::iter::once("locks").chain(parts) {
            above = format!("{above}/{part}");
            match self.nodes.get(&above) {
                Some(node) if node.kind == NodeKind::Ephemeral => {
                    return Err(Refusal::NoChildrenForEphemerals(path(&above)));
                }
                Some(_) => {}
                None => missing.push(above.clone()),
            }
        }
        for directory in missing {
            self.add(zxid, &directory, &[], &[AclEntry::open()], NodeKind::Container, None);
        }
        let at = format!("{directory}/{stem}{:010}", self.nodes[&directory].births);
        self.add(zxid, &at, label.as_bytes(), &[AclEntry::open()], NodeKind::Ephemeral, Some(session.0));
        Ok(self.queued(&at))
    }

    fn queued(&self, at: &str) -> Reply {
        let token = FencingToken(self.nodes[at].czxid);
        Reply::Queued { path: path(at), token, held: self.blocker(at).is_none() }
    }

    /// The requests in a directory, in order.
    pub(crate) fn queue(&self, directory: &str) -> Vec<Place> {
        let mut queue: Vec<Place> = Vec::new();
        for name in self.children(directory) {
            if let Some((sequence, exclusive)) = read_name(&name) {
                queue.push((sequence, name, exclusive));
            }
        }
        queue.sort();
        queue
    }

    /// Whom a request waits for.
    pub(crate) fn blocker(&self, at: &str) -> Option<String> {
        let (directory, name) = split(at).unwrap();
        let queue = self.queue(&directory);
        let place = queue.iter().position(|(_, other, _)| *other == name).unwrap();
        let exclusive = queue[place].2;
        let before = queue[..place].iter().rev().find(|(_, _, other_excludes)| exclusive || *other_excludes)?;
        Some(join(&directory, &before.1))
    }

    pub(crate) fn with_token(&self, lock: &LockName, token: FencingToken) -> Option<String> {
        let directory = format!("/locks/{lock}");
        let queue = self.queue(&directory);
        queue.iter().map(|(_, name, _)| join(&directory, name)).find(|at| self.nodes[at].czxid == token.0)
    }

    pub(crate) fn holder(
        &self,
        lock: &LockName,
        token: FencingToken,
        meant: impl Fn(Option<u64>) -> bool,
    ) -> Result<String, Refusal> {
        self.with_token(lock, token)
            .filter(|at| self.blocker(at).is_none() && meant(self.nodes[at].owner))
            .ok_or_else(|| Refusal::NotHeld { lock: lock.as_str().into(), token })
    }
}
