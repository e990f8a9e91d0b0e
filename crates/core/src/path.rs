//! Paths of the tree, valid by construction.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

use crate::limits::{MAX_PART_BYTES, MAX_PATH_BYTES};

/// An absolute path such as `/locks/orders/42`. The root is `/`.
///
/// Valid: starts with `/`, has no empty part, no `.` or `..` and no character that ZooKeeper refuses
/// (`PathUtils.validatePath`), and is at most [`MAX_PATH_BYTES`] long with parts of at most [`MAX_PART_BYTES`]
/// (ZooKeeper programmer's guide, "The ZooKeeper Data Model").
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(into = "Arc<str>")]
pub struct NodePath(Arc<str>);

/// What is wrong with a path.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PathError {
    /// It does not start with `/`.
    #[error("a path must start with '/'")]
    NotAbsolute,
    /// Two slashes in a row, or one at the end.
    #[error("a path must not have an empty part")]
    EmptyPart,
    /// A name, as of a lock, that is written like a path.
    #[error("a name does not begin with '/'; leave out the leading slash")]
    LeadingSlash,
    /// The same at its end.
    #[error("a name does not end with '/'; leave out the trailing slash")]
    TrailingSlash,
    /// `.` or `..`.
    #[error("a path must not have the part '{0}'")]
    Relative(&'static str),
    /// A control character, or another one that clients cannot handle.
    #[error("a path must not contain the character U+{0:04X}")]
    Character(u32),
    /// Too long in all.
    #[error("a path is at most {MAX_PATH_BYTES} bytes long, this one has {0}")]
    TooLong(usize),
    /// One part is too long.
    #[error("a part of a path is at most {MAX_PART_BYTES} bytes long, one here has {0}")]
    PartTooLong(usize),
}

impl NodePath {
    /// The root, `/`.
    pub fn root() -> Self {
        Self(Arc::from("/"))
    }

    /// Validates `path`.
    ///
    /// # Errors
    /// Says which rule the path breaks.
    pub fn parse(path: &str) -> Result<Self, PathError> {
        check(path)?;
        Ok(Self(Arc::from(path)))
    }

    /// Validates the path of a node below `root` that has this name, of one part or more.
    ///
    /// # Errors
    /// Says which rule the name breaks.
    pub(crate) fn of_name(root: &str, name: &str) -> Result<Self, PathError> {
        match (name.starts_with('/'), name.ends_with('/')) {
            _ if name.is_empty() => Err(PathError::EmptyPart),
            (false, false) => Self::parse(&format!("{root}/{name}")),
            (true, _) => Err(PathError::LeadingSlash),
            (false, true) => Err(PathError::TrailingSlash),
        }
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is `/`.
    pub fn is_root(&self) -> bool {
        &*self.0 == "/"
    }

    /// The path without its last part; `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        self.parent_str().map(|parent| Self(Arc::from(parent)))
    }

    /// The same as text.
    pub(crate) fn parent_str(&self) -> Option<&str> {
        match self.directory() {
            _ if self.is_root() => None,
            "" => Some("/"),
            directory => Some(directory),
        }
    }

    /// The parent's path as text; empty for the root and its children.
    pub(crate) fn directory(&self) -> &str {
        self.0.rsplit_once('/').map_or("", |(directory, _)| directory)
    }

    /// The text before the slash of a child: the path itself, and empty for the root.
    pub(crate) fn top(&self) -> &str {
        if self.is_root() { "" } else { &self.0 }
    }

    /// The last part; empty for the root.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// The path of a child.
    ///
    /// # Errors
    /// Says which rule the result breaks; `name` must be one part.
    pub fn child(&self, name: &str) -> Result<Self, PathError> {
        if name.is_empty() || name.contains('/') {
            return Err(PathError::EmptyPart);
        }
        let joined = if self.is_root() { format!("/{name}") } else { format!("{}/{name}", self.0) };
        Self::parse(&joined)
    }

    /// Whether `self` is `other` or lies below it.
    pub fn is_within(&self, other: &Self) -> bool {
        other.is_root() || self.0.strip_prefix(&*other.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

fn check(path: &str) -> Result<(), PathError> {
    if path.len() > MAX_PATH_BYTES {
        return Err(PathError::TooLong(path.len()));
    }
    if path == "/" {
        return Ok(());
    }
    let parts = path.strip_prefix('/').ok_or(PathError::NotAbsolute)?;
    parts.split('/').try_for_each(check_part)
}

fn check_part(part: &str) -> Result<(), PathError> {
    match part {
        "" => return Err(PathError::EmptyPart),
        "." => return Err(PathError::Relative(".")),
        ".." => return Err(PathError::Relative("..")),
        _ if part.len() > MAX_PART_BYTES => return Err(PathError::PartTooLong(part.len())),
        _ => {}
    }
    match part.chars().find(|c| is_refused(*c)) {
        Some(c) => Err(PathError::Character(c as u32)),
        None => Ok(()),
    }
}

/// Control characters, private-use characters, and characters that Java encodes as a surrogate pair, which its
/// clients cannot address.
fn is_refused(c: char) -> bool {
    c.is_control() || matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..)
}

/// Refuses characters that make a name look like another one: those that change the direction of text or end its line
/// (Unicode's Bidi_Control, U+2028 and U+2029). People read the names of locks and gates; ZooKeeper's clients may use
/// these characters in names of nodes.
///
/// # Errors
/// Names the character.
pub(crate) fn check_readable(name: &str) -> Result<(), PathError> {
    let misleading =
        |c: &char| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    match name.chars().find(misleading) {
        Some(c) => Err(PathError::Character(c as u32)),
        None => Ok(()),
    }
}

/// Copies the text once; `Arc<str>` itself is decoded by way of a string.
impl<'de> Deserialize<'de> for NodePath {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(ParsedText("a path", NodePath::parse))
    }
}

/// Decodes a text, of which it says what it is, by parsing it.
pub(crate) struct ParsedText<T>(pub(crate) &'static str, pub(crate) fn(&str) -> Result<T, PathError>);

impl<T> Visitor<'_> for ParsedText<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        (self.1)(text).map_err(E::custom)
    }
}

impl From<NodePath> for Arc<str> {
    fn from(path: NodePath) -> Self {
        path.0
    }
}

/// Ordered and hashed as its text, so that a map of paths can be searched by text, a prefix for instance.
impl Borrow<str> for NodePath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_paths_are_taken() {
        for path in ["/", "/a", "/a/b", "/locks/orders/42", "/ä/ö", "/a.b/..c", "/あ", "/\u{ffef}", "/\u{202e}"] {
            assert_eq!(NodePath::parse(path).expect(path).as_str(), path);
        }
    }

    #[test]
    fn bad_paths_are_refused() {
        for path in [
            "",
            "a",
            "//",
            "/a/",
            "/a//b",
            "/.",
            "/a/../b",
            "/a\0",
            "/a\n",
            "/\u{7f}",
            "/\u{9f}",
            "/\u{e000}",
            "/\u{f8ff}",
            "/\u{ffff}",
            "/\u{1f512}",
        ] {
            assert!(NodePath::parse(path).is_err(), "{path:?} was taken");
        }
        assert_eq!(NodePath::parse(&format!("/{}", "x".repeat(256))), Err(PathError::PartTooLong(256)));
        assert_eq!(NodePath::parse(&"/x".repeat(513)), Err(PathError::TooLong(1026)));
    }

    #[test]
    fn parents_and_children() {
        let path = NodePath::parse("/a/b").expect("valid");
        assert_eq!(path.parent().expect("has one").as_str(), "/a");
        assert_eq!(path.parent().and_then(|p| p.parent()), Some(NodePath::root()));
        assert_eq!(NodePath::root().parent(), None);
        assert_eq!(path.child("c").expect("valid").as_str(), "/a/b/c");
        assert_eq!(NodePath::root().child("c").expect("valid").name(), "c");
        assert!(path.child("c/d").is_err());
        assert!(path.is_within(&NodePath::root()) && path.is_within(&path));
        assert!(!NodePath::parse("/ab").expect("valid").is_within(&NodePath::parse("/a").expect("valid")));
    }
}
