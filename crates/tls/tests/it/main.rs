//! Handshakes between both ends over certificates that a private authority of the test signs.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it must be; helpers belong to the tests")]

mod authority;
mod files;
mod handshake;
mod listener;
mod names;
mod peers;
mod reload;
