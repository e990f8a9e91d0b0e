//! The parts of etcd's API that the lock recipe uses: messages of `etcdserverpb` and `mvccpb` by the numbers of their
//! fields. Fields that are not read or set are left out.

use prost::{Message, Oneof};

pub(crate) const RANGE: &str = "/etcdserverpb.KV/Range";
pub(crate) const DELETE_RANGE: &str = "/etcdserverpb.KV/DeleteRange";
pub(crate) const TXN: &str = "/etcdserverpb.KV/Txn";
pub(crate) const WATCH: &str = "/etcdserverpb.Watch/Watch";
pub(crate) const LEASE_GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
pub(crate) const LEASE_REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
pub(crate) const LEASE_KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

/// `SortOrder`.
pub(crate) const ASCEND: i32 = 1;
pub(crate) const DESCEND: i32 = 2;
/// `SortTarget`.
pub(crate) const BY_CREATE_REVISION: i32 = 2;
/// `CompareTarget`. The result to compare with is `EQUAL`, 0.
pub(crate) const CREATE_REVISION: i32 = 1;
/// `EventType`.
pub(crate) const DELETED: i32 = 1;

/// Messages: each field after how it is encoded, and its number.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($(#[$note:meta])* ($($how:tt)*) $field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Message)]
        pub(crate) struct $name {
            $($(#[$note])* #[prost($($how)*)] pub(crate) $field: $kind,)*
        }
    )*};
}

messages! {
    Header {
        (int64, tag = "3") revision: i64,
    }
    KeyValue {
        (bytes = "vec", tag = "1") key: Vec<u8>,
        (int64, tag = "2") create_revision: i64,
    }
    RangeRequest {
        (bytes = "vec", tag = "1") key: Vec<u8>,
        (bytes = "vec", tag = "2") range_end: Vec<u8>,
        (int64, tag = "3") limit: i64,
        (int32, tag = "5") sort_order: i32,
        (int32, tag = "6") sort_target: i32,
        (int64, tag = "13") max_create_revision: i64,
    }
    RangeResponse {
        (message, optional, tag = "1") header: Option<Header>,
        (message, repeated, tag = "2") kvs: Vec<KeyValue>,
    }
    PutRequest {
        (bytes = "vec", tag = "1") key: Vec<u8>,
        (bytes = "vec", tag = "2") value: Vec<u8>,
        (int64, tag = "3") lease: i64,
    }
    DeleteRangeRequest {
        (bytes = "vec", tag = "1") key: Vec<u8>,
    }
    DeleteRangeResponse {
        (int64, tag = "2") deleted: i64,
    }
    Compare {
        (int32, tag = "2") target: i32,
        (bytes = "vec", tag = "3") key: Vec<u8>,
        /// Of a `oneof`, so that 0 is sent as well.
        (int64, optional, tag = "5") create_revision: Option<i64>,
    }
    RequestOp {
        (oneof = "Operation", tags = "1, 2") operation: Option<Operation>,
    }
    ResponseOp {
        /// Of a `oneof`.
        (message, optional, tag = "1") range: Option<RangeResponse>,
    }
    TxnRequest {
        (message, repeated, tag = "1") compare: Vec<Compare>,
        (message, repeated, tag = "2") success: Vec<RequestOp>,
        (message, repeated, tag = "3") failure: Vec<RequestOp>,
    }
    TxnResponse {
        (message, optional, tag = "1") header: Option<Header>,
        (bool, tag = "2") succeeded: bool,
        (message, repeated, tag = "3") responses: Vec<ResponseOp>,
    }
    WatchCreate {
        (bytes = "vec", tag = "1") key: Vec<u8>,
        (int64, tag = "3") start_revision: i64,
    }
    WatchCancel {
        (int64, tag = "1") watch_id: i64,
    }
    WatchRequest {
        (oneof = "WatchAction", tags = "1, 2") action: Option<WatchAction>,
    }
    WatchResponse {
        (int64, tag = "2") watch_id: i64,
        (bool, tag = "3") created: bool,
        (bool, tag = "4") canceled: bool,
        (string, tag = "6") cancel_reason: String,
        (message, repeated, tag = "11") events: Vec<Event>,
    }
    Event {
        (int32, tag = "1") kind: i32,
    }
    LeaseGrantRequest {
        (int64, tag = "1") ttl: i64,
    }
    LeaseGrantResponse {
        (int64, tag = "2") id: i64,
        (string, tag = "4") error: String,
    }
    /// `LeaseKeepAliveRequest` and `LeaseRevokeRequest`.
    LeaseId {
        (int64, tag = "1") id: i64,
    }
    /// An answer whose fields are not read.
    Empty {}
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Operation {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum WatchAction {
    #[prost(message, tag = "1")]
    Create(WatchCreate),
    #[prost(message, tag = "2")]
    Cancel(WatchCancel),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes as `protoc` encodes them: a field of a `oneof` is sent with its default value as well.
    #[test]
    fn a_comparison_with_revision_zero_is_sent() {
        let compare = Compare { target: CREATE_REVISION, key: b"k".to_vec(), create_revision: Some(0) };
        assert_eq!(compare.encode_to_vec(), [0x10, 1, 0x1a, 1, b'k', 0x28, 0]);
        let put = Operation::Put(PutRequest { key: b"k".to_vec(), value: Vec::new(), lease: 7 });
        let request = TxnRequest { success: vec![RequestOp { operation: Some(put) }], ..TxnRequest::default() };
        assert_eq!(request.encode_to_vec(), [0x12, 7, 0x12, 5, 0x0a, 1, b'k', 0x18, 7]);
    }
}
