//! Names of members in certificates.

use lockkeeper_tls::{CertificateDer, PeerName, peer_identity};
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
