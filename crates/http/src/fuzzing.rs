//! Entries for fuzzing (`crates/fuzz`); not part of the interface.

use axum::http::{Method, Uri};

use crate::paths;

/// Reads bytes as a message of a client on its session stream; panics where something does not hold.
pub fn stream_message(bytes: &[u8]) {
    // A WebSocket's text is checked before it gets there.
    if let Ok(text) = std::str::from_utf8(bytes) {
        crate::stream::fuzzing::examine(text);
    }
}

/// Reads bytes as a method and the path of a request; panics where something does not hold. The first byte chooses the
/// method.
pub fn http_path(bytes: &[u8]) {
    let Some((method, path)) = bytes.split_first() else { return };
    let methods = [Method::GET, Method::POST, Method::PUT, Method::DELETE];
    let method = &methods[usize::from(*method) % methods.len()];
    let Ok(uri) = Uri::try_from(path) else { return };
    match paths::fold(method, &uri) {
        Ok(Some(folded)) => {
            assert!(paths::check(folded.path()).is_ok() || folded.path().len() > uri.path().len(), "{folded}");
            assert_eq!(folded.query(), uri.query());
        }
        Ok(None) => {}
        Err(failure) => assert!((400..500).contains(&failure.status()), "{}", failure.status()),
    }
}
