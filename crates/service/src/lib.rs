//! The calls of the API, and what guards them on every way in: admission, budgets and shares, the throttle of
//! namespaces, principals, the audit log, failures. It knows no protocol and decides nothing about locks, sessions or
//! nodes of the tree. A frontend turns what its clients send into calls, and the answers into what its clients read.
//!
//! # How to add a frontend
//!
//! A frontend is a crate that depends on `config`, `service` and `node`, never on another frontend. `http` serves the
//! calls as they are, `zookeeper-frontend` operations of its own. Keep the codec pure, in a crate or a module.
//!
//! | step | where |
//! |---|---|
//! | address, limits, TLS | sections of [`Config`](lockkeeper_config::Config); rules in its `check.rs`; a [`ListenerName`](lockkeeper_config::ListenerName) and a field of [`tls::TlsListeners`]; the files below `cluster-config` |
//! | the port | `port::Bound::bind` in `Server::bind`, `listen` in `Server::run` (`server/src/server.rs`): a port is taken before the data directory is opened |
//! | the process | a function `serve(listeners, …, finish)` that accepts until the token `finish` is cancelled, and then returns the `JoinSet` of its open connections. `Server::run` spawns it, `leave` waits for the connections, `connections_wanted` counts them among open files |
//! | the crate | `Cargo.toml`, the tables of ARCHITECTURE.md |
//! | proofs | rights (P14), shares (P13), events before answers; a parser of bytes gets a target in `crates/fuzz` |
//!
//! For each connection:
//!
//! 1. Bound their number, in all and for each network (`lockkeeper_node::network_of`), and the time for the first
//!    message. A client that is silent must cost no more than its connection.
//! 2. [`socket::bound_unsent`]; then [`tls::TlsListener::accept`], if the listener has TLS, gives a
//!    [`socket::Socket`] and perhaps a [`socket::ClientCertificate`].
//! 3. Make a [`caller::ClientAddress`]; [`socket::is_local`] fills its `is_local`.
//! 4. Collect principals: [`principals::from_address`], then what the client proves ([`principals::prove`] or
//!    [`principals::prove_header`], with the super user of `is_local`; [`principals::prove_certificate`]). A session
//!    belongs to the first of them. The state decides what they may do.
//!
//! For each request:
//!
//! 1. Check each length before memory is allocated. A large body needs a [`bounds::Room`], a large reply a part of
//!    [`Admission::reply_bytes`](admission::Admission::reply_bytes) until the client has read it.
//! 2. [`Admission::enter`](admission::Admission::enter) gives a place, or the refusal. One that keeps or gives back
//!    something takes a [`admission::Lane`] of the connection, so that no other request can crowd it out.
//! 3. Refuse a session of another principal ([`State::check_owner`](lockkeeper_core::State::check_owner)) before the
//!    request counts as its sign of life.
//! 4. Either make a [`calls::CallScope`] and [`dispatch`](calls::CallScope::dispatch) a [`Call`](lockkeeper_api::Call).
//!    Throttle, span, audit and access come with it. Map the [`reply::Reply`] or the [`failure::Failure`], whose
//!    [`Code`](lockkeeper_api::Code) says whether nothing was done, to try again, or that the outcome is unknown.
//! 5. Or call the [`Node`](lockkeeper_node::Node). Then do yourself what `dispatch` does: [`throttle::charges`] and its
//!    turn, [`principals::may_read`] before a node is shown, [`system_nodes::is_reserved`] before one is changed, and
//!    an [`audit::AuditRecord`] for an act by force.
//! 6. Drop the future when the client is gone: that withdraws what waits.
//!
//! Watches and losses of sessions come from [`Node::observe`](lockkeeper_node::Node::observe): the observer is called
//! under the state's lock, so it only queues. Write queued events before any answer that could reveal their change.
//!
//! A frontend must never report an unknown outcome as a failure, nor wait while it holds a lock that an observer takes.

pub mod admission;
pub mod audit;
pub mod bounds;
pub mod budget;
pub mod caller;
pub mod calls;
pub mod context;
pub mod failure;
pub mod hangup;
pub mod jwt;
pub mod otlp;
pub mod port;
pub mod principals;
pub mod reply;
mod rights;
pub mod socket;
pub mod system_nodes;
pub mod throttle;
pub mod tls;
