//! The naive model's queues: a scan of all names, sorted, for each question. Grammar and rule are those of
//! `checkers`.

use lockkeeper_checkers::name::{self, RequestName, in_order, is_kept_place, parse};
use lockkeeper_checkers::queue::{Blocker, blocker};
use lockkeeper_core::limits::*;
use lockkeeper_core::*;

use super::naive::{Model, ModelReply, bad, is_lock_directory, join, split};
use crate::world::path;

/// Sorted, each once, neither none nor too many.
pub(crate) fn check_locks(locks: &[LockName]) -> Result<(), Refusal> {
    let mut sorted = locks.to_vec();
    sorted.sort();
    sorted.dedup();
    if sorted != locks || locks.is_empty() || locks.len() > 256 { bad() } else { Ok(()) }
}

impl Model {
    pub(crate) fn run_on_locks(&mut self, zxid: u64, session: Option<SessionId>, op: &LockOp) -> ModelReply {
        match op {
            LockOp::Acquire { locks, mode, delay_ms, uuid, label } => {
                self.acquire(zxid, session, locks, *mode, *delay_ms, *uuid, label)
            }
            LockOp::Withdraw { locks, token, if_holding } => self.withdraw(zxid, session, locks, *token, *if_holding),
            LockOp::Release { locks, token } => self.release(zxid, session, locks, *token),
            LockOp::Claim { locks, token } => self.claim(zxid, session, locks, *token),
            LockOp::Abandon { locks, token, versions } => self.abandon(zxid, locks, *token, versions),
            LockOp::Downgrade { lock, token } => self.downgrade(zxid, session, lock, *token),
            LockOp::ForceRelease { lock, token } => {
                let delay = self.with_token(lock, *token).filter(|at| is_kept_place(&split(at).unwrap().1));
                let at = match delay {
                    Some(at) => at,
                    None => self.holder(lock, *token, |_| true)?,
                };
                self.allow(&format!("/locks/{lock}"), Permissions::DELETE)?;
                if !self.may_force {
                    return Err(Refusal::Forbidden("".into()));
                }
                if !self.children(&at).is_empty() {
                    return Err(Refusal::NotEmpty(path(&at)));
                }
                let holder = SessionId(self.nodes[&at].owner.unwrap_or(0));
                self.remove(zxid, &at)?;
                Ok(Reply::ForceReleased { holder })
            }
            LockOp::AcquireReentrant { lock, delay_ms, uuid, label } => {
                self.acquire_reentrant(zxid, session, lock, *delay_ms, *uuid, label)
            }
        }
    }

    fn release(
        &mut self,
        zxid: u64,
        session: Option<SessionId>,
        locks: &[LockName],
        token: FencingToken,
    ) -> ModelReply {
        let session = session.ok_or(Refusal::SessionRequired)?;
        check_locks(locks)?;
        let mut held = Vec::new();
        for lock in locks {
            held.push(self.holder(lock, token, |owner| owner == Some(session.0))?);
        }
        for at in &held {
            self.give_back(zxid, at)?;
        }
        Ok(self.still_held(&held).unwrap_or(Reply::Released))
    }

    fn times(&self, at: &str) -> u32 {
        self.holds.get(at).copied().unwrap_or(1)
    }

    /// One of so many holds.
    fn give_back(&mut self, zxid: u64, at: &str) -> Result<bool, Refusal> {
        let times = self.times(at) - 1;
        match times {
            0 => drop(self.remove(zxid, at)?),
            1 if !self.base_gone.contains(at) => drop(self.holds.remove(at)),
            _ => drop(self.holds.insert(at.to_string(), times)),
        }
        Ok(times == 0)
    }

    fn still_held(&self, given_back: &[String]) -> Option<Reply> {
        let held = given_back.iter().filter(|at| self.nodes.contains_key(*at)).map(|at| self.times(at));
        held.max().map(|holds| Reply::StillHeld { holds })
    }

    fn acquire_reentrant(
        &mut self,
        zxid: u64,
        session: Option<SessionId>,
        lock: &LockName,
        delay_ms: u32,
        uuid: RequestId,
        label: &str,
    ) -> ModelReply {
        let owner = session.ok_or(Refusal::SessionRequired)?.0;
        let directory = format!("/locks/{lock}");
        // What the request would be refused for without the lock, but for what only a new place in the queue needs.
        let mut copy = self.clone();
        let asked = copy.acquire(zxid, session, std::slice::from_ref(lock), LockMode::Exclusive, delay_ms, uuid, label);
        let is_new = asked.is_err() || copy.nodes != self.nodes;
        let is_invalid = matches!(asked, Err(Refusal::BadArguments(_) | Refusal::RequestMismatch));
        let own = |at: &&String| {
            let (parent, name) = split(at).unwrap();
            parent == directory && parse(&name).is_some() && self.blocker(at).is_none()
        };
        let held = self.owned(owner).iter().find(own).cloned().filter(|_| is_new && !is_invalid);
        let Some(at) = held else {
            return self.acquire(zxid, session, std::slice::from_ref(lock), LockMode::Exclusive, delay_ms, uuid, label);
        };
        if parse(&split(&at).unwrap().1).unwrap().mode != name::LockMode::Exclusive {
            return Err(Refusal::LockMismatch { lock: lock.as_str().into(), detail: "".into() });
        }
        let uuid_of = |at: &String| parse(&split(at).unwrap().1).and_then(|name| name.uuid);
        let together = |other: &String| {
            let uuid = uuid_of(other);
            *other != at && uuid.is_some() && uuid == uuid_of(&at) && self.nodes[other].czxid == self.nodes[&at].czxid
        };
        if self.owned(owner).iter().any(together) {
            return Err(Refusal::LockMismatch { lock: lock.as_str().into(), detail: "".into() });
        }
        self.allow(&directory, Permissions::CREATE)?;
        let holds = self.times(&at) + 1;
        self.holds.insert(at.clone(), holds);
        Ok(Reply::Reentered { path: path(&at), token: FencingToken(self.nodes[&at].czxid), holds })
    }

    fn claim(&mut self, zxid: u64, session: Option<SessionId>, locks: &[LockName], token: FencingToken) -> ModelReply {
        let session = session.ok_or(Refusal::SessionRequired)?;
        check_locks(locks)?;
        let mut versions = Vec::new();
        for lock in locks {
            let own = self.own_base(session, lock, token);
            let Some(at) = own else {
                return Err(Refusal::NotQueued { lock: lock.as_str().into(), token });
            };
            versions.push(self.raise_version(zxid, &at));
        }
        Ok(Reply::Claimed { versions })
    }

    /// The session's request with this token, unless its own call has given its hold back.
    fn own_base(&self, session: SessionId, lock: &LockName, token: FencingToken) -> Option<String> {
        let own = self.with_token(lock, token).filter(|at| self.nodes[at].owner == Some(session.0));
        own.filter(|at| !self.base_gone.contains(at))
    }

    fn raise_version(&mut self, zxid: u64, at: &str) -> i32 {
        let clock = self.clock;
        let node = self.nodes.get_mut(at).unwrap();
        node.version += 1;
        (node.mzxid, node.mtime) = (zxid, clock);
        let version = node.version;
        self.note(zxid, NodeEventKind::DataChanged, at);
        version
    }

    fn abandon(&mut self, zxid: u64, locks: &[LockName], token: FencingToken, versions: &[i32]) -> ModelReply {
        check_locks(locks)?;
        if versions.len() != locks.len() {
            return bad();
        }
        let unclaimed = |(lock, version): (&LockName, &i32)| {
            let at = self.with_token(lock, token)?;
            let node = &self.nodes[&at];
            (node.owner.is_some() && node.version == *version && !self.base_gone.contains(&at)).then_some(at)
        };
        let found: Vec<String> = locks.iter().zip(versions).filter_map(unclaimed).collect();
        self.leave(zxid, locks, token, &found, IfHolding::Release)
    }

    #[allow(clippy::too_many_arguments)] // the fields of one op
    pub(crate) fn acquire(
        &mut self,
        zxid: u64,
        session: Option<SessionId>,
        locks: &[LockName],
        mode: LockMode,
        delay_ms: u32,
        uuid: RequestId,
        label: &str,
    ) -> ModelReply {
        let session = session.ok_or(Refusal::SessionRequired)?.0;
        check_locks(locks)?;
        let wrong_permits = matches!(mode, LockMode::Permit(permits) if permits == 0 || permits > MAX_PERMITS);
        let inner = |lock: &LockName| lock.as_str().split('/').skip(1).any(|part| parse(part).is_some());
        let below_delay = |lock: &LockName| lock.as_str().split('/').any(is_kept_place);
        let wrong_name = locks.iter().any(|lock| inner(lock) || below_delay(lock));
        if label.len() > MAX_LABEL_BYTES || wrong_permits || delay_ms > MAX_DELAY_MS || wrong_name {
            return bad();
        }
        let wish = match mode {
            LockMode::Exclusive => "lock-".to_string(),
            LockMode::Shared => "__READ__".to_string(),
            LockMode::Write => "__WRIT__".to_string(),
            LockMode::Permit(permits) => format!("permit-{permits}-"),
        };
        let delay = if delay_ms > 0 { format!("delay-{delay_ms}-") } else { String::new() };
        let stem = format!("_c_{uuid}-{delay}{wish}");
        if let Some(answer) = self.asked_before(session, locks, uuid, &stem) {
            return answer;
        }
        for lock in locks {
            let above = self.directories(lock);
            // The request, or the first directory above it that is missing, is made in the last one that is there.
            let nearest = above.iter().rfind(|directory| self.nodes.contains_key(*directory));
            let nearest = nearest.map_or("/", |directory| directory);
            if nearest == "/" {
                continue;
            }
            self.allow(nearest, Permissions::CREATE)?;
            if self.nodes[nearest].kind == NodeKind::Ephemeral {
                return Err(Refusal::NoChildrenForEphemerals(path(nearest)));
            }
            let directory = above.last().unwrap();
            self.check_kind(directory, mode.permits())?;
            self.check_names(directory, None)?;
        }
        let mut made = Vec::new();
        for lock in locks {
            for directory in self.directories(lock) {
                if !self.nodes.contains_key(&directory) {
                    let list = self.list_of(&split(&directory).unwrap().0);
                    self.add(zxid, &directory, Some(&[]), &list, NodeKind::Container, None);
                }
            }
            let directory = format!("/locks/{lock}");
            let list = self.list_of(&directory);
            let at = format!("{directory}/{stem}{:010}", self.nodes[&directory].births);
            self.add(zxid, &at, Some(label.as_bytes()), &list, NodeKind::Ephemeral, Some(session));
            made.push(at);
        }
        Ok(self.queued(&made))
    }

    /// A lock's directory and those above it, from the top.
    fn directories(&self, lock: &LockName) -> Vec<String> {
        let mut above = String::new();
        let mut directories = Vec::new();
        for part in std::iter::once("locks").chain(lock.as_str().split('/')) {
            above = format!("{above}/{part}");
            directories.push(above.clone());
        }
        directories
    }

    /// A queue is one of locks, or of permits of one number.
    pub(crate) fn check_kind(&self, directory: &str, permits: Option<u16>) -> Result<(), Refusal> {
        if self.queue(directory).iter().any(|(_, other)| other.mode.permits() != permits) {
            let lock = directory["/locks/".len()..].into();
            return Err(Refusal::LockMismatch { lock, detail: "".into() });
        }
        Ok(())
    }

    /// The answer to a request whose uuid the session has used for one of these locks. Found by name, as a client
    /// finds its own among the children.
    fn asked_before(&self, session: u64, locks: &[LockName], uuid: RequestId, stem: &str) -> Option<ModelReply> {
        let own = |at: &String, directory: &str| {
            let Some((parent, name)) = split(at) else { return false };
            (directory.is_empty() || parent == directory)
                && parse(&name).is_some_and(|name| name.uuid == Some(uuid.to_string()))
        };
        let mine = self.owned(session);
        let (mut known, mut missing) = (Vec::new(), None);
        for lock in locks {
            let directory = format!("/locks/{lock}");
            match mine.iter().find(|at| own(at, &directory) && !self.base_gone.contains(*at)) {
                Some(at) => {
                    let name = split(at).unwrap().1;
                    if name.len() != stem.len() + 10 || !name.starts_with(stem) {
                        return Some(Err(Refusal::RequestMismatch));
                    }
                    known.push(at.clone());
                }
                None => missing = Some(lock),
            }
        }
        let token = self.nodes[known.first()?].czxid;
        let same_token = mine.iter().filter(|at| own(at, "") && self.nodes[*at].czxid == token).count();
        if known.iter().any(|at| self.nodes[at].czxid != token) || same_token > known.len() {
            return Some(Err(Refusal::RequestMismatch));
        }
        Some(match missing {
            Some(lock) => Err(Refusal::NotQueued { lock: lock.as_str().into(), token: FencingToken(token) }),
            None => Ok(self.queued(&known)),
        })
    }

    fn queued(&self, at: &[String]) -> Reply {
        let token = FencingToken(self.nodes[&at[0]].czxid);
        let held = at.iter().all(|at| self.blocker(at).is_none());
        Reply::Queued { paths: at.iter().map(|at| path(at)).collect(), token, held }
    }

    pub(crate) fn withdraw(
        &mut self,
        zxid: u64,
        session: Option<SessionId>,
        locks: &[LockName],
        token: FencingToken,
        if_holding: IfHolding,
    ) -> ModelReply {
        let session = session.ok_or(Refusal::SessionRequired)?;
        check_locks(locks)?;
        let own = |lock| self.own_base(session, lock, token);
        let found: Vec<String> = locks.iter().filter_map(own).collect();
        self.leave(zxid, locks, token, &found, if_holding)
    }

    /// Takes these out of the queues of those locks.
    pub(crate) fn leave(
        &mut self,
        zxid: u64,
        locks: &[LockName],
        token: FencingToken,
        found: &[String],
        if_holding: IfHolding,
    ) -> ModelReply {
        if found.is_empty() {
            return Err(Refusal::NotQueued { lock: locks[0].as_str().into(), token });
        }
        let held = found.len() == locks.len() && found.iter().all(|at| self.blocker(at).is_none());
        if held && if_holding == IfHolding::Keep {
            return Ok(Reply::HeldInstead);
        }
        for at in found {
            if !self.give_back(zxid, at)? {
                let times = self.times(at);
                self.holds.insert(at.clone(), times);
                self.base_gone.insert(at.clone());
                self.raise_version(zxid, at);
            }
        }
        Ok(self.still_held(found).unwrap_or(if held { Reply::Released } else { Reply::Withdrawn }))
    }

    pub(crate) fn downgrade(
        &mut self,
        zxid: u64,
        session: Option<SessionId>,
        lock: &LockName,
        token: FencingToken,
    ) -> ModelReply {
        let session = session.ok_or(Refusal::SessionRequired)?;
        let at = self.holder(lock, token, |owner| owner == Some(session.0))?;
        let (stem, sequence) = at.split_at(at.len() - 10);
        if parse(split(&at).unwrap().1.as_str()).unwrap().mode == name::LockMode::Shared {
            return Ok(Reply::Downgraded { path: path(&at) });
        }
        let Some(stem) = stem.strip_suffix("__WRIT__") else { return bad() };
        let to = format!("{stem}__READ__{sequence}");
        if self.nodes.contains_key(&to) {
            return Err(Refusal::NodeExists(path(&to)));
        }
        let node = self.nodes.remove(&at).unwrap();
        self.nodes.insert(to.clone(), node);
        let directory = format!("/locks/{lock}");
        let parent = self.nodes.get_mut(&directory).unwrap();
        parent.births += 1;
        parent.deaths += 1;
        parent.pzxid = zxid;
        let acl = self.nodes[&to].acl.clone();
        self.note_listed(zxid, NodeEventKind::Deleted, &at, acl);
        self.note(zxid, NodeEventKind::Created, &to);
        self.note(zxid, NodeEventKind::ChildrenChanged, &directory);
        Ok(Reply::Downgraded { path: path(&to) })
    }

    /// What a session holds and had asked to be kept free, with its token; of a set all or nothing.
    pub(crate) fn to_be_delayed(&self, session: u64) -> Vec<(u64, String, Vec<u8>)> {
        let delayed = |at: &String| {
            let (parent, name) = split(at).unwrap();
            is_lock_directory(&parent) && parse(&name).is_some_and(|name| name.delay_ms > 0)
        };
        let own: Vec<String> = self.owned(session).into_iter().filter(delayed).collect();
        let holds = |token| own.iter().filter(|at| self.nodes[*at].czxid == token).all(|at| self.blocker(at).is_none());
        let kept =
            own.iter().map(|at| (self.nodes[at].czxid, at.clone(), self.nodes[at].data.clone().unwrap_or_default()));
        let mut kept: Vec<_> = kept.filter(|(token, ..)| holds(*token)).collect();
        kept.sort();
        kept
    }

    /// Puts something that belongs to nobody in the place of a holder that has just gone.
    pub(crate) fn keep_free(&mut self, zxid: u64, session: u64, token: u64, at: &str, data: &[u8]) {
        let (directory, name) = split(at).unwrap();
        let RequestName { mut sequence, mode, delay_ms, .. } = parse(&name).unwrap();
        let words = match mode {
            name::LockMode::Exclusive => "lock-".to_string(),
            name::LockMode::Shared | name::LockMode::Write => "__WRIT__".to_string(),
            name::LockMode::Permit(permits) => format!("permit-{permits}-"),
        };
        if mode == name::LockMode::Shared {
            // Behind the last of the readers at the front.
            let queue = self.queue(&directory);
            let readers = queue.iter().take_while(|(_, other)| other.mode == name::LockMode::Shared);
            sequence = readers.map(|(_, other)| other.sequence).chain([sequence]).max().unwrap();
        }
        let label = String::from_utf8_lossy(data);
        let label = if label.is_empty() { String::new() } else { format!(" ({label})") };
        let text = format!(
            "lock delay: session {session}{label} expired while it held with token {token}; kept free for {delay_ms} ms"
        );
        let kept = join(&directory, &format!("delay-{delay_ms}-{token}-{words}{sequence:010}"));
        let kind = NodeKind::Ttl { ttl_ms: delay_ms.into() };
        let list = self.list_of(&directory);
        self.add(zxid, &kept, Some(text.as_bytes()), &list, kind, None);
    }

    /// The requests in a directory, in order.
    pub(crate) fn queue(&self, directory: &str) -> Vec<(String, RequestName)> {
        let children = self.children(directory);
        in_order(&children).into_iter().map(|(child, name)| (child.to_string(), name)).collect()
    }

    /// What a request waits for: the directory stands for any holder of a permit.
    pub(crate) fn blocker(&self, at: &str) -> Option<String> {
        let (directory, child) = split(at).unwrap();
        let queue = self.queue(&directory);
        let place = queue.iter().position(|(other, _)| *other == child).unwrap();
        let modes: Vec<name::LockMode> = queue.iter().map(|(_, name)| name.mode).collect();
        Some(match blocker(&modes[..place], modes[place])? {
            Blocker::Request(before) => join(&directory, &queue[before].0),
            Blocker::AnyHolder => directory,
        })
    }

    pub(crate) fn with_token(&self, lock: &LockName, token: FencingToken) -> Option<String> {
        let directory = format!("/locks/{lock}");
        let queue = self.queue(&directory);
        queue.iter().map(|(child, _)| join(&directory, child)).find(|at| self.nodes[at].czxid == token.0)
    }

    pub(crate) fn holder(
        &self,
        lock: &LockName,
        token: FencingToken,
        meant: impl Fn(Option<u64>) -> bool,
    ) -> Result<String, Refusal> {
        self.with_token(lock, token)
            .filter(|at| !is_kept_place(&split(at).unwrap().1))
            .filter(|at| self.blocker(at).is_none() && meant(self.nodes[at].owner))
            .ok_or_else(|| Refusal::NotHeld { lock: lock.as_str().into(), token })
    }
}
