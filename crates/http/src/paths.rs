//! Names with slashes in paths. `/v1/locks/orders/42/acquire` is folded into `/v1/locks/orders%2F42/acquire`, so that
//! one path parameter holds the name, the router stays a plain table, and decoding happens exactly once, in the router.
//!
//! The verb is the last part, for the methods that have verbs: `GET /v1/locks/a/acquire` shows the lock `a/acquire`,
//! `POST` on the same path acquires the lock `a`.

use std::borrow::Cow;
use std::sync::LazyLock;

use axum::http::Method;
use axum::http::uri::{PathAndQuery, Uri};
use lockkeeper_api::access::Resource;
use lockkeeper_api::row::Row;
use lockkeeper_api::{CallKind, Code};
use lockkeeper_service::failure::Failure;

const COUNTERS: &str = "/v1/counters/";
const NODES: &str = "/v1/nodes";
/// Longest path, encoded: a name of 1,024 bytes with every byte encoded, and the rest.
const MAX_PATH_BYTES: usize = 4 * 1024;

/// The URI with its name folded into one part; `None` if it stays as it is.
pub(crate) fn fold(method: &Method, uri: &Uri) -> Result<Option<Uri>, Failure> {
    let path = uri.path();
    check(path)?;
    let folded = if let Some(rest) = path.strip_prefix(COUNTERS) {
        encode(rest).map(|name| format!("{COUNTERS}{name}"))
    } else if let Some(rest) = path.strip_prefix(NODES) {
        fold_node(rest)?
    } else {
        fold_named(method, path)?
    };
    let Some(folded) = folded else { return Ok(None) };
    let text = match uri.query() {
        Some(query) => format!("{folded}?{query}"),
        None => folded,
    };
    // It was a valid path, and `%2F` for `/` keeps it one.
    let path_and_query =
        PathAndQuery::try_from(text).map_err(|error| Failure::new(Code::BadPath, error.to_string()))?;
    Ok(Some(Uri::from(path_and_query)))
}

/// Checks length and percent encoding.
pub(crate) fn check(path: &str) -> Result<(), Failure> {
    if path.len() > MAX_PATH_BYTES {
        let detail = format!("the path has {} bytes, more than any name can need ({MAX_PATH_BYTES})", path.len());
        return Err(Failure::new(Code::BadPath, detail));
    }
    let mut rest = path.as_bytes();
    while let Some(at) = rest.iter().position(|b| *b == b'%') {
        match rest.get(at + 1..at + 3) {
            Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => rest = &rest[at + 3..],
            _ => {
                return Err(Failure::new(
                    Code::BadPath,
                    "'%' in a path must be followed by two hex digits; a '%' itself is written %25",
                ));
            }
        }
    }
    Ok(())
}

/// The rows with a name in their route, and what stands there before and after the name.
static NAMED: LazyLock<Vec<(&Row, &str, &str)>> = LazyLock::new(|| {
    let named = CallKind::rows().filter(|row| row.parts.first().is_some_and(|part| !part.is_number()));
    named.map(|row| (row, row.around_part().0, row.around_part().1)).collect()
});

/// Folds the name of a lock, a gate or a rate limit: what stands between the beginning of their routes and the end of
/// one for this method.
fn fold_named(method: &Method, path: &str) -> Result<Option<String>, Failure> {
    let alike = || NAMED.iter().filter(|(_, beginning, _)| path.starts_with(beginning));
    let Some((first, beginning, _)) = alike().next() else { return Ok(None) };
    let rest = &path[beginning.len()..];
    let name_for =
        |method: &str| alike().filter(|(row, ..)| row.method == method).find_map(|(.., end)| before(end, rest));
    let mut name = name_for(method.as_str());
    // A lock's verb is one for other methods too, so that the answer says which method it takes.
    if name.is_none() && first.resource() == Resource::Locks && !matches!(*method, Method::GET | Method::HEAD) {
        name = name_for("POST");
    }
    let (name, verb) = rest.split_at(name.unwrap_or(rest).len());
    if name.is_empty() {
        let what = match first.resource() {
            Resource::Gates => "key of the gate",
            Resource::Rates => "name of the rate limit",
            _ => "name of the lock",
        };
        return Err(Failure::new(Code::BadPath, format!("the {what} is missing in the path")));
    }
    Ok(encode(name).map(|name| format!("{beginning}{name}{verb}")))
}

/// What stands before the end of a route, if it has one and the text ends like it.
fn before<'p>(end: &str, text: &'p str) -> Option<&'p str> {
    match end.split_once("/{") {
        Some((verb, _)) => text.rsplit_once('/')?.0.strip_suffix(verb),
        None => text.strip_suffix(end).filter(|_| !end.is_empty()),
    }
}

fn fold_node(rest: &str) -> Result<Option<String>, Failure> {
    match rest.strip_prefix('/') {
        // The root has no name; a slash stands for it.
        Some("") => Ok(Some(format!("{NODES}/%2F"))),
        None if rest.is_empty() => Ok(Some(format!("{NODES}/%2F"))),
        Some("/") => Err(Failure::new(Code::BadPath, "a path must not have an empty part")),
        Some(name) => Ok(encode(name).map(|name| format!("{NODES}/{name}"))),
        None => Ok(None),
    }
}

fn encode(name: &str) -> Option<Cow<'_, str>> {
    name.contains('/').then(|| Cow::Owned(name.replace('/', "%2F")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(method: &Method, path: &str) -> Result<String, Code> {
        let uri: Uri = path.parse().unwrap();
        match fold(method, &uri) {
            Ok(Some(uri)) => Ok(uri.to_string()),
            Ok(None) => Ok(path.to_owned()),
            Err(failure) => Err(failure.code()),
        }
    }

    #[test]
    fn names_become_one_part() {
        for (method, path, wanted) in [
            (Method::POST, "/v1/locks/a/acquire", "/v1/locks/a/acquire"),
            (Method::POST, "/v1/locks/a/b/acquire", "/v1/locks/a%2Fb/acquire"),
            (Method::POST, "/v1/locks/a/acquire/acquire?x=1", "/v1/locks/a%2Facquire/acquire?x=1"),
            (Method::GET, "/v1/locks/a/acquire", "/v1/locks/a%2Facquire"),
            (Method::POST, "/v1/locks/acquire", "/v1/locks/acquire"),
            (Method::POST, "/v1/locks/a/../b/release", "/v1/locks/a%2F..%2Fb/release"),
            (Method::DELETE, "/v1/locks/a/b/holders/7", "/v1/locks/a%2Fb/holders/7"),
            (Method::GET, "/v1/locks/a/holders/7", "/v1/locks/a%2Fholders%2F7"),
            (Method::POST, "/v1/locks/a/b/downgrade", "/v1/locks/a%2Fb/downgrade"),
            (Method::POST, "/v1/gates/a/b/begin", "/v1/gates/a%2Fb/begin"),
            (Method::POST, "/v1/gates/a/fail/finish", "/v1/gates/a%2Ffail/finish"),
            (Method::GET, "/v1/gates/a/begin", "/v1/gates/a%2Fbegin"),
            (Method::POST, "/v1/rates/a/b/take", "/v1/rates/a%2Fb/take"),
            (Method::GET, "/v1/rates/a/take", "/v1/rates/a%2Ftake"),
            (Method::POST, "/v1/counters/a/b", "/v1/counters/a%2Fb"),
            (Method::GET, "/v1/nodes", "/v1/nodes/%2F"),
            (Method::GET, "/v1/nodes/?children=true", "/v1/nodes/%2F?children=true"),
            (Method::GET, "/v1/nodes/a//b/", "/v1/nodes/a%2F%2Fb%2F"),
            (Method::GET, "/v1/nodesx", "/v1/nodesx"),
            (Method::GET, "/v1/nodes/a%2520", "/v1/nodes/a%2520"),
        ] {
            assert_eq!(folded(&method, path).as_deref(), Ok(wanted), "{method} {path}");
        }
    }

    #[test]
    fn bad_paths_are_refused_before_the_router() {
        for (method, path) in [
            (Method::POST, "/v1/locks//acquire"),
            (Method::GET, "/v1/locks/"),
            (Method::GET, "/v1/gates/"),
            (Method::POST, "/v1/gates//begin"),
            (Method::GET, "/v1/rates/"),
            (Method::POST, "/v1/rates//take"),
            (Method::GET, "/v1/nodes//"),
            (Method::GET, "/v1/nodes/%zz"),
            (Method::GET, "/v1/nodes/a%2"),
            (Method::GET, "/healthz%"),
        ] {
            assert_eq!(folded(&method, path), Err(Code::BadPath), "{method} {path}");
        }
        let long = format!("/v1/nodes/{}", "x".repeat(MAX_PATH_BYTES));
        assert_eq!(folded(&Method::GET, &long), Err(Code::BadPath));
    }
}
