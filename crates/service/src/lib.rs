//! The calls of the API, and what guards them on every way in: admission, budgets and shares, the throttle of
//! namespaces, principals, the audit log, failures. It knows no protocol: a frontend turns what its clients send into
//! calls, and the answers into what its clients read.
//!
//! A frontend is a crate of its own and knows no other one. It takes a `Context`, gives each client a
//! `caller::ClientAddress` and its principals, has `admission` admit each request, and dispatches a `calls::CallScope`
//! or, where its protocol has operations of its own, gives the node commands. Sockets, ports and TLS of its listeners
//! are here too, so that their bounds are the same everywhere.
//!
//! Nothing in here decides anything about locks, sessions or nodes of the tree.

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
pub mod socket;
pub mod system_nodes;
pub mod throttle;
pub mod tls;
