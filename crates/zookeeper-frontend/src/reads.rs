//! Read requests. They are answered from this replica under the state's lock, so that a read's reply and its watch
//! agree.

use bytes::{Bytes, BytesMut};
use lockkeeper_core::access::Need;
use lockkeeper_core::limits::MAX_MULTI_OPS;
use lockkeeper_core::{NodePath, NodeView, Permissions, SessionId, State};
use lockkeeper_service::system_nodes::is_reserved;
use lockkeeper_zookeeper::request::{PathWatch, ReadRequest};
use lockkeeper_zookeeper::{
    ErrorCode, MultiReadOp, MultiResult, Reply, ReplyHeader, Wire as _, Writer, encode_reply_with,
};

use super::auth::{self, Identity};
use super::java_order;
use super::system_nodes::{SystemNode, SystemNodes, stat_of_root};
use super::values::{code, path_to_read, stat, zxid};

/// Who reads, and with which limits.
#[derive(Clone, Copy)]
pub(super) struct ReadContext<'a> {
    pub(super) session: SessionId,
    pub(super) identity: &'a Identity,
    pub(super) system_nodes: &'a SystemNodes,
    /// Most data in one reply to a multiRead.
    pub(super) most_bytes: usize,
}

/// The watch that a read asks for, if its client wants one.
#[derive(Clone, Copy)]
pub(super) enum ReadWatch<'a> {
    /// On the data of a node.
    Data(&'a PathWatch),
    /// On the data of a node, or the creation of an absent one.
    DataOrCreation(&'a PathWatch),
    /// On the children of a node.
    Children(&'a PathWatch),
}

/// A node of the tree, or one that only this protocol shows.
enum FoundNode<'a> {
    Node(NodeView<'a>),
    /// It has the extra child `/zookeeper`.
    Root(NodeView<'a>),
    System(SystemNode<'a>),
}

impl ReadContext<'_> {
    /// Appends the reply to a read. Says whether it is refused, and which watch it asks for.
    pub(super) fn answer<'r>(
        self,
        state: &State,
        request: ReadRequest<'r>,
        xid: i32,
        out: &mut BytesMut,
    ) -> (Result<(), ErrorCode>, Option<ReadWatch<'r>>) {
        let at = zxid(state.zxid());
        let encode = |reply: Reply, out: &mut BytesMut| reply.encode(xid, at, out);
        match request {
            ReadRequest::Exists(ask) => {
                let found = match ask.path.contains('\0') {
                    true => Err(ErrorCode::BadArguments),
                    false => self.find_visible(state, &ask.path),
                };
                (found.map(|node| encode(Reply::Stat(node.stat()), out)), Some(ReadWatch::DataOrCreation(ask)))
            }
            ReadRequest::GetData(ask) => {
                let found = self.find_readable(state, &ask.path);
                let answered = found.map(|node| encode(Reply::Data { data: node.data(), stat: node.stat() }, out));
                (answered, Some(ReadWatch::Data(ask)))
            }
            ReadRequest::GetAcl(at) => (self.acl(state, at).map(|reply| encode(reply, out)), None),
            ReadRequest::GetChildren(ask) => {
                let answered = self.find_readable(state, &ask.path).map(|_| {
                    encode_reply_with(xid, at, out, |writer| self.write_names(state, &ask.path, writer));
                });
                (answered, Some(ReadWatch::Children(ask)))
            }
            ReadRequest::GetChildren2(ask) => {
                let answered = self.find_readable(state, &ask.path).map(|node| {
                    encode_reply_with(xid, at, out, |writer| {
                        self.write_names(state, &ask.path, writer);
                        node.stat().write(writer);
                    });
                });
                (answered, Some(ReadWatch::Children(ask)))
            }
            ReadRequest::MultiRead(parts) => {
                (self.parts(state, parts).map(|results| encode(Reply::Multi(results), out)), None)
            }
            ReadRequest::GetEphemerals(prefix) => {
                let owner = state.check_owner(self.identity.principals(), self.session).map_err(|why| code(&why));
                (owner.map(|()| encode(Reply::Ephemerals(self.ephemerals(state, prefix)), out)), None)
            }
            ReadRequest::WhoAmI => {
                encode(Reply::Identities(self.identity.shown()), out);
                (Ok(()), None)
            }
        }
    }

    /// The session's ephemerals with a prefix, in ZooKeeper's order, which depends on how many it has in all.
    fn ephemerals(self, state: &State, prefix: &str) -> Vec<String> {
        let session = state.session(self.session);
        let own: Vec<&NodePath> = session.into_iter().flat_map(|session| session.ephemerals()).collect();
        let made = |path: &NodePath| state.get(path).map(|node| node.stat.czxid);
        let mut own: Vec<(&str, _)> = own.into_iter().map(|path| (path.as_str(), made(path))).collect();
        java_order::sort_paths(&mut own);
        own.iter().map(|(path, _)| *path).filter(|path| path.starts_with(prefix)).map(ToOwned::to_owned).collect()
    }

    /// A node that the client may know of: clients look for the directories above those that are theirs.
    fn find_visible<'s>(&'s self, state: &'s State, text: &str) -> Result<FoundNode<'s>, ErrorCode> {
        self.find(state, text, |path| Need::to_read(path).or_below())
    }

    /// A node that the client has the right to read, whatever the node's own list says.
    fn find<'s>(
        &'s self,
        state: &'s State,
        text: &str,
        need: impl Fn(&NodePath) -> Need<'_>,
    ) -> Result<FoundNode<'s>, ErrorCode> {
        let path = path_to_read(text)?;
        let may_see = match is_reserved(path.as_str()) {
            true => state.check_role(self.identity.principals()),
            false => state.check_right(self.identity.principals(), &need(&path)),
        };
        may_see.map_err(|refusal| code(&refusal))?;
        if let Some(node) = self.system_nodes.node(path.as_str()) {
            return Ok(FoundNode::System(node));
        }
        let node = state.get(&path).ok_or(ErrorCode::NoNode)?;
        Ok(if path.is_root() { FoundNode::Root(node) } else { FoundNode::Node(node) })
    }

    fn find_readable<'s>(&'s self, state: &'s State, text: &str) -> Result<FoundNode<'s>, ErrorCode> {
        let node = self.find(state, text, |path| Need::to_read(path))?;
        self.check(&node, Permissions::READ).map(|()| node)
    }

    fn check(&self, node: &FoundNode<'_>, wanted: Permissions) -> Result<(), ErrorCode> {
        match node {
            FoundNode::Node(node) | FoundNode::Root(node) if !self.identity.principals().may(wanted, node.acl) => {
                Err(ErrorCode::NoAuth)
            }
            FoundNode::Node(_) | FoundNode::Root(_) | FoundNode::System(_) => Ok(()),
        }
    }

    /// An ACL may be read with the right to read the node or to administer it.
    fn acl(&self, state: &State, text: &str) -> Result<Reply, ErrorCode> {
        let node = self.find(state, text, |path| Need::to_read(path))?;
        self.check(&node, Permissions(Permissions::READ.0 | Permissions::ADMIN.0))?;
        let whole = self.check(&node, Permissions::ADMIN).is_ok();
        Ok(Reply::Acl { acl: auth::shown(node.acl(), whole), stat: node.stat() })
    }

    fn names(&self, state: &State, text: &str) -> Vec<String> {
        let Ok(path) = path_to_read(text) else { return Vec::new() };
        let system_nodes = self.system_nodes.children(path.as_str()).iter().map(|name| (*name).to_owned());
        let own = state.children(&path).into_iter().flatten().map(|name| name.to_string());
        own.chain(system_nodes).collect()
    }

    /// Writes [`names`](Self::names) without copying them: there may be 100,000.
    fn write_names(&self, state: &State, text: &str, writer: &mut Writer<'_>) {
        let Ok(path) = path_to_read(text) else { return writer.length(0) };
        let own = state.children(&path);
        let system_nodes = self.system_nodes.children(path.as_str());
        writer.length(own.as_ref().map_or(0, ExactSizeIterator::len) + system_nodes.len());
        own.into_iter().flatten().for_each(|name| writer.string(name));
        system_nodes.iter().for_each(|name| writer.string(name));
    }

    /// Number of nodes below, at any depth.
    ///
    /// # Errors
    /// The node does not exist or may not be read.
    pub(super) fn count_below(&self, state: &State, text: &str) -> Result<i32, ErrorCode> {
        self.find_readable(state, text)?;
        self.below(state, text)
    }

    fn below(&self, state: &State, text: &str) -> Result<i32, ErrorCode> {
        fn count(state: &State, path: &NodePath) -> usize {
            let names = state.children(path).into_iter().flatten();
            names.filter_map(|name| path.child(name).ok()).map(|child| 1 + count(state, &child)).sum()
        }
        let path = path_to_read(text)?;
        let system_nodes = self.system_nodes.below(path.as_str());
        i32::try_from(count(state, &path) + system_nodes).map_err(|_| ErrorCode::MarshallingError)
    }

    /// Answers a multiRead, within limits on parts and bytes: a short request can ask for the same data many times.
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
                let node = self.find_readable(state, &ask.path)?;
                Ok(MultiResult::GetData { data: node.data(), stat: node.stat() })
            }
            MultiReadOp::GetChildren(ask) => {
                self.find_readable(state, &ask.path)?;
                Ok(MultiResult::GetChildren(self.names(state, &ask.path)))
            }
        };
        read().unwrap_or_else(MultiResult::error)
    }
}

impl FoundNode<'_> {
    fn stat(&self) -> lockkeeper_zookeeper::Stat {
        match self {
            Self::Node(node) => stat(&node.stat),
            Self::Root(node) => stat_of_root(stat(&node.stat)),
            Self::System(node) => node.stat(),
        }
    }

    fn data(&self) -> Option<Bytes> {
        match self {
            Self::Node(node) | Self::Root(node) => node.data.bytes().map(Bytes::copy_from_slice),
            Self::System(node) => Some(node.data()),
        }
    }

    fn acl(&self) -> &[lockkeeper_core::AclEntry] {
        match self {
            Self::Node(node) | Self::Root(node) => node.acl,
            Self::System(node) => node.acl(),
        }
    }
}

/// Appends the reply to a refused request.
pub(super) fn refuse(state: &State, xid: i32, code: ErrorCode, out: &mut BytesMut) {
    ReplyHeader::failed(xid, zxid(state.zxid()), code).encode(out);
}
