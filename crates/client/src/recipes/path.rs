//! Paths of recipes, and the creation of nodes there.
//!
//! Directories above a recipe's node are containers, which the cluster removes when they have been empty for a while.
//! So a creation may find that its directory is gone, and creates it again.

use lockkeeper_api::Code;
use lockkeeper_api::nodes::{Changed, Create, Kind};

use super::error::RecipeError;
use crate::client::Client;
use crate::error::Error;
use crate::routes::create_spec;
use crate::tracked_change::TrackedChange;

/// Longest path, in bytes; the server's own bound.
const MAX_PATH_BYTES: usize = 1024;
/// Longest part of a path, in bytes; the server's own bound.
const MAX_PART_BYTES: usize = 255;
/// Room for the nodes that a recipe creates below its path.
const ROOM_BYTES: usize = 300;
/// Directories of other parts of Lockkeeper, which have rules of their own.
const RESERVED: [&str; 4] = ["/locks", "/gates", "/rates", "/zookeeper"];
/// Most directories that one creation makes: a path has at most half as many parts as bytes, and some may vanish again.
const MAX_DIRECTORIES_MADE: usize = 600;

/// A path that a recipe may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecipePath(String);

impl RecipePath {
    /// Checks a path for a recipe that writes there.
    pub(crate) fn parse(path: &str) -> Result<Self, RecipeError> {
        let bad = |why: &str| Err(RecipeError::BadPath { path: path.into(), why: why.into() });
        check(path, ROOM_BYTES)?;
        if path == "/" {
            return bad("the root cannot be used; give a path such as /app/name");
        }
        let within =
            |root: &&&str| path.strip_prefix(**root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        match RESERVED.iter().find(within) {
            Some(root) => bad(&format!("nodes below {root} have rules of their own; give a path elsewhere")),
            None => Ok(Self(path.into())),
        }
    }

    /// Checks a path for a recipe that only reads there: any valid path is accepted.
    pub(crate) fn readable(path: &str) -> Result<Self, RecipeError> {
        check(path, 0)?;
        Ok(Self(path.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The path of a child whose name the recipe chose.
    pub(crate) fn child(&self, name: &str) -> String {
        if self.0 == "/" { format!("/{name}") } else { format!("{}/{name}", self.0) }
    }
}

/// Checks a name that a user chose for a child.
pub(crate) fn check_part(name: &str) -> Result<(), RecipeError> {
    let bad = |why: String| Err(RecipeError::BadPath { path: name.into(), why });
    match name {
        "" => return bad("a part of it is empty: leave out the slash at the beginning, at the end or twice".into()),
        "." | ".." => return bad("'.' and '..' are no names".into()),
        _ if name.contains('/') => return bad("a name takes no '/'".into()),
        _ if name.len() > MAX_PART_BYTES => {
            return bad(format!("a part is at most {MAX_PART_BYTES} bytes long, this one has {}", name.len()));
        }
        _ => {}
    }
    match name.chars().find(|c| c.is_control() || matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..)) {
        Some(c) => bad(format!("the character U+{:04X} cannot be part of it", c as u32)),
        None => Ok(()),
    }
}

fn check(path: &str, room: usize) -> Result<(), RecipeError> {
    let bad = |why: String| Err(RecipeError::BadPath { path: path.into(), why });
    let Some(parts) = path.strip_prefix('/') else { return bad("a path is absolute: it begins with '/'".into()) };
    if path.len() + room > MAX_PATH_BYTES {
        return bad(format!("it has {} bytes, at most {} will do here", path.len(), MAX_PATH_BYTES - room));
    }
    if parts.is_empty() {
        return Ok(());
    }
    let named = |error| match error {
        RecipeError::BadPath { why, .. } => RecipeError::BadPath { path: path.into(), why },
        other => other,
    };
    parts.split('/').try_for_each(check_part).map_err(named)
}

pub(crate) fn parent(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(at) => &path[..at],
    }
}

/// Creates a directory and those above it, as containers. An existing directory is no error.
pub(crate) async fn make_directories(client: &Client, directory: &str) -> Result<(), Error> {
    let container = Create { kind: Kind::Container, ..Create::default() };
    let mut made = 0;
    // Upwards until one directory can be created, then down again.
    let mut missing = vec![directory];
    while let Some(path) = missing.last().copied().filter(|path| *path != "/") {
        match client.create(path, &container).await {
            Ok(_) => drop(missing.pop()),
            Err(error) if error.code() == Some(Code::NodeExists) => drop(missing.pop()),
            Err(error) if error.code() == Some(Code::NoNode) && made < MAX_DIRECTORIES_MADE => {
                made += 1;
                missing.push(parent(path));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Creates a node, and the missing directories above it.
pub(crate) async fn create_node(client: &Client, path: &str, create: &Create) -> Result<Changed, Error> {
    create_node_tracked(client, path, create, &mut None).await
}

/// As [`create_node`]. After an error `undecided` has the creation that may still take effect, if there is one.
pub(crate) async fn create_node_tracked(
    client: &Client,
    path: &str,
    create: &Create,
    undecided: &mut Option<TrackedChange>,
) -> Result<Changed, Error> {
    let mut made = 0;
    loop {
        let done = undecided.insert(TrackedChange::new(create_spec(path, create)?)).send(client).await;
        if !matches!(done, Err(Error::UnknownOutcome(_) | Error::NotLockkeeper { .. })) {
            *undecided = None;
        }
        match done {
            Err(error) if error.code() == Some(Code::NoNode) && made < MAX_DIRECTORIES_MADE => {
                made += 1;
                make_directories(client, parent(path)).await?;
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_checked_before_anything_is_asked() {
        for good in ["/a", "/a/b", "/app/ü/x y", "/lockss"] {
            assert_eq!(RecipePath::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "a", "/", "/a/", "//a", "/a/../b", "/a/.", "/a\n", "/locks", "/locks/x", "/gates/k", "/rates/r"]
        {
            assert!(matches!(RecipePath::parse(bad), Err(RecipeError::BadPath { .. })), "{bad:?} was taken");
        }
        assert!(RecipePath::parse(&format!("/{}", "x".repeat(256))).is_err());
        assert!(RecipePath::parse(&"/x".repeat(400)).is_err());
        assert!(
            RecipePath::readable("/").is_ok()
                && RecipePath::readable("/locks/x").is_ok()
                && RecipePath::readable("x").is_err()
        );
        assert_eq!(RecipePath::readable("/").unwrap().child("a"), "/a");
        assert_eq!((parent("/a/b"), parent("/a")), ("/a", "/"));
        assert!(check_part("a/b").is_err() && check_part("").is_err() && check_part("a b").is_ok());
    }
}
