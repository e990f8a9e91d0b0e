//! What the log did to nodes: creations and deletions, and the lives of nodes that follow from them.

use std::collections::{BTreeMap, BTreeSet};

use crate::name;

/// A node was created or deleted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeEvent {
    /// In which transaction.
    pub zxid: u64,
    /// Created, or deleted.
    pub created: bool,
    /// Where.
    pub path: String,
}

/// A node's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// Its name in its directory.
    pub name: String,
    /// The zxid that created it: for a request its token.
    pub token: u64,
    /// The zxid that deleted it.
    pub gone: Option<u64>,
}

impl Life {
    /// Whether it stood right after that zxid.
    pub fn stands_after(&self, zxid: u64) -> bool {
        self.token <= zxid && self.gone.is_none_or(|gone| gone > zxid)
    }

    /// Whether it is a request or a kept place, and not some other child.
    pub fn is_request(&self) -> bool {
        name::parse(&self.name).is_some()
    }
}

/// The lives of a directory's children, in the order in which they were created.
///
/// # Errors
/// A node is created while it is there, or deleted while it is not: the history has a hole.
pub fn lives(events: &BTreeSet<NodeEvent>, directory: &str) -> Result<Vec<Life>, String> {
    let mut standing: BTreeMap<&str, usize> = BTreeMap::new();
    let mut lives: Vec<Life> = Vec::new();
    // In one transaction deletions come first: a node may be replaced under its own name.
    for event in events {
        let Some(name) = event.path.strip_prefix(directory).and_then(|rest| rest.strip_prefix('/')) else { continue };
        if name.contains('/') {
            continue;
        }
        if event.created {
            if standing.insert(name, lives.len()).is_some() {
                return Err(format!("{} was created at {} and had not gone", event.path, event.zxid));
            }
            lives.push(Life { name: name.to_owned(), token: event.zxid, gone: None });
        } else {
            match standing.remove(name) {
                Some(at) => lives[at].gone = Some(event.zxid),
                None => return Err(format!("{} went at {} and had not come", event.path, event.zxid)),
            }
        }
    }
    Ok(lives)
}

/// What these lives did, by transaction: created (true) and deleted, deletions first.
pub fn transactions(lives: &[Life]) -> BTreeMap<u64, BTreeSet<(bool, &str)>> {
    let mut transactions: BTreeMap<u64, BTreeSet<(bool, &str)>> = BTreeMap::new();
    for life in lives {
        transactions.entry(life.token).or_default().insert((true, &life.name));
        if let Some(gone) = life.gone {
            transactions.entry(gone).or_default().insert((false, &life.name));
        }
    }
    transactions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(list: &[(u64, bool, &str)]) -> BTreeSet<NodeEvent> {
        list.iter()
            .map(|(zxid, created, path)| NodeEvent { zxid: *zxid, created: *created, path: (*path).into() })
            .collect()
    }

    #[test]
    fn lives_are_rebuilt_and_holes_are_found() {
        let good = events(&[
            (3, true, "/l/a"),
            (4, true, "/l"),
            (5, true, "/l/a/deep"),
            (6, false, "/l/a"),
            (6, true, "/l/b"),
        ]);
        let lived = lives(&good, "/l").unwrap();
        assert_eq!(lived.len(), 2);
        assert_eq!((lived[0].token, lived[0].gone, lived[1].gone), (3, Some(6), None));
        assert!(lives(&events(&[(3, false, "/l/a")]), "/l").unwrap_err().contains("had not come"));
        assert!(lives(&events(&[(3, true, "/l/a"), (4, true, "/l/a")]), "/l").unwrap_err().contains("had not gone"));
        // A node replaced in one transaction under its own name.
        assert_eq!(lives(&events(&[(3, true, "/l/a"), (4, true, "/l/a"), (4, false, "/l/a")]), "/l").unwrap().len(), 2);
    }

    #[test]
    fn other_children_are_no_requests() {
        let is_request = |name: &str| Life { name: name.into(), token: 1, gone: None }.is_request();
        assert!(is_request("_c_x-lock-0000000001"));
        for other in ["t7-c1", "n_0000000001", "latch-0000000001"] {
            assert!(!is_request(other), "{other}");
        }
    }
}
