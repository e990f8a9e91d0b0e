//! ZooKeeper's system nodes, `/zookeeper/config` and `/zookeeper/quota`. Clients can read them and never change them.
//!
//! Clients such as Curator read `/zookeeper/config` when they connect and then use its addresses, so these must be
//! reachable by clients. If an address is unknown the node does not exist: better no node than a wrong one.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use bytes::Bytes;
use lockkeeper_core::AclEntry;
use lockkeeper_core::Permissions;
use lockkeeper_service::system_nodes::ROOT;
use lockkeeper_zookeeper::Stat;

/// The members' addresses; changes with the membership.
pub(super) const CONFIG: &str = "/zookeeper/config";
const QUOTA: &str = "/zookeeper/quota";

static OPEN: LazyLock<Vec<AclEntry>> = LazyLock::new(|| vec![AclEntry::open()]);
static READABLE: LazyLock<Vec<AclEntry>> =
    LazyLock::new(|| vec![AclEntry { permissions: Permissions::READ, ..AclEntry::open() }]);

/// Peer address and address of the ZooKeeper frontend, by node id.
type Addresses = BTreeMap<u64, (String, Option<String>)>;

/// The present system nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct SystemNodes {
    /// The members with the addresses of their ZooKeeper frontends.
    config: Option<Bytes>,
}

/// One system node.
pub(super) struct SystemNode<'a> {
    path: &'static str,
    system_nodes: &'a SystemNodes,
}

impl SystemNodes {
    /// Members by id, each with its peer address and, if known, the address of its ZooKeeper frontend. ZooKeeper's word
    /// for front nodes is observers. One without such an address serves none of ZooKeeper's clients and is left out.
    pub(super) fn new(voters: &Addresses, fronts: &Addresses) -> Self {
        let line = |role: &str, id: &u64, (peer, client): &(String, Option<String>)| {
            // Peer port, election port, role, then the client address. Here is only one peer port, but ZooKeeper's
            // parser (which Curator uses) refuses equal ports, so the election port is made up. Nobody connects to it.
            let (host, port) = peer.rsplit_once(':')?;
            let client = client.as_deref()?;
            let (peer_port, client_port) = (port.parse::<u16>().ok()?, client.rsplit_once(':')?.1.parse::<u16>().ok()?);
            let mut others = [1_u16, 2].map(|step| peer_port.checked_add(step).unwrap_or(peer_port - step)).into_iter();
            let made_up = others.find(|port| *port != client_port)?;
            Some(format!("server.{id}={host}:{port}:{made_up}:{role};{client}\n"))
        };
        let participants: Option<String> = voters.iter().map(|(id, at)| line("participant", id, at)).collect();
        let observers: String = fronts.iter().filter_map(|(id, at)| line("observer", id, at)).collect();
        let config = participants.filter(|lines| !lines.is_empty());
        Self { config: config.map(|lines| Bytes::from(format!("{lines}{observers}version=0"))) }
    }

    pub(super) fn differs(&self, other: &Self) -> bool {
        self.config != other.config
    }

    pub(super) fn node(&self, path: &str) -> Option<SystemNode<'_>> {
        let path = match path {
            ROOT => ROOT,
            QUOTA => QUOTA,
            CONFIG if self.config.is_some() => CONFIG,
            _ => return None,
        };
        Some(SystemNode { path, system_nodes: self })
    }

    /// Whether a path is a system node, which nobody may delete.
    pub(super) fn is_shown(path: &str) -> bool {
        matches!(path, ROOT | CONFIG | QUOTA)
    }

    /// System nodes among the children of a path.
    pub(super) fn children(&self, path: &str) -> &'static [&'static str] {
        match path {
            "/" => &["zookeeper"],
            ROOT if self.config.is_some() => &["config", "quota"],
            ROOT => &["quota"],
            _ => &[],
        }
    }

    /// Number of system nodes below a path, at any depth.
    pub(super) fn below(&self, path: &str) -> usize {
        let of_root = 1 + usize::from(self.config.is_some());
        match path {
            "/" => 1 + of_root,
            ROOT => of_root,
            _ => 0,
        }
    }
}

/// The root's stat with the child `/zookeeper`, which the tree does not have. ZooKeeper creates that child without
/// counting it, so cversion (twice the children created less those present) is one less.
pub(super) fn stat_of_root(stat: Stat) -> Stat {
    Stat { num_children: stat.num_children + 1, cversion: stat.cversion.wrapping_sub(1), ..stat }
}

impl SystemNode<'_> {
    pub(super) fn data(&self) -> Bytes {
        match (self.path, &self.system_nodes.config) {
            (CONFIG, Some(config)) => config.clone(),
            _ => Bytes::new(),
        }
    }

    pub(super) fn stat(&self) -> Stat {
        let children = i32::try_from(self.system_nodes.children(self.path).len()).unwrap_or(i32::MAX);
        Stat {
            data_length: i32::try_from(self.data().len()).unwrap_or(i32::MAX),
            num_children: children,
            // ZooKeeper creates these children at its start without counting them.
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

    fn members(clients: [Option<&str>; 2]) -> Addresses {
        let member = |id: u64, client: Option<&str>| (id, (format!("10.0.0.{id}:7101"), client.map(ToOwned::to_owned)));
        BTreeMap::from([member(1, clients[0]), member(2, clients[1])])
    }

    #[test]
    fn the_configuration_names_where_clients_reach_the_members() {
        let system_nodes =
            SystemNodes::new(&members([Some("a.example:2181"), Some("b.example:7102")]), &Addresses::new());
        let data = system_nodes.node("/zookeeper/config").unwrap().data();
        assert_eq!(
            data,
            "server.1=10.0.0.1:7101:7102:participant;a.example:2181\n\
             server.2=10.0.0.2:7101:7103:participant;b.example:7102\nversion=0"
        );
        assert_eq!(system_nodes.children("/zookeeper"), ["config", "quota"]);
        assert_eq!((system_nodes.below("/"), system_nodes.below("/zookeeper"), system_nodes.below("/a")), (3, 2, 0));
    }

    #[test]
    fn front_nodes_with_an_address_for_clients_are_observers() {
        let at = |id: u64, client: Option<&str>| (id, (format!("10.0.0.{id}:7101"), client.map(ToOwned::to_owned)));
        let fronts = Addresses::from([at(4, Some("d.example:2181")), at(5, None)]);
        let system_nodes = SystemNodes::new(&Addresses::from([at(1, Some("a.example:2181"))]), &fronts);
        assert_eq!(
            system_nodes.node("/zookeeper/config").unwrap().data(),
            "server.1=10.0.0.1:7101:7102:participant;a.example:2181\n\
             server.4=10.0.0.4:7101:7102:observer;d.example:2181\nversion=0"
        );
        assert!(SystemNodes::new(&Addresses::new(), &fronts).node("/zookeeper/config").is_none());
    }

    #[test]
    fn where_one_address_is_not_known_there_is_no_configuration() {
        let system_nodes = SystemNodes::new(&members([Some("a.example:2181"), None]), &Addresses::new());
        assert!(system_nodes.node("/zookeeper/config").is_none());
        assert!(system_nodes.node("/zookeeper").is_some() && system_nodes.node("/zookeeper/quota").is_some());
        assert_eq!(system_nodes.node("/zookeeper").unwrap().stat().num_children, 1);
    }
}
