//! A cluster with TLS on all listeners: its configuration, and certificates made by `lockkeeper certs`.

use lockkeeper_tls::TlsFiles;
use tokio::process::Command;

use crate::proofs::prelude::*;

/// The name of the cluster in every configuration that the harness writes.
pub(super) const CLUSTER: &str = "prove";

/// Runs `lockkeeper certs` with each of these words, for the authority in each of these directories.
pub(super) async fn make_certificates(binary: &Path, commands: &[(&Path, &[&str])]) -> Result<(), Failed> {
    for (place, words) in commands {
        let (verb, options) = words.split_at(1);
        let run = Command::new(binary).arg("certs").args(verb).arg("--dir").arg(place).args(options).output();
        let output = run.await?;
        if !output.status.success() {
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            return broken(format!("`lockkeeper certs {}` fails: {told}", words.join(" ")));
        }
    }
    Ok(())
}

/// The files of an identity that `lockkeeper certs` has made.
pub(super) fn identity_files(directory: &Path, stem: &str) -> TlsFiles {
    let file = |extension: &str| directory.join(format!("{stem}.{extension}"));
    TlsFiles { certificate: file("pem"), key: file("key") }
}

/// What the nodes' configuration has of TLS; `{node}` stands for a node's directory, which lies beside its certificate
/// `{node}.pem` and its key `{node}.key`. `client_certificates` is for the listener for clients; ZooKeeper's clients
/// must have a certificate.
pub(super) fn environment(authority: &str, client_certificates: &str) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    for listener in ["CLIENT", "ZOOKEEPER", "PEER"] {
        let mut add = |key: &str, value: &str| {
            variables.push((format!("LOCKKEEPER_TLS__{listener}__{key}"), value.to_owned()));
        };
        add("CERTIFICATE", "{node}.pem");
        add("KEY", "{node}.key");
        add("AUTHORITY", authority);
    }
    let ask = |listener: &str| format!("LOCKKEEPER_TLS__{listener}__CLIENT_CERTIFICATES");
    variables.push((ask("CLIENT"), client_certificates.to_owned()));
    variables.push((ask("ZOOKEEPER"), "required".into()));
    variables
}
