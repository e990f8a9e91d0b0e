//! ZooKeeper's front door: its clients talk to this node unchanged, on the same tree and in the same lock queues as everybody else.
//!
//! The codec is `lockkeeper_zookeeper`. Here: `listener` accepts, `hello` opens or moves a session, `connection` answers one request after
//! the other (`changes`, `reads`, `rearm`, `words`), `outbox` holds what is on its way to one client, `watches` says who is to be told, `door`
//! is what all connections share and what the replica tells, `auth` and `values` translate, `special` shows what ZooKeeper keeps for itself.
//!
//! It must never decide what the state should decide, nor let a client see a change before the event that announces it.

mod auth;
mod changes;
mod connection;
mod door;
mod hello;
mod line;
mod listener;
mod outbox;
mod reads;
mod rearm;
mod special;
mod values;
mod watches;
mod words;
