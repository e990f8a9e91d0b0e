//! Names of members and clients in certificates.

use lockkeeper_tls::{CertificateDer, ClientNameRule, NameSource, NoClientName, PeerName, peer_identity};
use rcgen::{DnType, SanType};
use rustls::pki_types::pem::PemObject;

use crate::authority::{Authority, add_uri};

fn identity_with(uris: &[&str]) -> Result<PeerName, String> {
    let authority = Authority::new("one");
    let files = authority.issue("node", |params| uris.iter().for_each(|uri| add_uri(params, uri)));
    let certificate = CertificateDer::from_pem_file(&files.certificate).unwrap();
    peer_identity(&certificate).map_err(|error| error.to_string())
}

#[test]
fn the_uri_names_the_node() {
    let name = identity_with(&["https://example.org/", "lockkeeper://blue-1.x_y/node/4294967295"]).unwrap();
    assert_eq!(name, PeerName { cluster: "blue-1.x_y".into(), node: 4_294_967_295 });
    assert_eq!(name.to_string().parse::<PeerName>().unwrap(), name);
}

#[test]
fn any_other_name_is_refused() {
    for (uris, reason) in [
        (&[][..], "names no node"),
        (&["https://blue/node/1"], "names no node"),
        (&["LOCKKEEPER://blue/node/1"], "names no node"),
        (&["lockkeeper://blue/node/1", "lockkeeper://blue/node/2"], "more than one node"),
        (&["lockkeeper://blue/node/1", "lockkeeper://blue/node/1"], "more than one node"),
        (&["lockkeeper://blue/node/0"], "lockkeeper://blue/node/0"),
        (&["lockkeeper://blue/node/01"], "lockkeeper://blue/node/01"),
        (&["lockkeeper://blue/node/+1"], "lockkeeper://blue/node/+1"),
        (&["lockkeeper://blue/node/4294967296"], "lockkeeper://blue/node/4294967296"),
        (&["lockkeeper://blue/node/"], "not lockkeeper://CLUSTER/node/ID"),
        (&["lockkeeper://blue/node/1/"], "not lockkeeper://CLUSTER/node/ID"),
        (&["lockkeeper://blue/node/1/node/1"], "not lockkeeper://CLUSTER/node/ID"),
        (&["lockkeeper:///node/1"], "not lockkeeper://CLUSTER/node/ID"),
        (&["lockkeeper://b%6cue/node/1"], "not lockkeeper://CLUSTER/node/ID"),
        (&["lockkeeper://blue/NODE/1"], "not lockkeeper://CLUSTER/node/ID"),
    ] {
        let refused = identity_with(uris).unwrap_err();
        assert!(refused.contains(reason), "{uris:?}: {refused}");
    }
}

#[test]
fn bytes_that_are_no_certificate_are_refused() {
    for bytes in [&b""[..], b"\x30", b"\x30\x82\xff\xff", &[0xff; 4096]] {
        assert!(peer_identity(bytes).unwrap_err().to_string().contains("malformed"));
    }
}

/// The client that a certificate with this common name and these alternative names proves by a rule.
fn client(common_name: &str, names: &[(NameSource, &str)], from: NameSource, prefix: &str) -> Result<String, String> {
    let authority = Authority::new("one");
    let files = authority.issue("client", |params| {
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.subject_alt_names.clear();
        for (kind, name) in names {
            params.subject_alt_names.push(match kind {
                NameSource::Uri => SanType::URI((*name).try_into().unwrap()),
                NameSource::Dns => SanType::DnsName((*name).try_into().unwrap()),
                NameSource::Email => SanType::Rfc822Name((*name).try_into().unwrap()),
                NameSource::CommonName => panic!("no alternative name"),
            });
        }
    });
    let certificate = CertificateDer::from_pem_file(&files.certificate).unwrap();
    let rule = ClientNameRule { from, prefix: prefix.into() };
    rule.name_in(&certificate).map_err(|error| error.to_string())
}

const NAMES: [(NameSource, &str); 4] = [
    (NameSource::Uri, "lockkeeper://blue/client/billing"),
    (NameSource::Uri, "spiffe://example.org/ns/shop/sa/billing"),
    (NameSource::Dns, "billing.example.org"),
    (NameSource::Email, "billing@example.org"),
];

#[test]
fn the_rule_chooses_the_name_of_the_client() {
    let named = |from, prefix: &str| client("cn-billing", &NAMES, from, prefix).unwrap();
    assert_eq!(named(NameSource::CommonName, ""), "cn-billing");
    assert_eq!(named(NameSource::CommonName, "cn-"), "billing");
    assert_eq!(named(NameSource::Uri, "lockkeeper://blue/client/"), "billing");
    assert_eq!(named(NameSource::Uri, "spiffe://example.org/"), "ns/shop/sa/billing");
    assert_eq!(named(NameSource::Dns, ""), "billing.example.org");
    assert_eq!(named(NameSource::Email, ""), "billing@example.org");
}

#[test]
fn no_name_or_several_name_nobody() {
    let refused = |from, prefix: &str| client("billing", &NAMES, from, prefix).unwrap_err();
    let other = refused(NameSource::Uri, "lockkeeper://green/client/");
    assert_eq!(other, "it has no URI that begins with \"lockkeeper://green/client/\"", "another cluster's");
    assert_eq!(refused(NameSource::Uri, ""), "it has more than one URI");
    assert_eq!(refused(NameSource::CommonName, "x"), "it has no common name that begins with \"x\"");
    let twice = [(NameSource::Dns, "a.example"), (NameSource::Dns, "a.example")];
    assert_eq!(client("billing", &twice, NameSource::Dns, "").unwrap_err(), "it has more than one DNS name");
    assert_eq!(client("billing", &twice, NameSource::Email, "").unwrap_err(), "it has no e-mail address");
    let rule = ClientNameRule::default();
    assert_eq!(rule.name_in(b"\x30\x82\xff\xff"), Err(NoClientName::Malformed));
}

#[test]
fn the_certificate_of_a_node_names_no_client() {
    for uri in ["lockkeeper://blue/node/1", "lockkeeper://green/node/x", "lockkeeper://blue/node"] {
        for (from, prefix) in
            [(NameSource::CommonName, ""), (NameSource::Uri, ""), (NameSource::Uri, "lockkeeper://blue/")]
        {
            let refused = client("admin", &[(NameSource::Uri, uri)], from, prefix).unwrap_err();
            assert!(refused.contains("certificate of a node"), "{uri}: {refused}");
        }
    }
    let client = client("admin", &[(NameSource::Uri, "lockkeeper://blue/nodes/1")], NameSource::CommonName, "");
    assert_eq!(client.unwrap(), "admin");
}
