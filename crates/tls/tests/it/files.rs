//! Files that cannot be used. No error shows what a file contains.

use std::path::Path;

use lockkeeper_tls::{ClientCertificates, MAX_FILE_BYTES, ServerTls, TlsError, TlsFiles, client_config};

use crate::authority::Authority;

fn open(files: &TlsFiles) -> Result<ServerTls, TlsError> {
    ServerTls::open(files, None, ClientCertificates::None)
}

#[test]
fn each_error_names_the_file_and_shows_nothing_of_a_key() {
    let authority = Authority::new("one");
    let good = authority.server("good");
    let key = std::fs::read_to_string(&good.key).unwrap();
    let secret: String = key.lines().filter(|line| !line.starts_with('-')).collect();
    let bad = authority.directory().join("bad");
    let texts = [
        String::new(),
        "nonsense".into(),
        secret.clone(),
        format!("-----BEGIN PRIVATE KEY-----{secret}-----END PRIVATE KEY-----"),
        format!("-----BEGIN {secret}"),
        format!("-----BEGIN PRIVATE KEY-----\n{secret}\n"),
        format!("-----BEGIN PRIVATE KEY-----\n{secret}!\n-----END PRIVATE KEY-----\n"),
        format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", &secret[..40]),
        format!("-----BEGIN ENCRYPTED PRIVATE KEY-----\n{secret}\n-----END ENCRYPTED PRIVATE KEY-----\n"),
        format!("-----BEGIN CERTIFICATE-----\n{secret}\n-----END CERTIFICATE-----\n"),
        authority.pem().replacen("MII", "MIJ", 1),
    ];
    for text in texts {
        std::fs::write(&bad, &text).unwrap();
        let as_certificate = open(&TlsFiles { certificate: bad.clone(), ..good.clone() }).unwrap_err();
        let as_key = open(&TlsFiles { key: bad.clone(), ..good.clone() }).unwrap_err();
        let as_authority = client_config(Some(&bad), None).unwrap_err();
        for error in [as_certificate, as_key, as_authority] {
            let shown = format!("{error} {error:?}");
            assert!(shown.contains(&bad.display().to_string()), "{shown}");
            let parts = secret.as_bytes().windows(8).filter_map(|part| std::str::from_utf8(part).ok());
            let leaked = parts.filter(|part| shown.contains(*part)).collect::<Vec<_>>();
            assert!(leaked.is_empty(), "{text:?}: {shown}");
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
    let shown = format!("{:?}", open(&good).unwrap());
    assert!(shown.contains("good.key") && !shown.contains(&secret[..8]), "{shown}");
}

#[test]
fn a_file_is_bounded() {
    let authority = Authority::new("one");
    let good = authority.server("good");
    let large = authority.directory().join("large");
    let padded = |bytes: u64| {
        let text = std::fs::read_to_string(&good.certificate).unwrap();
        let padding = " ".repeat(bytes as usize - text.len());
        std::fs::write(&large, text + &padding).unwrap();
        open(&TlsFiles { certificate: large.clone(), ..good.clone() })
    };
    assert!(padded(MAX_FILE_BYTES).is_ok());
    assert!(matches!(padded(MAX_FILE_BYTES + 1), Err(TlsError::TooLarge { file }) if file == large));
    let missing = Path::new("/does/not/exist.pem");
    let error = client_config(Some(missing), None).unwrap_err();
    assert!(matches!(&error, TlsError::Unreadable { file, .. } if file == missing), "{error}");
    assert!(error.to_string().contains("No such file"), "{error}");
}

#[test]
fn an_authority_must_be_one() {
    let authority = Authority::new("one");
    let error = client_config(Some(&authority.server("server").certificate), None).unwrap_err();
    assert!(error.to_string().contains("not one of an authority"), "{error}");
}
