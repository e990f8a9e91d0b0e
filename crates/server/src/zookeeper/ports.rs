//! The ports of the listeners for ZooKeeper's clients: one, or one without TLS and one with it, as ZooKeeper's
//! `clientPort` and `secureClientPort`.

use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::config::{Checked, Config};
use crate::error::ServeError;
use crate::http::listener::Bound;
use crate::tls::TlsListener;

const MAIN: &str = "zookeeper.listen";
const SECURE: &str = "zookeeper.listen_secure";

/// The ports that the configuration names, bound and not listening yet.
#[derive(Debug)]
pub(crate) struct ZooKeeperPorts {
    main: Option<Bound>,
    secure: Option<Bound>,
}

impl ZooKeeperPorts {
    pub(crate) fn bind(checked: &Checked) -> Result<Self, ServeError> {
        let take = |key, address: Option<SocketAddr>| {
            let bound =
                address.map(|address| Bound::bind(address).map_err(|error| ServeError::listen(key, address, &error)));
            bound.transpose()
        };
        let main = take(MAIN, checked.listen_zookeeper)?;
        Ok(Self { main, secure: take(SECURE, checked.listen_zookeeper_secure)? })
    }

    /// The address of `zookeeper.listen`.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.main.as_ref().map(Bound::address)
    }

    /// The address of `zookeeper.listen_secure`.
    pub(crate) fn secure_address(&self) -> Option<SocketAddr> {
        self.secure.as_ref().map(Bound::address)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.main.is_none() && self.secure.is_none()
    }

    /// Listens. Each listener has TLS as the configuration says.
    pub(crate) fn listen(
        self,
        config: &Config,
        tls: Option<&TlsListener>,
    ) -> Result<Vec<(TcpListener, Option<TlsListener>)>, ServeError> {
        let of_main = match (tls, config.zookeeper.port_unification, &self.secure) {
            (Some(tls), true, _) => Some(tls.clone().taking_plain()),
            (_, _, Some(_)) => None,
            (tls, ..) => tls.cloned(),
        };
        let ports = [(MAIN, self.main, of_main), (SECURE, self.secure, tls.cloned())];
        let listen = |(key, port, tls): (&'static str, Option<Bound>, Option<TlsListener>)| {
            let port = port?;
            let address = port.address();
            let listener = port.listen().map_err(|error| ServeError::listen(key, address, &error));
            tracing::info!(%address, key, "listening for ZooKeeper's clients");
            Some(listener.map(|listener| (listener, tls)))
        };
        ports.into_iter().filter_map(listen).collect()
    }
}
