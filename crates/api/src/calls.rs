//! The calls of the API, each said once. A call is what a client asks for and has one answer to.
//!
//! A row has, from top to bottom:
//!
//! - the sentences of `/openapi.json`: the first paragraph is the summary;
//! - the name of the call, the name of its function in `service/src/calls`, in the module that the group is named
//!   after, and over HTTP its method and its route;
//! - a line for each part of the path;
//! - the types of its query and its body, in that order; with `= default` where it may be left out;
//! - the status and the type of the answer;
//! - the rules that differ from those of its base: [`Rules`](crate::row::Rules) explains them, and has the bases.
//!
//! From the rows come: [`Call`](crate::Call), [`Answer`](crate::Answer), their JSON, the URL that a client asks and the
//! call that a server reads from one (`call.rs`); the routes, their description and their lanes (`http`); what carries
//! a call out, its charge and its span (`service`); whether a client may repeat it (`client`); and who must be refused
//! (`server/tests/it/rights.rs`, `prove intruder`).

/// Hands the rows to a macro: `each_call!(make)` is `make! { the rows }`.
#[macro_export]
macro_rules! each_call {
    ($make:ident) => { $make! {
sessions {

/// Opens a session.
OpenSession open_session = POST "/v1/sessions"
    body: OpenSession = default,
    -> 201 SessionOpened "The session is open"
    { needs: AnyRole, headers: Headers::None, as_session: false, retry: Always, charged: Charged::Caller, ..CHANGES }

/// Lists sessions in the order in which they were opened.
ListSessions list_sessions = GET "/v1/sessions"
    query: SessionsQuery = default,
    -> 200 Sessions "A page of sessions"
    { needs: OneOf(READ), ..LISTS }

/// Shows a session. Needs no secret and shows none.
GetSession get_session = GET "/v1/sessions/{id}"
    {id} u64 "The session"
    query: ReadQuery = default,
    -> 200 Session "The session"
    { needs: OneOf(READ), as_session: false, charged: Charged::Caller,
      refused: "404 `not_found`: never was, closed or expired", ..READS }

/// Closes the session and removes everything it owned, in one transaction.
CloseSession close_session = DELETE "/v1/sessions/{id}"
    {id} u64 "The session"
    -> 200 Closed "It is closed"
    { headers: Headers::Session, retry: Idempotent, ..GIVES_BACK }

/// Keeps the session alive for another timeout, counted from when this request was sent.
KeepSessionAlive keep_session_alive = POST "/v1/sessions/{id}/keepalive"
    {id} u64 "The session"
    -> 200 KeptAlive "It is kept alive"
    { headers: Headers::Session, retry: Always, refused: "Refused; 410 `session_expired`: all it owned is gone",
      failed: "Not confirmed; try again", ..GIVES_BACK }
}

locks {

/// Lists the locks in whose queue somebody stands, in the order of their names.
ListLocks list_locks = GET "/v1/locks"
    query: LocksQuery = default,
    -> 200 Locks "A page of locks"
    { ..LISTS }

/// Shows who holds the lock and who waits for it. A lock that nobody uses has neither.
GetLock get_lock = GET "/v1/locks/{name}"
    {name} String "The lock"
    query: ReadQuery = default,
    -> 200 Lock "The lock"
    { ..READS }

/// Asks for the lock, waits in its queue, and gives the fencing token once it is held.
///
/// If the client goes away while it waits, its request leaves the queue; a grant that comes at that very moment is
/// released.
AcquireLock acquire_lock = POST "/v1/locks/{name}/acquire"
    {name} String "The lock; slashes may stand in it"
    body: Acquire = default,
    -> 200 Acquired "The lock is held"
    { needs: OneOf(ACQUIRE), retry: Never, example: r#"{"ttl_ms":5000}"#,
      otherwise: Some((423, "`lock_busy`: the wait is over and another holds it")), ..CHANGES }

/// Gives the lock back. Needs the holder's session and its token.
ReleaseLock release_lock = POST "/v1/locks/{name}/release"
    {name} String "The lock"
    body: Release,
    -> 200 Released "It was given back"
    { example: r#"{"token":1}"#,
      refused: "Refused; 409 `not_held`: not held with this token by this session; `not_queued`: nothing was left \
         (`even_in_part`)", ..GIVES_BACK }

/// Makes the holder of a `write` a reader, without letting go: readers that wait behind it join it. The token stays.
DowngradeLock downgrade_lock = POST "/v1/locks/{name}/downgrade"
    {name} String "The lock"
    body: Token,
    -> 200 Downgraded "It is held as a reader now"
    { needs: OneOf(ACQUIRE), example: r#"{"token":1}"#,
      refused: "Refused; 409 `not_held`: not held as a writer with this token by this session", ..GIVES_BACK }

/// Says whether the lock is held with this token now: what a resource asks before it lets a holder act.
VerifyLock verify_lock = POST "/v1/locks/{name}/verify"
    {name} String "The lock"
    body: Token,
    -> 200 Verified "Whether it is held"
    { as_session: false, own_lane: true, charged: Charged::Nothing, example: r#"{"token":1}"#,
      failed: "Not confirmed: treat the token as not held, and try again", ..READS }

/// Takes the lock from its holder, whoever asks: for people who know that the holder is gone. Each use is in the audit
/// log.
BreakLock break_lock = DELETE "/v1/locks/{name}/holders/{token}"
    {name} String "The lock"
    {token} u64 "The token of the grant to break"
    -> 200 Released "It was taken from its holder"
    { refused: "Refused; 403 `forbidden`: switched off in this node's configuration", ..BY_FORCE }
}

gates {

/// Lists the gates whose operation is under way or done, in the order of their keys.
ListGates list_gates = GET "/v1/gates"
    query: GatesQuery = default,
    -> 200 Gates "A page of them"
    { ..LISTS }

/// Shows how a gate stands.
GetGate get_gate = GET "/v1/gates/{key}"
    {key} String "The gate"
    query: ReadQuery = default,
    -> 200 GateView "How it stands"
    { refused: "404 `not_found`: it is open", ..READS }

/// Asks to do an operation that is to be done once: the answer says to proceed, who does it, or what came of it.
///
/// With a session the gate opens again when that session ends; in any case once its pending time is over.
BeginGate begin_gate = POST "/v1/gates/{key}/begin"
    {key} String "The gate; slashes may stand in it"
    body: Begin,
    -> 200 GateView "How it stands"
    { needs: OneOf(ACQUIRE), example: r#"{"fingerprint":"f"}"#,
      refused: "Refused; 409 `gate_mismatch`: another fingerprint uses the key", ..CHANGES }

/// Stores what came of the operation, for those who ask for it later.
FinishGate finish_gate = POST "/v1/gates/{key}/finish"
    {key} String "The gate"
    body: Finish,
    -> 200 Settled "It is done"
    { needs: OneOf(ACQUIRE), charged: Charged::Nothing, example: r#"{"token":1}"#,
      refused: "Refused; 409 `gate_not_pending`: not pending under this token (any more)", ..CHANGES }

/// Opens the gate again: the operation did not take place.
FailGate fail_gate = POST "/v1/gates/{key}/fail"
    {key} String "The gate"
    body: Fail,
    -> 200 Settled "It is open"
    { needs: OneOf(ACQUIRE), charged: Charged::Nothing, example: r#"{"token":1}"#,
      refused: "Refused; 409 `gate_not_pending`: not pending under this token (any more)", ..CHANGES }

/// Opens the gate by force: ends the operation that is under way, or forgets its result. A worker that is under way is
/// not stopped, and its token counts no more. Each use is in the audit log.
ResetGate reset_gate = DELETE "/v1/gates/{key}"
    {key} String "The gate"
    query: ResetQuery = default,
    -> 200 GateReset "It is open"
    { refused: "404 `not_found`: it was open; 409 `bad_version`: it has another token; 403 `forbidden`: no right to \
         force, or admin.allow_force_release is off", ..BY_FORCE }
}

nodes {

/// Reads a node: its data, bookkeeping and ACL, and its children if asked for. The root is `/v1/nodes/`.
GetNode get_node = GET "/v1/nodes/{path}"
    {path} String "The path without its first slash"
    query: NodeQuery = default,
    -> 200 Node "The node"
    { needs: OneOf(READ), refused: "404 `no_node`", ..READS }

/// Creates a node. Its parent must exist.
CreateNode create_node = POST "/v1/nodes/{path}"
    {path} String "The path without its first slash"
    body: Create = default,
    -> 201 Changed "It was created"
    { ..CHANGES }

/// Replaces a node's data.
SetNode set_node = PUT "/v1/nodes/{path}"
    {path} String "The path without its first slash"
    query: VersionQuery = default,
    body: SetData,
    -> 200 Changed "It was set"
    { example: r#"{"data":{"text":"x"}}"#, ..CHANGES }

/// Deletes a node without children.
DeleteNode delete_node = DELETE "/v1/nodes/{path}"
    {path} String "The path without its first slash"
    query: VersionQuery = default,
    -> 200 Deleted "It is gone"
    { ..CHANGES }

/// Adds to the decimal number in a node, within bounds that are checked where the addition takes place.
AddToCounter add_to_counter = POST "/v1/counters/{path}"
    {path} String "The path of the node without its first slash"
    body: Add,
    -> 200 Added "It was added"
    { example: r#"{"delta":1}"#, refused: "Refused; nothing was added; 409 `out_of_bounds`, `not_a_number`",
      ..CHANGES }

/// Carries out a transaction: all of it or nothing.
RunTransaction run_transaction = POST "/v1/txn"
    body: Txn,
    -> 200 TxnDone "It took place"
    { example: r#"{"operations":[{"op":"create","path":"/a"}]}"#,
      refused: "Refused; 409 `transaction_failed` says which operation and why; nothing changed", ..CHANGES }
}

rates {

/// Takes permits of a rate limit, or says in how long they will be there.
///
/// Both are answered with 200: a program whose limit is used up has been served well, and 429 means that the service
/// itself has too much to do. Needs no session. A request that is repeated takes permits again.
TakePermits take_permits = POST "/v1/rates/{name}/take"
    {name} String "The rate limit; slashes may stand in it"
    body: TakePermits,
    -> 200 PermitsTaken "`granted` says whether they were taken"
    { needs: OneOf(ACQUIRE), headers: Headers::Undocumented, retry: Idempotent,
      example: r#"{"limit":5,"per_ms":1000}"#,
      refused: "Refused; 409 `rate_mismatch`: it is in use with another rate", ..CHANGES }

/// Shows a rate limit.
GetRate get_rate = GET "/v1/rates/{name}"
    {name} String "The rate limit; slashes may stand in it"
    query: ReadQuery = default,
    -> 200 RateView "Its rate and its bucket"
    { refused: "404 `not_found`: its bucket is full, and nothing is kept of a full one", ..READS }

/// Lists the rate limits whose buckets are not full.
ListRates list_rates = GET "/v1/rates"
    query: RatesQuery = default,
    -> 200 Rates "A page of them"
    { ..LISTS }
}

cluster {

/// Shows the cluster as this node sees it; answered by every node, with or without a leader.
GetCluster get_cluster = GET "/v1/cluster"
    query: ClusterQuery = default,
    -> 200 Status "The cluster"
    { as_session: true, failed: "Try again, or unknown (504)", ..READS_CLUSTER }

/// Reads the replicated clock, by which gates, times to live and schedules are decided. A client that knows when it
/// asked and when the answer came knows the cluster's time to within that round trip, whatever its own clock shows.
GetClock get_clock = GET "/v1/clock"
    query: ReadQuery = default,
    -> 200 ClusterClock "The time"
    { ..READS_OPENLY }

/// Adds a learner, which receives the log and does not vote yet, or a front node, which never votes. Its id must never
/// have been a member's before. Of a member that is there already with this `peer_address`, sets the other addresses.
AddMember add_member = POST "/v1/cluster/members"
    body: AddMember,
    -> 200 Membership "It was added"
    { example: r#"{"node_id":0,"peer_address":"127.0.0.1:9"}"#, ..ADMINISTERS }

/// Makes a learner a voter, once it has caught up. A front node never becomes one.
PromoteMember promote_member = POST "/v1/cluster/members/{id}/promote"
    {id} u64 "The member"
    query: MemberQuery = default,
    -> 200 Membership "It votes"
    { ..ADMINISTERS }

/// Removes a member. Its id is spent.
RemoveMember remove_member = DELETE "/v1/cluster/members/{id}"
    {id} u64 "The member"
    query: MemberQuery = default,
    -> 200 Membership "It is removed"
    { ..ADMINISTERS }

/// Hands leadership over.
TransferLeadership transfer_leadership = POST "/v1/cluster/transfer"
    body: Transfer = default,
    -> 200 Transferred "Who leads now"
    { example: r#"{"to":9}"#, ..ADMINISTERS }
}

access {

/// Shows access control: roles, grants, and tokens without their secrets. Needs the right to read the cluster.
GetAccess get_access = GET "/v1/access"
    query: ReadQuery = default,
    -> 200 Access "Access control"
    { ..READS_CLUSTER }

/// Changes access control. Needs the right to admin the cluster where it is enforced. A change after which nobody could
/// make another is refused.
ChangeAccess change_access = POST "/v1/access"
    body: AccessChange,
    -> 200 AccessChanged "It is changed; a new token is shown this once"
    { headers: Headers::SessionAndRequestId, as_session: false, example: r#"{"delete_role":{"name":"none"}}"#,
      refused: "Refused; 409 `bad_version`: the role has been changed meanwhile", ..ADMINISTERS }

/// Lists the namespaces that have limits, with what they use: all for callers with the right to read the cluster, and
/// for others those that they own.
ListNamespaces list_namespaces = GET "/v1/namespaces"
    query: ReadQuery = default,
    -> 200 Namespaces "The namespaces"
    { ..READS_CLUSTER }

/// Tells the caller which principals it has proved to be, and their roles.
WhoAmI who_am_i = GET "/v1/access/me"
    query: ReadQuery = default,
    -> 200 WhoAmI "The caller"
    { ..READS_OPENLY }

/// Says whether the caller, or another principal, may do something, and by which rule.
CheckAccess check_access = GET "/v1/access/check"
    query: AccessQuestion,
    -> 200 AccessAnswer "The answer"
    { example: "resource=locks&right=read", ..READS_OPENLY }
}
} };
}
