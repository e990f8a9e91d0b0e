//! The parts of etcd's API that the lock recipe uses: messages of `etcdserverpb` and `mvccpb` by the numbers of their
//! fields. Fields that are not read or set are left out.

use prost::{Message, Oneof};

pub(super) const RANGE: &str = "/etcdserverpb.KV/Range";
pub(super) const DELETE_RANGE: &str = "/etcdserverpb.KV/DeleteRange";
pub(super) const TXN: &str = "/etcdserverpb.KV/Txn";
pub(super) const WATCH: &str = "/etcdserverpb.Watch/Watch";
pub(super) const LEASE_GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
pub(super) const LEASE_REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
pub(super) const LEASE_KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

/// `SortOrder`.
pub(super) const ASCEND: i32 = 1;
pub(super) const DESCEND: i32 = 2;
/// `SortTarget`.
pub(super) const BY_CREATE_REVISION: i32 = 2;
/// `CompareTarget`. The result to compare with is `EQUAL`, 0.
pub(super) const CREATE_REVISION: i32 = 1;
/// `EventType`.
pub(super) const DELETED: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(super) create_revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) limit: i64,
    #[prost(int32, tag = "5")]
    pub(super) sort_order: i32,
    #[prost(int32, tag = "6")]
    pub(super) sort_target: i32,
    #[prost(int64, tag = "13")]
    pub(super) max_create_revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub(super) kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeleteRangeResponse {
    #[prost(int64, tag = "2")]
    pub(super) deleted: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Compare {
    #[prost(int32, tag = "2")]
    pub(super) target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) key: Vec<u8>,
    /// Of a `oneof`, so that 0 is sent as well.
    #[prost(int64, optional, tag = "5")]
    pub(super) create_revision: Option<i64>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Operation {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RequestOp {
    #[prost(oneof = "Operation", tags = "1, 2")]
    pub(super) operation: Option<Operation>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResponseOp {
    /// Of a `oneof`.
    #[prost(message, optional, tag = "1")]
    pub(super) range: Option<RangeResponse>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(super) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(super) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub(super) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(super) responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchCreate {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) start_revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchCancel {
    #[prost(int64, tag = "1")]
    pub(super) watch_id: i64,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum WatchAction {
    #[prost(message, tag = "1")]
    Create(WatchCreate),
    #[prost(message, tag = "2")]
    Cancel(WatchCancel),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchRequest {
    #[prost(oneof = "WatchAction", tags = "1, 2")]
    pub(super) action: Option<WatchAction>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchResponse {
    #[prost(int64, tag = "2")]
    pub(super) watch_id: i64,
    #[prost(bool, tag = "3")]
    pub(super) created: bool,
    #[prost(bool, tag = "4")]
    pub(super) canceled: bool,
    #[prost(string, tag = "6")]
    pub(super) cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub(super) events: Vec<Event>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    pub(super) ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
    #[prost(string, tag = "4")]
    pub(super) error: String,
}

/// `LeaseKeepAliveRequest` and `LeaseRevokeRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseId {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

/// An answer whose fields are not read.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Empty {}

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
