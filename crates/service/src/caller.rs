//! The client of a request: the address that it comes from, whichever listener it uses.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The address of a request's client, for the audit log and ACLs.
#[derive(Clone, Copy, Debug)]
pub struct ClientAddress {
    /// The address of the connection.
    pub address: SocketAddr,
    /// Whether the client is on this machine.
    pub is_local: bool,
}

/// A request that came over no connection counts as this machine's.
impl Default for ClientAddress {
    fn default() -> Self {
        Self { address: SocketAddr::from(([127, 0, 0, 1], 0)), is_local: true }
    }
}

/// The address of a request's connection; without a connection it is this machine's.
pub fn address_of(from: Option<&ClientAddress>) -> IpAddr {
    from.map_or(Ipv4Addr::LOCALHOST.into(), |from| from.address.ip())
}
