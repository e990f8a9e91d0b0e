//! The nodes that ZooKeeper keeps for itself, `/zookeeper/config` and `/zookeeper/quota`: shown, and never changed by clients.
//!
//! Clients such as Curator read `/zookeeper/config` when they connect and from then on use the addresses in it, so these are the ones that
//! clients can reach. Where they are not all known there is no such node: better none than a wrong one.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use bytes::Bytes;
use lockkeeper_core::AclEntry;
use lockkeeper_core::Permissions;
use lockkeeper_zookeeper::Stat;

const ROOT: &str = "/zookeeper";
/// Who leads to whom: it changes with the membership.
pub(super) const CONFIG: &str = "/zookeeper/config";
const QUOTA: &str = "/zookeeper/quota";

static OPEN: LazyLock<Vec<AclEntry>> = LazyLock::new(|| vec![AclEntry::open()]);
static READABLE: LazyLock<Vec<AclEntry>> =
    LazyLock::new(|| vec![AclEntry { permissions: Permissions::READ, ..AclEntry::open() }]);

/// What is there now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Special {
    /// The members, and where clients of this protocol reach them.
    config: Option<Bytes>,
}

/// One of these nodes.
pub(super) struct Node<'a> {
    path: &'static str,
    special: &'a Special,
}

impl Special {
    /// `members` by id, each with the address of its peer door and, where it is known, of the door for these clients.
    pub(super) fn new(members: &BTreeMap<u64, (String, Option<String>)>) -> Self {
        let line = |(id, (peer, client)): (&u64, &(String, Option<String>))| {
            // Peer port, election port, role, then what clients use. There is one port for peers; but who reads this (Curator does, by
            // ZooKeeper's own parser) refuses ports that are alike, so the second is made up. Nobody connects to it.
            let (host, port) = peer.rsplit_once(':')?;
            let client = client.as_deref()?;
            let (peer_port, client_port) = (port.parse::<u16>().ok()?, client.rsplit_once(':')?.1.parse::<u16>().ok()?);
            let mut others = [1_u16, 2].map(|step| peer_port.checked_add(step).unwrap_or(peer_port - step)).into_iter();
            let made_up = others.find(|port| *port != client_port)?;
            Some(format!("server.{id}={host}:{port}:{made_up}:participant;{client}\n"))
        };
        let lines: Option<String> = members.iter().map(line).collect();
        let config = lines.filter(|lines| !lines.is_empty());
        Self { config: config.map(|lines| Bytes::from(format!("{lines}version=0"))) }
    }

    /// Whether the configuration is another.
    pub(super) fn differs(&self, other: &Self) -> bool {
        self.config != other.config
    }

    pub(super) fn node(&self, path: &str) -> Option<Node<'_>> {
        let path = match path {
            ROOT => ROOT,
            QUOTA => QUOTA,
            CONFIG if self.config.is_some() => CONFIG,
            _ => return None,
        };
        Some(Node { path, special: self })
    }

    /// Whether clients may make, change or remove something there: they may not.
    pub(crate) fn is_reserved(path: &str) -> bool {
        path.strip_prefix(ROOT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Whether ZooKeeper itself made the node, and nobody may delete it.
    pub(super) fn is_shown(path: &str) -> bool {
        matches!(path, ROOT | CONFIG | QUOTA)
    }

    /// The names that are shown below a path besides those of the tree.
    pub(super) fn children(&self, path: &str) -> &'static [&'static str] {
        match path {
            "/" => &["zookeeper"],
            ROOT if self.config.is_some() => &["config", "quota"],
            ROOT => &["quota"],
            _ => &[],
        }
    }

    /// How many of these nodes lie below a path.
    pub(super) fn below(&self, path: &str) -> usize {
        let of_root = 1 + usize::from(self.config.is_some());
        match path {
            "/" => 1 + of_root,
            ROOT => of_root,
            _ => 0,
        }
    }
}

/// The bookkeeping of the root, with the child that the tree does not have. ZooKeeper makes that one without counting it, so the version of
/// the children, twice those made less those that are there, is one less.
pub(super) fn stat_of_root(stat: Stat) -> Stat {
    Stat { num_children: stat.num_children + 1, cversion: stat.cversion.wrapping_sub(1), ..stat }
}

impl Node<'_> {
    pub(super) fn data(&self) -> Bytes {
        match (self.path, &self.special.config) {
            (CONFIG, Some(config)) => config.clone(),
            _ => Bytes::new(),
        }
    }

    pub(super) fn stat(&self) -> Stat {
        let children = i32::try_from(self.special.children(self.path).len()).unwrap_or(i32::MAX);
        Stat {
            data_length: i32::try_from(self.data().len()).unwrap_or(i32::MAX),
            num_children: children,
            // Made by ZooKeeper at its start, and not counted.
            cversion: -children,
            aversion: if self.path == CONFIG { -1 } else { 0 },
            version: if self.path == CONFIG { -1 } else { 0 },
            ..Stat::default()
        }
    }

    pub(super) fn acl(&self) -> &'static [AclEntry] {
        if self.path == CONFIG { &READABLE } else { &OPEN }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(clients: [Option<&str>; 2]) -> BTreeMap<u64, (String, Option<String>)> {
        let member = |id: u64, client: Option<&str>| (id, (format!("10.0.0.{id}:7101"), client.map(ToOwned::to_owned)));
        BTreeMap::from([member(1, clients[0]), member(2, clients[1])])
    }

    #[test]
    fn the_configuration_names_where_clients_reach_the_members() {
        let special = Special::new(&members([Some("a.example:2181"), Some("b.example:7102")]));
        let data = special.node("/zookeeper/config").unwrap().data();
        assert_eq!(
            data,
            "server.1=10.0.0.1:7101:7102:participant;a.example:2181\n\
             server.2=10.0.0.2:7101:7103:participant;b.example:7102\nversion=0"
        );
        assert_eq!(special.children("/zookeeper"), ["config", "quota"]);
        assert_eq!((special.below("/"), special.below("/zookeeper"), special.below("/a")), (3, 2, 0));
    }

    #[test]
    fn where_one_address_is_not_known_there_is_no_configuration() {
        let special = Special::new(&members([Some("a.example:2181"), None]));
        assert!(special.node("/zookeeper/config").is_none());
        assert!(special.node("/zookeeper").is_some() && special.node("/zookeeper/quota").is_some());
        assert_eq!(special.node("/zookeeper").unwrap().stat().num_children, 1);
    }

    #[test]
    fn only_what_is_below_is_reserved() {
        assert!(Special::is_reserved("/zookeeper") && Special::is_reserved("/zookeeper/quota/a"));
        assert!(!Special::is_reserved("/zookeepers") && !Special::is_reserved("/"));
    }
}
