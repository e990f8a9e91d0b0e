//! Watch events: what a server tells without being asked.

use crate::ReplyHeader;
use crate::frame::write_frame;
use crate::header::xid;
use crate::jute::{DecodeError, Reader, Wire};
use bytes::{Bytes, BytesMut};

numbered! {
    /// What happened.
    EventType("event type") {
        /// Nothing to a node: the connection or session changed its state.
        None = -1,
        /// The node was created.
        NodeCreated = 1,
        /// The node was deleted.
        NodeDeleted = 2,
        /// The node's data changed.
        NodeDataChanged = 3,
        /// A child came or went.
        NodeChildrenChanged = 4,
        /// A data watch was removed; on the client's side only.
        DataWatchRemoved = 5,
        /// A child watch was removed; on the client's side only.
        ChildWatchRemoved = 6,
        /// A persistent watch was removed; on the client's side only.
        PersistentWatchRemoved = 7,
    }
}

numbered! {
    /// What the session is like. Servers send [`Self::SyncConnected`] with the events of nodes.
    KeeperState("session state") {
        /// Not used any more.
        Unknown = -1,
        /// Without a connection.
        Disconnected = 0,
        /// Not used any more.
        NoSyncConnected = 1,
        /// Connected to a server of the ensemble.
        SyncConnected = 3,
        /// Refused for its credentials.
        AuthFailed = 4,
        /// Connected to a server without a quorum.
        ConnectedReadOnly = 5,
        /// Authenticated by SASL.
        SaslAuthenticated = 6,
        /// Closed by its client.
        Closed = 7,
        /// Expired.
        Expired = -112,
    }
}

record! {
    /// One event.
    #[derive(Hash)]
    WatcherEvent {
        /// What happened.
        event_type: EventType,
        /// What the session is like.
        state: KeeperState,
        /// To which node. For a recursive watch, the node itself and not the one that is watched.
        path: String,
    }
}

impl WatcherEvent {
    /// The zxid in an event's header where none is told: that of ZooKeeper before 3.9.
    pub const NO_ZXID: i64 = -1;

    /// An event of a node, as a server sends it.
    #[must_use]
    pub fn of_node(event_type: EventType, path: String) -> Self {
        Self { event_type, state: KeeperState::SyncConnected, path }
    }

    /// Reads an event from the body behind a header with [`xid::NOTIFICATION`].
    pub fn decode(body: Bytes) -> Result<Self, DecodeError> {
        Self::read(&mut Reader::new(body), "WatcherEvent")
    }

    /// Appends it as a frame. Since 3.9 `zxid` may be that of the change; [`Self::NO_ZXID`] is always right.
    pub fn encode(&self, zxid: i64, out: &mut BytesMut) {
        write_frame(out, |writer| {
            ReplyHeader::ok(xid::NOTIFICATION, zxid).write(writer);
            self.write(writer);
        });
    }
}
