//! Free loopback ports for processes that are started, killed and started again.
//!
//! Not by binding port 0: what the kernel hands out there also serves as local port of outgoing connections, and while
//! a killed node is down one of the proof's own thousands of connections could take its port. These lie below that
//! range.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::sync::{Mutex, PoisonError};

use rand::Rng as _;

const RANGE: std::ops::Range<u16> = 15_000..30_000;
const ATTEMPTS: usize = 2_000;
/// Given out, and perhaps not listened on yet: not given out again for so many others.
const KEPT: usize = 4_000;
static GIVEN: Mutex<VecDeque<u16>> = Mutex::new(VecDeque::new());

/// `count` different ports on 127.0.0.1 that are free now.
///
/// # Errors
/// Hardly any port is free.
pub fn free(count: usize) -> io::Result<Vec<u16>> {
    let mut random = rand::rng();
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut held = Vec::new();
    for _ in 0..ATTEMPTS {
        if held.len() == count {
            break;
        }
        let port = random.random_range(RANGE);
        if given.contains(&port) {
            continue;
        }
        if let Ok(listener) = TcpListener::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)) {
            held.push((port, listener));
        }
    }
    if held.len() < count {
        return Err(io::Error::other(format!("no {count} free ports between {} and {}", RANGE.start, RANGE.end)));
    }
    let ports: Vec<u16> = held.into_iter().map(|(port, _)| port).collect();
    given.extend(&ports);
    let over = given.len().saturating_sub(KEPT);
    given.drain(..over);
    Ok(ports)
}

#[cfg(test)]
mod tests {
    #[test]
    fn different_and_free() {
        // Nobody listens on the first ten when the others are chosen.
        let mut ports = super::free(10).unwrap();
        ports.extend(super::free(10).unwrap());
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 20);
    }
}
