//! Two members.

use lockkeeper_tls::{PeerName, PeerTls, ServerTls, TlsError, TlsFiles, client_config};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose};

use crate::authority::{Authority, add_uri, expired, not_yet_valid};
use crate::handshake::{assert_refused, connect};

fn name(cluster: &str, node: u64) -> PeerName {
    PeerName { cluster: cluster.into(), node }
}

fn member(authority: &Authority, node: u64) -> PeerTls {
    PeerTls::open(&authority.node("blue", node), &authority.file(), name("blue", node)).unwrap()
}

#[tokio::test]
async fn members_know_each_other_by_name() {
    let authority = Authority::new("one");
    let (one, two) = (member(&authority, 1), member(&authority, 2));
    connect(two.listener(), one.client_config(2).unwrap()).await.unwrap();
    // The address of node 3 leads to node 2.
    assert_refused(&connect(two.listener(), one.client_config(3).unwrap()).await, "must be lockkeeper://blue/node/3");
}

/// The listener of a server whose certificate is not that of a member.
fn listener(authority: &Authority, name: &str, adjust: impl FnOnce(&mut CertificateParams)) -> ServerTls {
    let files = authority.issue(name, adjust);
    ServerTls::open(&files, None, lockkeeper_tls::ClientCertificates::None).unwrap()
}

#[tokio::test]
async fn a_member_connects_to_no_other_server() {
    let (authority, other) = (Authority::new("one"), Authority::new("another"));
    let one = member(&authority, 1);
    let uri = "lockkeeper://blue/node/2";
    for (server, reason) in [
        (listener(&authority, "nameless", |_| ()), "names no node"),
        (listener(&authority, "red", |params| add_uri(params, "lockkeeper://red/node/2")), "names lockkeeper://red"),
        (listener(&other, "foreign", |params| add_uri(params, uri)), "UnknownIssuer"),
        (
            listener(&authority, "expired", |params| {
                expired(params);
                add_uri(params, uri);
            }),
            "Expired",
        ),
        (
            listener(&authority, "early", |params| {
                not_yet_valid(params);
                add_uri(params, uri);
            }),
            "NotValidYet",
        ),
        (
            listener(&authority, "client", |params| {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
                add_uri(params, uri);
            }),
            "Purpose",
        ),
    ] {
        assert_refused(&connect(&server, one.client_config(2).unwrap()).await, reason);
    }
}

#[tokio::test]
async fn a_listener_of_peers_takes_certificates_of_the_authority_alone() {
    let (authority, other) = (Authority::new("one"), Authority::new("another"));
    let one = member(&authority, 1);
    let client = |identity: Option<&TlsFiles>| client_config(Some(&authority.file()), identity).unwrap();
    assert_refused(&connect(one.listener(), client(None)).await, "NoCertificatesPresented");
    assert_refused(&connect(one.listener(), client(Some(&other.node("blue", 2)))).await, "UnknownIssuer");
    assert_refused(&connect(one.listener(), client(Some(&authority.issue("old", expired)))).await, "Expired");
}

#[tokio::test]
async fn both_ends_follow_a_reload() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let (one, two) = (member(&old, 1), member(&old, 2));
    let to_two = one.client_config(2).unwrap();
    connect(two.listener(), to_two.clone()).await.unwrap();
    // The other member has changed its authority already.
    let changed = member(&new, 2);
    assert_refused(&connect(changed.listener(), to_two.clone()).await, "UnknownIssuer");
    std::fs::write(old.file(), format!("{}{}", old.pem(), new.pem())).unwrap();
    one.listener().reload().unwrap();
    assert_refused(&connect(changed.listener(), to_two.clone()).await, "UnknownCA");
    let certified = new.node("blue", 1);
    std::fs::copy(certified.certificate, old.files("blue-1").certificate).unwrap();
    std::fs::copy(certified.key, old.files("blue-1").key).unwrap();
    one.listener().reload().unwrap();
    connect(changed.listener(), to_two.clone()).await.unwrap();
}

#[test]
fn a_node_refuses_the_certificate_of_another() {
    let authority = Authority::new("one");
    for (files, reason) in [
        (authority.node("blue", 2), "names lockkeeper://blue/node/2, but this node is lockkeeper://blue/node/1"),
        (authority.node("red", 1), "names lockkeeper://red/node/1"),
        (authority.server("nameless"), "names no node"),
    ] {
        let error = PeerTls::open(&files, &authority.file(), name("blue", 1)).unwrap_err();
        assert!(matches!(&error, TlsError::WrongNode { file, .. } if *file == files.certificate), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
}
