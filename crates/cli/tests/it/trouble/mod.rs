//! What can go wrong between a client and its cluster, with real server processes and the client library.
//!
//! Whatever happens, nobody is left in a lock's queue for longer than the timeout of their session: each test ends by looking.

mod children;
mod nodes;
mod parties;
mod process;
mod requests;
mod wire;
