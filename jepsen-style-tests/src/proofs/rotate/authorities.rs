//! The old and the new authority, the certificates that they have issued, and the files that nodes read.

use std::io;
use std::path::PathBuf;

use lockkeeper_tls::{ClientConfig, client_config};

use crate::proofs::prelude::*;
use crate::proofs::tls_cluster::{CLUSTER, environment, identity_files, make_certificates};

named! {
    /// The authority that has issued a certificate.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Issuer {
        Old = "old",
        New = "new",
    }
}

named! {
    /// The authorities that somebody trusts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Trust {
        Old = "the old authority alone",
        Both = "both authorities",
        New = "the new authority alone",
    }
}

impl Trust {
    pub(super) fn covers(self, issuer: Issuer) -> bool {
        matches!((self, issuer), (Self::Both, _) | (Self::Old, Issuer::Old) | (Self::New, Issuer::New))
    }
}

/// What a node or a client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TlsState {
    pub(super) trusts: Trust,
    pub(super) shows: Issuer,
}

impl TlsState {
    pub(super) const BEFORE: Self = Self { trusts: Trust::Old, shows: Issuer::Old };
    pub(super) const BUNDLED: Self = Self { trusts: Trust::Both, shows: Issuer::Old };
    pub(super) const REISSUED: Self = Self { trusts: Trust::Both, shows: Issuer::New };
    pub(super) const AFTER: Self = Self { trusts: Trust::New, shows: Issuer::New };

    /// Whether both ends accept each other.
    pub(super) fn accepts(self, other: Self) -> bool {
        self.trusts.covers(other.shows) && other.trusts.covers(self.shows)
    }
}

/// See the module's text. The files of node N are `nodeN.pem`, `nodeN.key` and `nodeN-authority.pem`.
pub(super) struct Authorities {
    directory: PathBuf,
}

impl Authorities {
    /// Makes both, and gives the nodes what the old one has issued.
    pub(super) async fn make(binary: &Path, directory: &Path) -> Result<Self, Failed> {
        let all = Self { directory: directory.to_path_buf() };
        let mut bundle = Vec::new();
        for issuer in Issuer::ALL {
            let place = all.of(issuer);
            let place = place.as_path();
            let commands: [(&Path, &[&str]); 5] = [
                (place, &["init", "--cluster", CLUSTER]),
                (place, &["node", "--id", "1", "--host", "127.0.0.1"]),
                (place, &["node", "--id", "2", "--host", "127.0.0.1"]),
                (place, &["node", "--id", "3", "--host", "127.0.0.1"]),
                (place, &["client", "--name", "honest"]),
            ];
            make_certificates(binary, &commands).await?;
            bundle.extend(std::fs::read(place.join("authority.pem"))?);
        }
        std::fs::write(all.trust_file(Trust::Both), bundle)?;
        for node in 1..=3 {
            all.give_authority(node, Trust::Old)?;
            all.give_certificate(node, Issuer::Old)?;
        }
        Ok(all)
    }

    /// What the nodes' configuration has of TLS. Clients must have a certificate.
    pub(super) fn environment() -> Vec<(String, String)> {
        environment("{node}-authority.pem", "required")
    }

    fn of(&self, issuer: Issuer) -> PathBuf {
        self.directory.join(issuer.name())
    }

    fn trust_file(&self, trust: Trust) -> PathBuf {
        match trust {
            Trust::Old => self.of(Issuer::Old).join("authority.pem"),
            Trust::Both => self.directory.join("both.pem"),
            Trust::New => self.of(Issuer::New).join("authority.pem"),
        }
    }

    fn node_file(&self, node: u64, rest: &str) -> PathBuf {
        self.directory.join(format!("node{node}{rest}"))
    }

    /// Replaces a node's authority file, as `cp` does.
    pub(super) fn give_authority(&self, node: u64, trust: Trust) -> io::Result<()> {
        std::fs::copy(self.trust_file(trust), self.node_file(node, "-authority.pem")).map(drop)
    }

    /// Replaces a node's certificate and then its key. In between they do not belong together.
    pub(super) fn give_certificate(&self, node: u64, issuer: Issuer) -> io::Result<()> {
        for rest in [".pem", ".key"] {
            let issued = self.of(issuer).join(format!("node{node}{rest}"));
            std::fs::copy(issued, self.node_file(node, rest))?;
        }
        Ok(())
    }

    /// Replaces a node's certificate by the first half of the new one.
    pub(super) fn give_half_certificate(&self, node: u64) -> io::Result<()> {
        let certificate = std::fs::read(self.of(Issuer::New).join(format!("node{node}.pem")))?;
        std::fs::write(self.node_file(node, ".pem"), &certificate[..certificate.len() / 2])
    }

    /// The settings of a client.
    pub(super) fn client(&self, state: TlsState) -> Result<ClientConfig, Failed> {
        self.config("client-honest", state)
    }

    /// The settings of a client that has the certificate of a member.
    pub(super) fn member(&self, node: u64, state: TlsState) -> Result<ClientConfig, Failed> {
        self.config(&format!("node{node}"), state)
    }

    fn config(&self, stem: &str, state: TlsState) -> Result<ClientConfig, Failed> {
        let files = identity_files(&self.of(state.shows), stem);
        client_config(Some(&self.trust_file(state.trusts)), Some(&files))
            .or_cannot_run(format!("the certificate {stem} cannot be used"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_must_accept_each_other() {
        use TlsState as State;
        for state in [State::BEFORE, State::BUNDLED, State::REISSUED, State::AFTER] {
            assert!(state.accepts(state), "{state:?}");
        }
        assert!(State::BUNDLED.accepts(State::BEFORE) && State::BUNDLED.accepts(State::REISSUED));
        assert!(State::REISSUED.accepts(State::AFTER));
        assert!(!State::REISSUED.accepts(State::BEFORE), "who trusts the old authority alone refuses the new one");
        assert!(!State::AFTER.accepts(State::BUNDLED), "an old certificate is worth nothing at the end");
        assert!(!State::AFTER.accepts(State::BEFORE));
    }
}
