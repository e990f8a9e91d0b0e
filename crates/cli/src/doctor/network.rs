//! Names and listeners of a configuration, against the network of this machine.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lockkeeper_server::config::{Checked, Config};
use socket2::{Domain, Protocol, Socket, Type};

use super::Check;

/// Longest time for all names to be resolved.
const RESOLVE_WITHIN: Duration = Duration::from_secs(5);
/// More names are not looked up.
const MOST_NAMES: usize = 128;

const NAMES: &str = "names";

/// What names resolve to.
pub(crate) type Resolved = BTreeMap<String, Result<Vec<IpAddr>, String>>;

/// The addresses that a configuration names for its members: key and `host:port`.
pub(crate) fn names(config: &Config) -> Vec<(String, String)> {
    let of_peers = config.peers.iter().flat_map(|(id, peer)| {
        let all =
            [("peer", Some(&peer.peer)), ("client", peer.client.as_ref()), ("zookeeper", peer.zookeeper.as_ref())];
        all.into_iter().filter_map(move |(kind, address)| Some((format!("peers.{id}.{kind}"), address?.clone())))
    });
    of_peers.take(MOST_NAMES).collect()
}

/// Looks all names up at the same time. A name that is not found in time is an error.
pub(crate) fn resolve(names: &[(String, String)]) -> Resolved {
    let (answer, answers) = mpsc::channel();
    for (key, address) in names {
        let (key, address, answer) = (key.clone(), address.clone(), answer.clone());
        // The system's resolver has no limit of its own; a thread that it holds ends with this process.
        std::thread::spawn(move || {
            let found = address.to_socket_addrs().map(|found| found.map(|address| address.ip()).collect());
            let _ = answer.send((key, found.map_err(|error| error.to_string())));
        });
    }
    drop(answer);
    let deadline = Instant::now() + RESOLVE_WITHIN;
    let mut resolved: Resolved = names.iter().map(|(key, _)| (key.clone(), Err("no answer in time".into()))).collect();
    while let Ok((key, found)) = answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        resolved.insert(key, found);
    }
    resolved
}

/// Whether every name resolves, and this node's own peer address to this machine.
pub(crate) fn judge_names(config: &Config, names: &[(String, String)], resolved: &Resolved) -> Check {
    if names.is_empty() {
        return Check::skipped(NAMES, "the configuration names no members ([peers])");
    }
    let address = |key: &str| names.iter().find(|(known, _)| known == key).map_or("", |(_, address)| address);
    let unknown: Vec<String> = resolved
        .iter()
        .filter_map(|(key, found)| {
            let why = match found {
                Err(why) => why.as_str(),
                Ok(addresses) if addresses.is_empty() => "the name has no address",
                Ok(_) => return None,
            };
            Some(format!("{key} = {}: {why}", address(key)))
        })
        .collect();
    if !unknown.is_empty() {
        let remedy = "correct the name, or make it known to this machine's resolver (/etc/hosts, DNS)";
        return Check::problem(NAMES, unknown.join("; "), remedy);
    }
    let own = format!("peers.{}.peer", config.cluster.node);
    if let Some(Ok(addresses)) = resolved.get(&own)
        && !addresses.iter().any(|address| is_of_this_machine(*address))
    {
        let found = format!("{own} = {} is no address of this machine", address(&own));
        let remedy = "correct it, or check that what stands between forwards the port to listen.peer";
        return Check::warning(NAMES, found, remedy);
    }
    Check::ok(NAMES, format!("{} addresses in [peers] resolve", resolved.len()))
}

fn is_of_this_machine(address: IpAddr) -> bool {
    try_bind(SocketAddr::new(address, 0)).is_ok()
}

/// Binds as the node does. It does not listen, so a node that starts at this moment gets the port all the same.
fn try_bind(address: SocketAddr) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())
}

/// Whether each listener's port is free, or held by the node itself, which is so if a process uses the data directory.
pub(crate) fn listeners(checked: &Checked, is_running: Option<bool>) -> Vec<Check> {
    let all = [
        ("listener client", "listen.client", Some(checked.listen_client)),
        ("listener peer", "listen.peer", Some(checked.listen_peer)),
        ("listener zookeeper", "zookeeper.listen", checked.listen_zookeeper),
        ("listener zookeeper tls", "zookeeper.listen_secure", checked.listen_zookeeper_secure),
    ];
    let listeners = all.into_iter().filter_map(|(check, key, address)| Some((check, key, address?)));
    listeners.map(|(check, key, address)| judge_listener(check, key, address, is_running)).collect()
}

fn judge_listener(check: &'static str, key: &str, address: SocketAddr, is_running: Option<bool>) -> Check {
    let named = format!("{key} = {address}");
    match (try_bind(address), is_running) {
        (Ok(()), _) if address.port() == 0 => Check::ok(check, format!("{named}: any free port")),
        (Ok(()), Some(true)) => Check::warning(
            check,
            format!("{named}: free, although a process uses the data directory"),
            "if the configuration was changed, restart the node; if the node is starting, look again",
        ),
        (Ok(()), _) => Check::ok(check, format!("{named}: free")),
        (Err(error), Some(true)) if error.kind() == ErrorKind::AddrInUse => {
            Check::ok(check, format!("{named}: in use, as is the data directory: the node runs"))
        }
        (Err(error), Some(false)) if error.kind() == ErrorKind::AddrInUse => Check::problem(
            check,
            format!("{named}: in use by another program (the data directory is not in use)"),
            format!("stop the program (`ss -ltnp 'sport = :{}'` names it), or change {key}", address.port()),
        ),
        (Err(error), None) if error.kind() == ErrorKind::AddrInUse => Check::warning(
            check,
            format!("{named}: in use, and this user cannot tell by whom"),
            "run this as the user that runs the node",
        ),
        (Err(error), _) => {
            let remedy = match error.kind() {
                ErrorKind::AddrNotAvailable => format!("set {key} to an address of this machine"),
                ErrorKind::PermissionDenied => format!("use a port from 1024 on in {key}, or give the node the right"),
                _ => format!("correct {key}"),
            };
            Check::problem(check, format!("{named}: cannot be used: {error}"), remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::doctor::Verdict;

    fn config() -> Config {
        Config::new("test", 1).with_peer(1, "127.0.0.1:7101".to_owned(), "127.0.0.1:7001".to_owned()).with_peer(
            2,
            "127.0.0.1:7102".to_owned(),
            "127.0.0.1:7002".to_owned(),
        )
    }

    #[test]
    fn names_that_do_not_resolve_are_a_problem() {
        let config = config();
        let names = names(&config);
        assert_eq!(names.len(), 4);
        let mut resolved = resolve(&names);
        assert_eq!(judge_names(&config, &names, &resolved).verdict, Verdict::Ok);
        resolved.insert("peers.1.peer".into(), Ok(vec![IpAddr::from([192, 0, 2, 1])]));
        let foreign = judge_names(&config, &names, &resolved);
        assert_eq!(foreign.verdict, Verdict::Warning, "{foreign:?}");
        resolved.insert("peers.2.client".into(), Err("not known".into()));
        let unknown = judge_names(&config, &names, &resolved);
        assert!(unknown.verdict == Verdict::Problem && unknown.found.contains("127.0.0.1:7002"), "{unknown:?}");
        assert_eq!(judge_names(&config, &[], &Resolved::new()).verdict, Verdict::Skipped);
    }

    #[test]
    fn a_name_that_no_resolver_knows_is_an_error() {
        let unknown = [("peers.9.peer".to_owned(), "no-such-host.invalid:1".to_owned())];
        assert!(resolve(&unknown)["peers.9.peer"].is_err());
    }

    #[test]
    fn a_port_is_free_or_held_by_the_node_or_by_another() {
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = held.local_addr().unwrap();
        let verdict = |is_running| judge_listener("listener client", "listen.client", address, is_running).verdict;
        assert_eq!(verdict(Some(true)), Verdict::Ok);
        assert_eq!(verdict(Some(false)), Verdict::Problem);
        assert_eq!(verdict(None), Verdict::Warning);
        drop(held);
        assert_eq!(verdict(Some(false)), Verdict::Ok);
        assert_eq!(verdict(Some(true)), Verdict::Warning, "the node should listen there");
        let foreign = judge_listener("listener peer", "listen.peer", "192.0.2.1:1".parse().unwrap(), Some(false));
        assert_eq!(foreign.verdict, Verdict::Problem, "{foreign:?}");
    }
}
