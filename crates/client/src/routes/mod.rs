//! The routes of the HTTP interface as typed methods of [`Client`](crate::Client).

mod access;
mod cluster;
mod gates;
mod locks;
mod nodes;
mod observe;
mod rates;
mod sessions;

use lockkeeper_api::Code;
use lockkeeper_api::Level;

use crate::error::Error;

pub(crate) use gates::begin_spec;
pub(crate) use locks::release_spec;
pub(crate) use nodes::{create_spec, txn_spec};

/// A page of a list.
#[derive(Clone, Debug, Default)]
pub struct Paging {
    /// The `next` of the previous page.
    pub after: Option<String>,
    /// The most items of the page; the server has its own limit.
    pub limit: Option<u32>,
    /// Read from the server's own replica, which may be stale.
    pub stale: bool,
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

/// A page of a list.
pub(crate) fn refuse_dots(text: &str) -> Result<(), Error> {
    match text.split('/').find(|part| matches!(*part, "." | "..")) {
        Some(part) => {
            Err(Error::refused(Code::BadPath, format!("'{text}' has a part '{part}', which a path must not have")))
        }
        None => Ok(()),
    }
}

/// The name of a lock.
fn lock_name(lock: &str) -> Result<String, Error> {
    refuse_dots(lock)?;
    if lock.is_empty() {
        return Err(Error::refused(Code::BadPath, "the name of a lock has at least one character"));
    }
    Ok(lock.to_owned())
}

/// The path of a node.
fn node_path(path: &str) -> Result<String, Error> {
    refuse_dots(path)?;
    if !path.starts_with('/') {
        return Err(Error::refused(Code::BadPath, format!("'{path}' does not begin with '/'; paths are absolute")));
    }
    Ok(path.to_owned())
}

/// How current a read must be.
fn level(stale: bool) -> Option<Level> {
    stale.then_some(Level::Stale)
}

/// So many entries of a page.
fn limit(asked: Option<u32>) -> Option<usize> {
    asked.and_then(|limit| usize::try_from(limit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_url_would_change_are_refused() {
        for bad in ["", "a", "/a/../b", "/."] {
            assert_eq!(node_path(bad).unwrap_err().code(), Some(Code::BadPath), "{bad}");
        }
        assert!(lock_name("..").is_err() && lock_name("").is_err());
        assert!(lock_name("a..b").is_ok());
    }
}
