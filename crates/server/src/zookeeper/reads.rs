//! Requests that look and change nothing: answered from this replica as it is, under its lock, so that what is watched from here on and what
//! is answered fit together.

use bytes::{Bytes, BytesMut};
use lockkeeper_core::limits::MAX_MULTI_OPS;
use lockkeeper_core::{NodePath, NodeView, Permissions, SessionId, State};
use lockkeeper_zookeeper::{
    ErrorCode, MultiReadOp, MultiResult, Reply, ReplyHeader, Request, Wire as _, Writer, encode_reply_with,
};

use super::auth::{self, Known};
use super::values::{path_seen, stat, zxid};
use super::{java_order, special};

/// Who looks.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) session: SessionId,
    pub(super) known: &'a Known,
    /// What is below `/zookeeper`.
    pub(super) special: &'a special::Special,
    /// Most data in one answer of many parts.
    pub(super) most_bytes: usize,
}

/// A node that is looked at: one of the tree, or one that only this protocol shows.
enum Seen<'a> {
    Node(NodeView<'a>),
    /// It has a child that only this protocol shows.
    Root(NodeView<'a>),
    Special(special::Node<'a>),
}

impl Reader<'_> {
    /// Appends the answer to a read; false if the request is none.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) fn answer(
        self,
        state: &State,
        request: &Request,
        xid: i32,
        out: &mut BytesMut,
    ) -> Option<Result<(), ErrorCode>> {
        let at = zxid(state.zxid());
        let say = |reply: Reply, out: &mut BytesMut| reply.encode(xid, at, out);
        Some(match request {
            Request::Exists(ask) if ask.path.contains('\0') => Err(ErrorCode::BadArguments),
            Request::Exists(ask) => self.look(state, &ask.path).map(|seen| say(Reply::Stat(seen.stat()), out)),
            Request::GetData(ask) => self.readable(state, &ask.path).map(|seen| {
                say(Reply::Data { data: seen.data(), stat: seen.stat() }, out);
            }),
            Request::GetAcl(at) => self.acl(state, at).map(|reply| say(reply, out)),
            Request::GetChildren(ask) => self.readable(state, &ask.path).map(|_| {
                encode_reply_with(xid, at, out, |writer| self.write_names(state, &ask.path, writer));
            }),
            Request::GetChildren2(ask) => self.readable(state, &ask.path).map(|seen| {
                encode_reply_with(xid, at, out, |writer| {
                    self.write_names(state, &ask.path, writer);
                    seen.stat().write(writer);
                });
            }),
            Request::MultiRead(parts) => self.parts(state, parts).map(|results| say(Reply::Multi(results), out)),
            Request::GetEphemerals(prefix) => {
                say(Reply::Ephemerals(self.ephemerals(state, prefix)), out);
                Ok(())
            }
            Request::WhoAmI => {
                say(Reply::Identities(self.known.shown()), out);
                Ok(())
            }
            _ => return None,
        })
    }

    /// The session's own below a prefix, in ZooKeeper's order, which depends on how many it has in all.
    fn ephemerals(self, state: &State, prefix: &str) -> Vec<String> {
        let session = state.session(self.session);
        let own: Vec<&NodePath> = session.into_iter().flat_map(|session| session.ephemerals()).collect();
        let made = |path: &NodePath| state.get(path).map(|node| node.stat.czxid);
        let mut own: Vec<(&str, _)> = own.into_iter().map(|path| (path.as_str(), made(path))).collect();
        java_order::sort_paths(&mut own);
        own.iter().map(|(path, _)| *path).filter(|path| path.starts_with(prefix)).map(ToOwned::to_owned).collect()
    }

    fn look<'s>(&'s self, state: &'s State, text: &str) -> Result<Seen<'s>, ErrorCode> {
        let path = path_seen(text)?;
        if let Some(special) = self.special.node(path.as_str()) {
            return Ok(Seen::Special(special));
        }
        let node = state.get(&path).ok_or(ErrorCode::NoNode)?;
        Ok(if path.is_root() { Seen::Root(node) } else { Seen::Node(node) })
    }

    fn readable<'s>(&'s self, state: &'s State, text: &str) -> Result<Seen<'s>, ErrorCode> {
        let seen = self.look(state, text)?;
        self.may(&seen, Permissions::READ).map(|()| seen)
    }

    fn may(&self, seen: &Seen<'_>, wanted: Permissions) -> Result<(), ErrorCode> {
        match seen {
            Seen::Node(node) | Seen::Root(node) if !self.known.principals().may(wanted, node.acl) => {
                Err(ErrorCode::NoAuth)
            }
            Seen::Node(_) | Seen::Root(_) | Seen::Special(_) => Ok(()),
        }
    }

    /// A list may be read by whoever may read the node, or administer it.
    fn acl(&self, state: &State, text: &str) -> Result<Reply, ErrorCode> {
        let seen = self.look(state, text)?;
        self.may(&seen, Permissions(Permissions::READ.0 | Permissions::ADMIN.0))?;
        let whole = self.may(&seen, Permissions::ADMIN).is_ok();
        Ok(Reply::Acl { acl: auth::shown(seen.acl(), whole), stat: seen.stat() })
    }

    fn names(&self, state: &State, text: &str) -> Vec<String> {
        let Ok(path) = path_seen(text) else { return Vec::new() };
        let special = self.special.children(path.as_str()).iter().map(|name| (*name).to_owned());
        let own = state.children(&path).into_iter().flatten().map(|name| name.to_string());
        own.chain(special).collect()
    }

    /// As [`names`](Self::names), straight from where they live: there may be 100,000.
    fn write_names(&self, state: &State, text: &str, writer: &mut Writer<'_>) {
        let Ok(path) = path_seen(text) else { return writer.length(0) };
        let own = state.children(&path);
        let special = self.special.children(path.as_str());
        writer.length(own.as_ref().map_or(0, ExactSizeIterator::len) + special.len());
        own.into_iter().flatten().for_each(|name| writer.string(name));
        special.iter().for_each(|name| writer.string(name));
    }

    /// How many nodes lie below, at any depth.
    ///
    /// # Errors
    /// The node is not there, or may not be read.
    pub(super) fn count_below(&self, state: &State, text: &str) -> Result<i32, ErrorCode> {
        self.readable(state, text)?;
        self.below(state, text)
    }

    fn below(&self, state: &State, text: &str) -> Result<i32, ErrorCode> {
        fn count(state: &State, path: &NodePath) -> usize {
            let names = state.children(path).into_iter().flatten();
            names.filter_map(|name| path.child(name).ok()).map(|child| 1 + count(state, &child)).sum()
        }
        let path = path_seen(text)?;
        let special = self.special.below(path.as_str());
        i32::try_from(count(state, &path) + special).map_err(|_| ErrorCode::MarshallingError)
    }

    /// So many, and so much in all: a short request can ask for the same data very often.
    fn parts(&self, state: &State, parts: &[MultiReadOp]) -> Result<Vec<MultiResult>, ErrorCode> {
        if parts.len() > MAX_MULTI_OPS {
            return Err(ErrorCode::BadArguments);
        }
        let mut bytes = 0_usize;
        let mut results = Vec::with_capacity(parts.len());
        for part in parts {
            let result = self.part(state, part);
            bytes = bytes.saturating_add(match &result {
                MultiResult::GetData { data, .. } => data.as_ref().map_or(0, Bytes::len),
                MultiResult::GetChildren(names) => names.iter().map(String::len).sum(),
                _ => 0,
            });
            if bytes > self.most_bytes {
                return Err(ErrorCode::BadArguments);
            }
            results.push(result);
        }
        Ok(results)
    }

    fn part(&self, state: &State, part: &MultiReadOp) -> MultiResult {
        let read = || match part {
            MultiReadOp::GetData(ask) => {
                let seen = self.readable(state, &ask.path)?;
                Ok(MultiResult::GetData { data: seen.data(), stat: seen.stat() })
            }
            MultiReadOp::GetChildren(ask) => {
                self.readable(state, &ask.path)?;
                Ok(MultiResult::GetChildren(self.names(state, &ask.path)))
            }
        };
        read().unwrap_or_else(MultiResult::error)
    }
}

impl Seen<'_> {
    fn stat(&self) -> lockkeeper_zookeeper::Stat {
        match self {
            Self::Node(node) => stat(&node.stat),
            Self::Root(node) => special::stat_of_root(stat(&node.stat)),
            Self::Special(special) => special.stat(),
        }
    }

    fn data(&self) -> Option<Bytes> {
        match self {
            Self::Node(node) | Self::Root(node) => node.data.bytes().map(Bytes::copy_from_slice),
            Self::Special(special) => Some(special.data()),
        }
    }

    fn acl(&self) -> &[lockkeeper_core::AclEntry] {
        match self {
            Self::Node(node) | Self::Root(node) => node.acl,
            Self::Special(special) => special.acl(),
        }
    }
}

/// Appends a refusal.
pub(super) fn refuse(state: &State, xid: i32, code: ErrorCode, out: &mut BytesMut) {
    ReplyHeader::failed(xid, zxid(state.zxid()), code).encode(out);
}
