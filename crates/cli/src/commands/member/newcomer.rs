//! The configuration of a node that was added: everything that it needs to join.

use std::fmt::Write as _;
use std::net::IpAddr;

use lockkeeper_api::cluster::{Member, Membership, Role};

/// TOML for `lockkeeper serve --config`.
pub(super) fn configuration(cluster: &str, added: &Member, membership: &Membership, over_tls: bool) -> String {
    let Member { node_id: node, peer_address: peer, client_address, zookeeper_address, .. } = added;
    let client = client_address.as_deref().unwrap_or_default();
    let voters = membership.members.iter().filter(|member| member.role == Role::Voter && member.node_id != *node);
    let join: Vec<String> = voters.map(|member| format!("{:?}", member.peer_address)).collect();
    let mut text = format!(
        "# Node {node}, which joins a running cluster:  lockkeeper serve --config FILE\n\
         # Sections of the other nodes that change defaults, such as [timing] and [limits], belong here as well.\n\
         \n[cluster]\nid = {cluster:?}\nnode = {node}\n"
    );
    // Writing to a String does not fail.
    if added.role == Role::Front {
        let _ = writeln!(text, "role = \"front\"");
    }
    let _ = write!(
        text,
        "# Peer addresses of members, one of which must answer until this node has joined.\njoin = [{}]\n\
         \n# Where others reach this node. Change the addresses if it listens at others, as behind a proxy.\n\
         [listen]\nclient = {client:?}\npeer = {peer:?}\n",
        join.join(", ")
    );
    let zookeeper = zookeeper_address.as_deref();
    let open = [("client", Some(client)), ("peer", Some(peer.as_str())), ("zookeeper", zookeeper)];
    let open: Vec<String> = open
        .into_iter()
        .filter(|(_, address)| address.is_some_and(|address| !is_loopback(address)))
        .map(|(name, _)| format!("{name:?}"))
        .collect();
    if !over_tls && !open.is_empty() {
        let _ = write!(
            text,
            "# Without TLS, as the node that was asked; only for networks that you trust (docs/security.md).\n\
             insecure = [{}]\n",
            open.join(", ")
        );
    }
    let _ = write!(text, "\n[storage]\ndirectory = \"node{node}-data\"\n");
    if let Some(zookeeper) = zookeeper {
        let _ = write!(text, "\n[zookeeper]\nlisten = {zookeeper:?}\n");
    }
    if over_tls {
        text.push_str(&tls(*node, client, zookeeper.is_some()));
    }
    text
}

/// With the names that `lockkeeper certs node` gives the files.
fn tls(node: u64, client: &str, zookeeper: bool) -> String {
    let host = client.rsplit_once(':').map_or(client, |(host, _)| host);
    let files = format!("certificate = \"node{node}.pem\"\nkey = \"node{node}.key\"\n");
    let zookeeper = if zookeeper { format!("\n[tls.zookeeper]\n{files}") } else { String::new() };
    format!(
        "\n# Made with:  lockkeeper certs node --dir . --id {node} --host {host}\n\
         # The settings for clients' certificates must be those of the other nodes.\n\
         [tls.client]\n{files}{zookeeper}\n[tls.peer]\n{files}authority = \"authority.pem\"\n"
    )
}

fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use lockkeeper_server::Config;
    use lockkeeper_server::config::NodeRole;
    use serde_json::json;

    use super::*;

    fn text(role: Role, host: &str, zookeeper: bool, over_tls: bool) -> String {
        let added = json!({
            "node_id": 4, "role": role, "peer_address": format!("{host}:7104"),
            "client_address": format!("{host}:7004"),
            "zookeeper_address": zookeeper.then(|| format!("{host}:2184")),
        });
        let added = serde_json::from_value(added).unwrap();
        let member =
            |id: u64, role: &str| json!({ "node_id": id, "peer_address": format!("10.0.0.{id}:7101"), "role": role });
        let members = json!({ "members": [member(1, "voter"), member(2, "voter"), member(4, "learner")] });
        configuration("orders", &added, &serde_json::from_value(members).unwrap(), over_tls)
    }

    #[test]
    fn the_server_reads_what_is_printed() {
        for (role, host, zookeeper) in
            [(Role::Learner, "127.0.0.1", false), (Role::Front, "10.0.0.4", true), (Role::Learner, "[::1]", true)]
        {
            let text = text(role, host, zookeeper, false);
            let config = Config::from_text(&text, "printed").unwrap_or_else(|error| panic!("{error}: {text}"));
            let checked = config.check().unwrap_or_else(|error| panic!("{error}: {text}"));
            assert_eq!(config.cluster.join, ["10.0.0.1:7101", "10.0.0.2:7101"]);
            assert_eq!((config.cluster.id.as_str(), config.cluster.node), ("orders", 4));
            assert_eq!(config.cluster.role == NodeRole::Front, role == Role::Front);
            assert!(checked.peers.is_empty(), "it forms no cluster");
            assert_eq!(checked.listen_peer.to_string(), format!("{host}:7104"));
            assert_eq!(checked.listen_zookeeper.is_some(), zookeeper);
        }
    }

    #[test]
    fn over_tls_every_listener_has_its_certificate() {
        let config = Config::from_text(&text(Role::Learner, "10.0.0.4", true, true), "printed").unwrap();
        config.check().unwrap();
        assert!(config.tls.client.is_some() && config.tls.zookeeper.is_some() && config.tls.peer.is_some());
        assert!(config.listen.insecure.is_empty());
    }
}
