//! The ports of the listeners for ZooKeeper's clients: one, or one without TLS and one with it, as ZooKeeper's
//! `clientPort` and `secureClientPort`.

use std::net::SocketAddr;

use lockkeeper_config::{Checked, Config};
use lockkeeper_service::port::{Bound, PortError};
use lockkeeper_service::tls::TlsListener;
use tokio::net::TcpListener;

const MAIN: &str = "zookeeper.listen";
const SECURE: &str = "zookeeper.listen_secure";

/// The ports that the configuration names, bound and not listening yet.
#[derive(Debug)]
pub struct ZooKeeperPorts {
    main: Option<Bound>,
    secure: Option<Bound>,
}

impl ZooKeeperPorts {
    /// Takes the ports that the configuration names.
    ///
    /// # Errors
    /// One cannot be had.
    pub fn bind(checked: &Checked) -> Result<Self, PortError> {
        let take = |key, address: Option<SocketAddr>| {
            let bound =
                address.map(|address| Bound::bind(address).map_err(|error| PortError::new(key, address, &error)));
            bound.transpose()
        };
        let main = take(MAIN, checked.listen_zookeeper)?;
        Ok(Self { main, secure: take(SECURE, checked.listen_zookeeper_secure)? })
    }

    /// The address of `zookeeper.listen`.
    pub fn address(&self) -> Option<SocketAddr> {
        self.main.as_ref().map(Bound::address)
    }

    /// The address of `zookeeper.listen_secure`.
    pub fn secure_address(&self) -> Option<SocketAddr> {
        self.secure.as_ref().map(Bound::address)
    }

    /// Whether the configuration names none.
    pub fn is_empty(&self) -> bool {
        self.main.is_none() && self.secure.is_none()
    }

    /// Listens. Each listener has TLS as the configuration says.
    ///
    /// # Errors
    /// The system refuses.
    pub fn listen(
        self,
        config: &Config,
        tls: Option<&TlsListener>,
    ) -> Result<Vec<(TcpListener, Option<TlsListener>)>, PortError> {
        let of_main = match (tls, config.zookeeper.port_unification, &self.secure) {
            (Some(tls), true, _) => Some(tls.clone().taking_plain()),
            (_, _, Some(_)) => None,
            (tls, ..) => tls.cloned(),
        };
        let ports = [(MAIN, self.main, of_main), (SECURE, self.secure, tls.cloned())];
        let listen = |(key, port, tls): (&'static str, Option<Bound>, Option<TlsListener>)| {
            let port = port?;
            let address = port.address();
            let listener = port.listen().map_err(|error| PortError::new(key, address, &error));
            tracing::info!(%address, key, "listening for ZooKeeper's clients");
            Some(listener.map(|listener| (listener, tls)))
        };
        ports.into_iter().filter_map(listen).collect()
    }
}
