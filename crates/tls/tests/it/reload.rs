//! New certificates for a listener that runs.

use std::path::Path;

use lockkeeper_tls::{ClientCertificates, ServerTls, TlsError, TlsFiles, client_config};

use crate::authority::{Authority, expired, not_yet_valid};
use crate::handshake::{assert_refused, connect, exchange};

/// Puts other files in the places of these.
fn replace(files: &TlsFiles, by: &TlsFiles) {
    std::fs::rename(&by.certificate, &files.certificate).unwrap();
    std::fs::rename(&by.key, &files.key).unwrap();
}

#[tokio::test]
async fn new_connections_use_new_certificates_and_open_ones_go_on() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let files = old.server("server");
    let server = ServerTls::open(&files, None, ClientCertificates::None).unwrap();
    let client = |authority: &Authority| client_config(Some(&authority.file()), None).unwrap();
    let mut open = connect(&server, client(&old)).await.unwrap();
    assert!(!server.has_changed());

    replace(&files, &new.server("server"));
    assert!(server.has_changed());
    assert_refused(&connect(&server, client(&new)).await, "UnknownIssuer");
    server.reload().unwrap();
    assert!(!server.has_changed());
    connect(&server, client(&new)).await.unwrap();
    assert_refused(&connect(&server, client(&old)).await, "UnknownIssuer");
    exchange(&mut open).await;
}

#[tokio::test]
async fn clients_of_a_new_authority_are_accepted_after_a_reload() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let server = ServerTls::open(&old.server("server"), Some(&old.file()), ClientCertificates::Required).unwrap();
    let client = |identity: &TlsFiles| client_config(Some(&old.file()), Some(identity)).unwrap();
    let (of_old, of_new) = (old.client("client"), new.client("client"));
    assert_refused(&connect(&server, client(&of_new)).await, "UnknownIssuer");
    let both = format!("{}{}", old.pem(), new.pem());
    let old_alone = old.pem();
    std::fs::write(old.file(), both).unwrap();
    server.reload().unwrap();
    connect(&server, client(&of_new)).await.unwrap();
    connect(&server, client(&of_old)).await.unwrap();
    // Taking an authority away acts on sessions that could be resumed too.
    let resumable = client(&of_new);
    connect(&server, resumable.clone()).await.unwrap();
    std::fs::write(old.file(), old_alone).unwrap();
    server.reload().unwrap();
    assert_refused(&connect(&server, resumable).await, "UnknownIssuer");
}

#[tokio::test]
async fn a_bad_file_changes_nothing() {
    let authority = Authority::new("one");
    let files = authority.server("server");
    let (certificate, key) = (std::fs::read(&files.certificate).unwrap(), std::fs::read(&files.key).unwrap());
    let server = ServerTls::open(&files, Some(&authority.file()), ClientCertificates::Optional).unwrap();
    let expires = server.expires_unix_s();
    let client = client_config(Some(&authority.file()), None).unwrap();
    let other = authority.server("other");
    let (old, early) = (authority.issue("old", expired), authority.issue("early", not_yet_valid));
    let (ca, ca_text) = (authority.file(), authority.pem());
    let good = [(&files.certificate, certificate.clone()), (&files.key, key.clone()), (&ca, ca_text.into_bytes())];
    let read = |file: &Path| std::fs::read(file).unwrap();
    for (named, changes) in [
        (&files.certificate, vec![(&files.certificate, b"nonsense".to_vec())]),
        (&files.certificate, vec![(&files.certificate, certificate[..200].to_vec())]),
        (&files.key, vec![(&files.key, Vec::new())]),
        (&files.key, vec![(&files.key, read(&other.key))]),
        (&files.certificate, vec![(&files.certificate, read(&old.certificate)), (&files.key, read(&old.key))]),
        (&files.certificate, vec![(&files.certificate, read(&early.certificate)), (&files.key, read(&early.key))]),
        (&ca, vec![(&ca, certificate.clone())]),
    ] {
        changes.iter().for_each(|(file, bytes)| std::fs::write(file, bytes).unwrap());
        let error = server.reload().unwrap_err().to_string();
        assert!(error.contains(&named.display().to_string()) && !error.contains('\n'), "{error}");
        assert!(server.has_changed(), "it is tried again: {error}");
        assert_eq!(server.expires_unix_s(), expires);
        connect(&server, client.clone()).await.unwrap();
        good.iter().for_each(|(file, bytes)| std::fs::write(file, bytes).unwrap());
        server.reload().unwrap();
    }
    std::fs::remove_file(&files.key).unwrap();
    assert!(matches!(server.reload(), Err(TlsError::Unreadable { file, .. }) if file == files.key));
    connect(&server, client).await.unwrap();
}

#[tokio::test]
async fn an_authority_is_withdrawn_although_the_certificate_has_expired() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let (files, ca) = (old.server("server"), old.file());
    let server = ServerTls::open(&files, Some(&ca), ClientCertificates::Required).unwrap();
    let client = |trusts: &Authority, identity: &TlsFiles| client_config(Some(&trusts.file()), Some(identity)).unwrap();
    let (of_old, of_new) = (client(&old, &old.client("client")), client(&old, &new.client("client")));
    connect(&server, of_old.clone()).await.unwrap();

    replace(&files, &old.issue("expired", expired));
    std::fs::write(&ca, new.pem()).unwrap();
    let error = server.reload().unwrap_err().to_string();
    assert!(error.contains("has expired") && error.contains(&files.certificate.display().to_string()), "{error}");
    assert!(server.has_changed(), "the certificate is tried again");
    server.check_validity().expect("the former certificate is in use");
    assert_refused(&connect(&server, of_old).await, "UnknownIssuer");
    connect(&server, of_new).await.unwrap();

    // The other way round: a new certificate, and an authority that cannot be read.
    replace(&files, &new.server("server"));
    std::fs::write(&ca, "nonsense").unwrap();
    let error = server.reload().unwrap_err().to_string();
    assert!(error.contains(&ca.display().to_string()), "{error}");
    connect(&server, client(&new, &new.client("another"))).await.unwrap();

    std::fs::write(&files.key, "nonsense").unwrap();
    let error = server.reload().unwrap_err().to_string();
    let named = [&ca, &files.key].map(|file| error.contains(&file.display().to_string()));
    assert!(named == [true, true] && !error.contains('\n'), "{error}");
}

#[test]
fn an_expired_certificate_is_taken_at_the_start_and_reported() {
    let authority = Authority::new("one");
    for (files, cause) in [
        (authority.issue("old", expired), "has expired"),
        (authority.issue("early", not_yet_valid), "is not valid before"),
    ] {
        let server = ServerTls::open(&files, None, ClientCertificates::None).unwrap();
        let error = server.check_validity().unwrap_err().to_string();
        assert!(error.contains(cause) && error.contains(&files.certificate.display().to_string()), "{error}");
    }
    let server = ServerTls::open(&authority.server("good"), None, ClientCertificates::None).unwrap();
    server.check_validity().unwrap();
    // Its authority's tests make certificates until 4096-01-01.
    assert_eq!(server.expires_unix_s(), 67_090_118_400);
}
