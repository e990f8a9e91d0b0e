//! The routes of the HTTP interface as typed methods of [`Client`](crate::Client).

mod cluster;
mod gates;
mod locks;
mod nodes;
mod sessions;

use std::fmt::Write;

use lockkeeper_api::Code;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::error::Error;

pub(crate) use locks::release_spec;
pub(crate) use nodes::{create_spec, txn_spec};

/// Everything but RFC 3986's unreserved characters.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A page of a list.
#[derive(Clone, Debug, Default)]
pub struct Paging {
    /// The `next` of the previous page.
    pub after: Option<String>,
    /// The most items of the page; the server has its own limit.
    pub limit: Option<u32>,
}

/// Options of a read.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Whether to list the names of its children.
    pub children: bool,
    /// The `next_children` of the previous page.
    pub children_after: Option<String>,
    /// The most names of children; the server has its own limit.
    pub children_limit: Option<u32>,
    /// Read from the server's own replica, which may be stale.
    pub stale: bool,
}

pub(crate) fn percent_encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// URLs resolve `.` and `..` before they are sent, even when encoded: such a path would silently name another node.
fn refuse_dots(text: &str) -> Result<(), Error> {
    match text.split('/').find(|part| matches!(*part, "." | "..")) {
        Some(part) => {
            Err(Error::refused(Code::BadPath, format!("'{text}' has a part '{part}', which a path must not have")))
        }
        None => Ok(()),
    }
}

/// The name of a lock as one segment of a URL's path.
pub(crate) fn lock_part(lock: &str) -> Result<String, Error> {
    refuse_dots(lock)?;
    if lock.is_empty() {
        return Err(Error::refused(Code::BadPath, "the name of a lock has at least one character"));
    }
    Ok(percent_encode(lock))
}

/// The path of a node behind `/v1/nodes`.
fn node_path(path: &str) -> Result<String, Error> {
    refuse_dots(path)?;
    if !path.starts_with('/') {
        return Err(Error::refused(Code::BadPath, format!("'{path}' does not begin with '/'; paths are absolute")));
    }
    let parts: Vec<String> = path.split('/').map(percent_encode).collect();
    Ok(parts.join("/"))
}

/// Collects `key=value` pairs.
#[derive(Default)]
pub(crate) struct Query(String);

impl Query {
    pub(crate) fn with(mut self, key: &str, value: impl std::fmt::Display) -> Self {
        let mark = if self.0.is_empty() { '?' } else { '&' };
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{mark}{key}={}", percent_encode(&value.to_string()));
        self
    }

    pub(crate) fn maybe(self, key: &str, value: Option<impl std::fmt::Display>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    pub(crate) fn paged(self, paging: &Paging) -> Self {
        self.maybe("after", paging.after.as_ref()).maybe("limit", paging.limit)
    }

    pub(crate) fn behind(self, path: &str) -> String {
        format!("{path}{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_survive_the_url() {
        assert_eq!(lock_part("orders/42 ü?#").unwrap(), "orders%2F42%20%C3%BC%3F%23");
        assert_eq!(node_path("/a b/ü%").unwrap(), "/a%20b/%C3%BC%25");
        assert_eq!(node_path("/").unwrap(), "/");
        for bad in ["", "a", "/a/../b", "/."] {
            assert_eq!(node_path(bad).unwrap_err().code(), Some(Code::BadPath), "{bad}");
        }
        assert!(lock_part("..").is_err() && lock_part("").is_err());
        assert!(lock_part("a..b").is_ok());
    }

    #[test]
    fn queries() {
        let query = Query::default().with("path", "/a&b").maybe("from", None::<u64>).with("n", 1);
        assert_eq!(query.behind("/x"), "/x?path=%2Fa%26b&n=1");
    }
}
