//! The operations that clients ask for, each said once.
//!
//! A row has, from top to bottom:
//!
//! - what the operation does;
//! - its name, its number, ZooKeeper's name for it, and the abbreviation of it that ZooKeeper's monitoring shows
//!   (reference: `FinalRequestProcessor.processRequest`);
//! - the body of its request, if it has one, and its type;
//! - the [`Reply`](crate::Reply) to it;
//! - the rules that differ from those of its base: [`Rules`](crate::row::Rules) explains them, and has the bases.
//!
//! Each group is an enumeration, whose variants a server matches one by one:
//! [`Request::group`](crate::Request::group).
//!
//! From the rows come: [`OpCode`](crate::OpCode); [`Request`](crate::Request), both directions of its encoding, and its
//! groups; how a [`Reply`](crate::Reply) is read; the requests and replies of the round trip (`tests/it`), and which
//! golden bytes there must be; the labels of the metrics and the charge of the throttle (`zookeeper-frontend`); and how
//! the words of a step are read in the script that is compared with ZooKeeper (`interop`). Its steps are written by
//! hand.

/// Hands the rows to a macro: `each_operation!(make)` is `make! { the rows }`.
#[macro_export]
#[rustfmt::skip]
macro_rules! each_operation {
    ($make:ident) => { $make! {
ChangeRequest {

/// Creates a node and returns its path.
Create = 1 "create" "CREA"
    body: CreateRequest, -> Path { ..CHANGES }

/// Creates a node and returns its path and stat.
Create2 = 15 "create2" "CREA"
    body: CreateRequest, -> Created { ..CHANGES }

/// Creates a container node.
CreateContainer = 19 "createContainer" "CREA"
    body: CreateRequest, -> Created { ..CHANGES }

/// Creates a TTL node.
CreateTtl = 21 "createTTL" "CREA"
    body: CreateTtlRequest, -> Created { ..CHANGES }

/// Deletes a node.
Delete = 2 "delete" "DELE"
    body: PathVersion, -> Empty { ..GIVES_BACK }

/// Replaces a node's data.
SetData = 5 "setData" "SETD"
    body: SetDataRequest, -> Stat { ..CHANGES }

/// Replaces a node's access control list.
SetAcl = 7 "setACL" "SETA"
    body: SetAclRequest, -> Stat { ..CHANGES }

/// Checks a node's version; useful in a multi.
Check = 13 "check" "CHEC"
    body: PathVersion, -> Empty { ..READS }

/// Several writes, all or none.
Multi = 14 "multi" "MULT"
    parts: Vec<MultiOp>, -> Multi { ..CHANGES }
}

ReadRequest {

/// Checks whether a node exists; its watch also fires when the node is created.
Exists = 3 "exists" "EXIS"
    body: PathWatch, -> Stat { ..READS }

/// Reads a node's data.
GetData = 4 "getData" "GETD"
    body: PathWatch, -> Data { ..READS }

/// Reads a node's access control list.
GetAcl = 6 "getACL" "GETA"
    path: String, -> Acl { ..READS }

/// Lists a node's children.
GetChildren = 8 "getChildren" "GETC"
    body: PathWatch, -> Children { ..READS }

/// Lists a node's children and returns its stat.
GetChildren2 = 12 "getChildren2" "GETC"
    body: PathWatch, -> ChildrenAndStat { ..READS }

/// Several reads.
MultiRead = 22 "multiRead" "MLTR"
    parts: Vec<MultiReadOp>, -> Multi { ..READS }

/// Lists the session's ephemeral nodes with a prefix; an empty one for all.
GetEphemerals = 103 "getEphemerals" "GETE"
    prefix: String, -> Ephemerals { ..OF_SESSION }

/// Lists the connection's identities.
WhoAmI = 107 "whoAmI" "HOMI"
    -> Identities { ..OF_SESSION }
}

WatchRequest {

/// Sets a persistent watch.
AddWatch = 106 "addWatch" "ADDW"
    body: AddWatchRequest, -> Error { ..READS }

/// Checks whether a watch is set.
CheckWatches = 17 "checkWatches" "CHKW"
    body: WatchesRequest, -> Empty { ..OF_SESSION }

/// Removes watches.
RemoveWatches = 18 "removeWatches" "REMW"
    body: WatchesRequest, -> Empty { ..OF_SESSION }
}

OtherRequest {

/// Keeps the session alive.
Ping = 11 "ping" "PING"
    -> Empty { xid: Some(xid::PING), ..OF_SESSION }

/// Ends the session.
CloseSession = -11 "closeSession" "CLOS"
    -> Empty { ..GIVES_BACK }

/// Adds an identity to the connection.
Auth = 100 "auth" "NA"
    body: AuthRequest, -> Empty { xid: Some(xid::AUTH), ..OF_SESSION }

/// A step of a SASL exchange.
Sasl = 102 "sasl" "NA"
    token: Bytes, -> Token { ..OF_SESSION }

/// Sets a session's watches again after it moved.
SetWatches = 101 "setWatches" "SETW"
    body: SetWatchesRequest, -> Empty { xid: Some(xid::SET_WATCHES), ..OF_SESSION }

/// As [`Self::SetWatches`], with persistent watches.
SetWatches2 = 105 "setWatches2" "STW2"
    body: SetWatches2Request, -> Empty { xid: Some(xid::SET_WATCHES), ..OF_SESSION }

/// Waits until this server has applied what the leader had. The reply repeats the path, which means nothing else.
Sync = 9 "sync" "SYNC"
    path: String, -> Path { ..OF_SESSION }

/// Counts the nodes below a node.
GetAllChildrenNumber = 104 "getAllChildrenNumber" "GETACN"
    path: String, -> ChildrenNumber { ..READS }

/// Changes the ensemble's members.
Reconfig = 16 "reconfig" "RECO"
    body: ReconfigRequest, -> Data { ..OF_SESSION }
}
} };
}
