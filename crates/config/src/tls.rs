//! Section `[tls]`: the certificates of the listeners, in PEM files that the node reads again when they change.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use lockkeeper_tls::{ClientCertificates, ClientNameRule, NameSource};
use serde::{Deserialize, Serialize};

use super::error::refuse;
use super::{Config, ConfigError};

/// See the module's text. A listener without a section of its own has no TLS.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// The listener for clients (`listen.client`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<ListenerTls>,
    /// The listeners for ZooKeeper's clients: `zookeeper.listen_secure`, or `zookeeper.listen` if there is no such
    /// address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zookeeper: Option<ListenerTls>,
    /// The peer listener (`listen.peer`), and this node's connections to its peers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<PeerListenerTls>,
}

/// Sections `[tls.client]` and `[tls.zookeeper]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenerTls {
    /// The certificate, followed by those between it and its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities that sign the clients' certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<PathBuf>,
    /// `none`, `optional`, or `required`.
    #[serde(default)]
    pub client_certificates: ClientCertificates,
    /// Which name in a client's certificate is its principal: `common_name`, `uri`, `dns` or `email`.
    #[serde(default)]
    pub principal_from: NameSource,
    /// What that name begins with; the rest of it is the principal. Names that begin otherwise do not count.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub principal_prefix: String,
}

impl ListenerTls {
    /// How the certificates of clients name them.
    pub fn client_name_rule(&self) -> ClientNameRule {
        ClientNameRule { from: self.principal_from, prefix: self.principal_prefix.clone() }
    }

    fn has_rule(&self) -> bool {
        self.client_name_rule() != ClientNameRule::default()
    }
}

/// Section `[tls.peer]`. Both ends have certificates, with the URI `lockkeeper://<cluster.id>/node/<cluster.node>`
/// among their subject's alternative names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerListenerTls {
    /// This node's certificate, followed by those between it and its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities that sign the members' certificates.
    pub authority: PathBuf,
}

/// A listener, in `listen.insecure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListenerName {
    /// `listen.client`.
    Client,
    /// `listen.peer`.
    Peer,
    /// `zookeeper.listen`.
    Zookeeper,
}

impl fmt::Display for ListenerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Peer => "peer",
            Self::Zookeeper => "zookeeper",
        })
    }
}

impl Tls {
    fn of_clients(&self) -> impl Iterator<Item = (&'static str, &ListenerTls)> {
        let sections = [("tls.client", &self.client), ("tls.zookeeper", &self.zookeeper)];
        sections.into_iter().filter_map(|(section, tls)| Some((section, tls.as_ref()?)))
    }

    /// Warnings of an authority and of a rule for names that have no effect.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        let unused = |tls: &ListenerTls| tls.authority.is_some() && tls.client_certificates == ClientCertificates::None;
        let authorities = self.of_clients().filter(move |(_, tls)| unused(tls)).map(|(section, _)| {
            format!(
                "{section}.authority is set, but {section}.client_certificates is \"none\": clients are not asked for \
                 certificates; set it to \"required\" or \"optional\", or remove the authority"
            )
        });
        let idle = |tls: &ListenerTls| tls.has_rule() && tls.client_certificates == ClientCertificates::None;
        authorities.chain(self.of_clients().filter(move |(_, tls)| idle(tls)).map(|(section, _)| {
            format!(
                "{section}.principal_from or {section}.principal_prefix is set, but {section}.client_certificates is \
                 \"none\": clients are not asked for certificates; set it to \"required\" or \"optional\", or remove \
                 the rule"
            )
        }))
    }
}

/// Longest `principal_prefix`, in bytes.
const MAX_PREFIX_BYTES: usize = 256;

fn check_prefix(section: &str, prefix: &str) -> Result<(), ConfigError> {
    if prefix.len() > MAX_PREFIX_BYTES || !prefix.bytes().all(|byte| byte.is_ascii_graphic()) {
        let rule = format!("must be at most {MAX_PREFIX_BYTES} ASCII letters, digits and signs");
        return Err(refuse(format!("{section}.principal_prefix"), format!("{prefix:?}"), rule));
    }
    Ok(())
}

impl Config {
    /// Checks the sections of the listeners.
    pub(super) fn check_tls(&self) -> Result<(), ConfigError> {
        let mut paths = Vec::new();
        for (section, tls) in self.tls.of_clients() {
            let ListenerTls { certificate, key, authority, client_certificates, principal_prefix, .. } = tls;
            check_prefix(section, principal_prefix)?;
            if authority.is_none() && *client_certificates != ClientCertificates::None {
                let rule = format!("needs {section}.authority, with the authorities that sign these certificates");
                return Err(refuse(format!("{section}.client_certificates"), "not \"none\"", rule));
            }
            let files = [("certificate", Some(certificate)), ("key", Some(key)), ("authority", authority.as_ref())];
            paths.extend(files.into_iter().filter_map(|(key, path)| Some((section, key, path?))));
        }
        if let Some(peer) = &self.tls.peer {
            let files = [("certificate", &peer.certificate), ("key", &peer.key), ("authority", &peer.authority)];
            paths.extend(files.map(|(key, path)| ("tls.peer", key, path)));
        }
        if let Some((section, key, _)) = paths.iter().find(|(.., path)| path.as_os_str().is_empty()) {
            return Err(refuse(format!("{section}.{key}"), "\"\"", "must name a file"));
        }
        self.check_zookeeper_tls()
    }

    /// Every key about TLS for ZooKeeper's clients has what it needs to have an effect.
    fn check_zookeeper_tls(&self) -> Result<(), ConfigError> {
        let zookeeper = &self.zookeeper;
        let (has_main, has_secure) = (!zookeeper.listen.is_empty(), !zookeeper.listen_secure.is_empty());
        if self.tls.zookeeper.is_some() && !has_main && !has_secure {
            let rule = "must name the address of the listener that [tls.zookeeper] is for, or zookeeper.listen_secure \
                        must";
            return Err(refuse("zookeeper.listen", "\"\"", rule));
        }
        let needs_tls = "needs [tls.zookeeper] with certificate and key";
        if has_secure && self.tls.zookeeper.is_none() {
            return Err(refuse("zookeeper.listen_secure", format!("{:?}", zookeeper.listen_secure), needs_tls));
        }
        if zookeeper.port_unification && self.tls.zookeeper.is_none() {
            return Err(refuse("zookeeper.port_unification", "true", needs_tls));
        }
        if zookeeper.port_unification && !has_main {
            let rule = "is about zookeeper.listen, which is empty: name its address";
            return Err(refuse("zookeeper.port_unification", "true", rule));
        }
        Ok(())
    }

    /// As [`check_secured`](Self::check_secured) for `zookeeper.listen`, which may be without TLS although
    /// `[tls.zookeeper]` is there.
    pub(super) fn check_zookeeper_secured(&self, address: SocketAddr) -> Result<(), ConfigError> {
        const KEY: &str = "zookeeper.listen";
        let why = if self.zookeeper.port_unification {
            "zookeeper.port_unification lets clients without TLS in: set it to false"
        } else if !self.zookeeper.listen_secure.is_empty() {
            "[tls.zookeeper] is for zookeeper.listen_secure: leave zookeeper.listen empty"
        } else {
            return self.check_secured(KEY, address, ListenerName::Zookeeper, self.tls.zookeeper.is_some());
        };
        if self.may_be_plain(address, ListenerName::Zookeeper) {
            return Ok(());
        }
        let rule = format!(
            "other machines can reach this address, and {why}, or, if the network is trusted, add \"zookeeper\" to \
             listen.insecure"
        );
        Err(refuse(KEY, address, rule))
    }

    /// Whether a listener at this address needs no TLS.
    fn may_be_plain(&self, address: SocketAddr, listener: ListenerName) -> bool {
        address.ip().to_canonical().is_loopback() || self.listen.insecure.contains(&listener)
    }

    /// A listener that others can reach has TLS, or the configuration says that it needs none.
    pub(super) fn check_secured(
        &self,
        key: &str,
        address: SocketAddr,
        listener: ListenerName,
        has_tls: bool,
    ) -> Result<(), ConfigError> {
        if has_tls || self.may_be_plain(address, listener) {
            return Ok(());
        }
        let rule = format!(
            "other machines can reach this address, and the listener has no TLS: add [tls.{listener}] with certificate \
             and key, or, if the network is trusted, add \"{listener}\" to listen.insecure"
        );
        Err(refuse(key, address, rule))
    }
}
