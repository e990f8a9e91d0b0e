//! The backend for root: a network namespace for each node, and a hub between them and us, of nothing but `ip`.
//!
//! Each node's namespace hangs on a namespace of its own kind, the hub, by a pair of virtual interfaces; so do we. The
//! hub routes. A cut is a routing rule there, from one address to another, into a sink: a pair of interfaces whose far
//! end takes nothing and whose near end counts. So packets vanish in one direction, silently, and TCP does what it
//! does. A node has two addresses: the clients come by one, peers and the harness by the other.
//!
//! Nothing can be slow here: that takes netem, which not every kernel has.
//!
//! All names carry our pid. They go when this is dropped; what a process left behind that was killed goes at the next
//! start.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use lockkeeper_checkers::skip::has_programs;
use nix::fcntl::{Flock, FlockArg};
use parking_lot::Mutex;

use super::ip::{await_up, batch, ip, namespaces};
use super::{Endpoint, FaultNet, LinkFault, Listener, Passed};
use crate::small_disk::is_root;
use crate::verdict::{Failed, broken, cannot_run};

const PREFIX: &str = "lockkeeper-";
const CLIENT_PORT: u16 = 7_001;
const ZOOKEEPER_PORT: u16 = 2_181;
const PEER_PORTS_FROM: u16 = 10_000;
/// The second number of the addresses: one of these that nobody here routes to.
const NETWORKS: std::ops::RangeInclusive<u8> = 128..=250;
/// The third number of our own address; nodes count from 1.
const OURS: u8 = 0;
const MOST_PLACES: u8 = 200;
/// The last numbers of a node's addresses, and of the hub's beside each.
const HUB: u8 = 1;
const FOR_PEERS: u8 = 2;
const FOR_CLIENTS: u8 = 3;
/// Before the kernel's own rules.
const RULES_FROM: u32 = 100;

/// One direction that can be cut.
#[derive(Clone, Copy, Debug)]
struct CutRule {
    number: u32,
    is_cut: bool,
}

#[derive(Debug, Default)]
struct Namespaces {
    /// Which namespace a node lives in; a new one may take that of one which is gone.
    places: BTreeMap<u64, u8>,
    cuts: BTreeMap<(Ipv4Addr, Ipv4Addr), CutRule>,
}

/// Namespaces.
#[derive(Debug)]
pub struct NetnsNet {
    name: String,
    network: u8,
    book: Mutex<Namespaces>,
}

/// Removes what processes left behind that are no more.
fn sweep() -> Result<(), Failed> {
    for name in namespaces()? {
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        let pid = pid.filter(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()));
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists())
            && let Err(failed) = ip(&["netns", "delete", &name])
            // Its process may have removed it at its end, or another sweep has.
            && namespaces()?.contains(&name)
        {
            return Err(failed);
        }
    }
    Ok(())
}

/// Held while a network is chosen and set up. It is a file, because each test may be a process of its own.
fn one_at_a_time() -> Result<Flock<File>, Failed> {
    let path = "/run/lockkeeper-netns.lock";
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| Failed::CannotRun(format!("{path}: {error}")))
}

impl NetnsNet {
    /// What this machine lacks for it.
    pub fn lacks() -> Option<String> {
        if !is_root() {
            return Some("network namespaces take root".into());
        }
        if !has_programs(&["ip"]) {
            return Some("network namespaces take the program `ip` (iproute2)".into());
        }
        static PROBES: AtomicU32 = AtomicU32::new(0);
        let name = format!("{PREFIX}{}-probe{}", std::process::id(), PROBES.fetch_add(1, Ordering::Relaxed));
        let probed = ip(&["netns", "add", &name]).and_then(|_| {
            let lines = ["link add probe type veth peer name eborp", "rule add from 10.0.0.1 to 10.0.0.2 lookup 100"];
            batch(Some(&name), &lines.map(str::to_owned))
        });
        let _ = ip(&["netns", "delete", &name]);
        probed.err().map(|failed| failed.to_string())
    }

    /// Namespaces for the founding members `1..=nodes`.
    pub fn start(nodes: u64) -> Result<Self, Failed> {
        if let Some(lacks) = Self::lacks() {
            return cannot_run(lacks);
        }
        sweep()?;
        // Two at a time would choose the same network.
        let _one_at_a_time = one_at_a_time()?;
        let routed = |network: &u8| ip(&["route", "show", "root", &format!("10.{network}.0.0/16")]);
        let free = NETWORKS.into_iter().find(|network| routed(network).is_ok_and(|routes| routes.trim().is_empty()));
        let Some(network) = free else {
            return cannot_run("all networks 10.128 to 10.250 are in use");
        };
        let net = Self { name: format!("{PREFIX}{}-{network}", std::process::id()), network, book: Mutex::default() };
        net.lay_hub()?;
        for node in 1..=nodes {
            net.lay_place(node)?;
        }
        Ok(net)
    }

    fn hub(&self) -> String {
        format!("{}-hub", self.name)
    }

    fn namespace(&self, place: u8) -> String {
        format!("{}-{place}", self.name)
    }

    /// Our end of the way to the hub; interface names are short.
    fn uplink(&self) -> String {
        format!("lk{}-{}", std::process::id(), self.network)
    }

    fn at(&self, place: u8, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.network, place, last)
    }

    fn lay_hub(&self) -> Result<(), Failed> {
        let (hub, uplink, network) = (self.hub(), self.uplink(), self.network);
        ip(&["netns", "add", &hub])?;
        for (key, value) in
            [("net.ipv4.ip_forward", 1), ("net.ipv6.conf.all.disable_ipv6", 1), ("net.ipv4.conf.all.rp_filter", 0)]
        {
            // What has no IPv6 needs it not disabled; forwarding shows at the first call.
            let path = format!("/proc/sys/{}", key.replace('.', "/"));
            let script = format!("test ! -e {path} || echo {value} > {path}");
            ip(&["netns", "exec", &hub, "sh", "-c", &script])?;
        }
        let (ours, hubs) = (self.at(OURS, FOR_PEERS), self.at(OURS, HUB));
        batch(
            None,
            &[
                format!("link add {uplink} type veth peer name ours netns {hub}"),
                format!("addr add {ours}/24 dev {uplink}"),
                format!("link set {uplink} up"),
                format!("route add 10.{network}.0.0/16 via {hubs} dev {uplink}"),
            ],
        )?;
        batch(
            Some(&hub),
            &["link set lo up".into(), format!("addr add {hubs}/24 dev ours"), "link set ours up".into()],
        )?;
        await_up(None, &uplink)?;
        await_up(Some(&hub), "ours")
    }

    fn lay_place(&self, node: u64) -> Result<(), Failed> {
        let place = self.book.lock().places.values().max().map_or(1, |last| last + 1);
        if place > MOST_PLACES {
            return cannot_run(format!("no more than {MOST_PLACES} namespaces"));
        }
        let (hub, namespace, device) = (self.hub(), self.namespace(place), format!("n{place}"));
        ip(&["netns", "add", &namespace])?;
        batch(
            Some(&hub),
            &[
                format!("link add {device} type veth peer name eth0 netns {namespace}"),
                format!("addr add {}/24 dev {device}", self.at(place, HUB)),
                format!("link set {device} up"),
            ],
        )?;
        batch(
            Some(&namespace),
            &[
                "link set lo up".into(),
                format!("addr add {}/24 dev eth0", self.at(place, FOR_PEERS)),
                format!("addr add {}/24 dev eth0", self.at(place, FOR_CLIENTS)),
                "link set eth0 up".into(),
                format!("route add default via {}", self.at(place, HUB)),
            ],
        )?;
        // In the book first, or nobody would remove it.
        self.book.lock().places.insert(node, place);
        await_up(Some(&hub), &device)?;
        await_up(Some(&namespace), "eth0")
    }

    fn place(&self, node: u64) -> Result<u8, Failed> {
        let place = self.book.lock().places.get(&node).copied();
        place.map_or_else(|| broken(format!("the network knows no node {node}")), Ok)
    }

    fn to_node(&self, from: Endpoint, to: u64) -> Result<(Ipv4Addr, Ipv4Addr), Failed> {
        let to = self.place(to)?;
        Ok(match from {
            Endpoint::Node(from) => (self.at(self.place(from)?, FOR_PEERS), self.at(to, FOR_PEERS)),
            Endpoint::Clients => (self.at(OURS, FOR_PEERS), self.at(to, FOR_CLIENTS)),
        })
    }

    fn answers_of(&self, node: u64) -> Result<(Ipv4Addr, Ipv4Addr), Failed> {
        Ok((self.at(self.place(node)?, FOR_CLIENTS), self.at(OURS, FOR_PEERS)))
    }

    fn put(&self, ends: (Ipv4Addr, Ipv4Addr), fault: LinkFault) -> Result<(), Failed> {
        let cut = match fault {
            LinkFault::None => false,
            LinkFault::Cut => true,
            other => return cannot_run(format!("the netns backend cannot do this: {other:?}")),
        };
        let hub = self.hub();
        let mut book = self.book.lock();
        let next = RULES_FROM + u32::try_from(book.cuts.len()).unwrap_or(0);
        let known = match book.cuts.entry(ends) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if !cut => return Ok(()),
            Entry::Vacant(free) => {
                lay_sink(&hub, next)?;
                free.insert(CutRule { number: next, is_cut: false })
            }
        };
        if known.is_cut != cut {
            let number = known.number;
            let verb = if cut { "add" } else { "del" };
            let rule = format!("rule {verb} pref {number} from {} to {} lookup {number}", ends.0, ends.1);
            batch(Some(&hub), &[rule])?;
            known.is_cut = cut;
        }
        Ok(())
    }

    fn held(&self, ends: Result<(Ipv4Addr, Ipv4Addr), Failed>) -> Passed {
        let number = ends.ok().and_then(|ends| self.book.lock().cuts.get(&ends).map(|cut| cut.number));
        let read = |number: u32| {
            let counter = format!("/sys/class/net/s{number}/statistics/tx_packets");
            // `ip netns exec` shows the namespace's own /sys.
            ip(&["netns", "exec", &self.hub(), "cat", &counter]).ok()?.trim().parse().ok()
        };
        Passed { held: number.and_then(read).unwrap_or(0), ..Passed::default() }
    }
}

/// A device that counts what goes into it, and nothing comes out of.
fn lay_sink(hub: &str, number: u32) -> Result<(), Failed> {
    let lines = [
        format!("link add s{number} type veth peer name z{number}"),
        // Without ARP frames go out under our own address, and the far end takes them for somebody else's.
        format!("link set s{number} arp off up"),
        format!("link set z{number} arp off up"),
        format!("route add default dev s{number} table {number}"),
    ];
    batch(Some(hub), &lines)?;
    ["s", "z"].into_iter().try_for_each(|end| await_up(Some(hub), &format!("{end}{number}")))
}

impl Drop for NetnsNet {
    fn drop(&mut self) {
        let mut names = vec![self.hub()];
        names.extend(self.book.lock().places.values().map(|place| self.namespace(*place)));
        for name in names {
            // Nobody is there to be told; the next start sweeps.
            let _ = ip(&["netns", "delete", &name]);
        }
    }
}

#[async_trait]
impl FaultNet for NetnsNet {
    fn backend(&self) -> &'static str {
        "netns"
    }

    fn address(&self, from: Endpoint, to: u64, listener: Listener) -> SocketAddr {
        match (from, listener, self.place(to)) {
            (_, Listener::Client | Listener::ZooKeeper, Ok(place)) => {
                SocketAddr::from((self.at(place, FOR_CLIENTS), self.listens(to, listener).port()))
            }
            _ => self.listens(to, listener),
        }
    }

    fn listens(&self, node: u64, listener: Listener) -> SocketAddr {
        let place = self.place(node).unwrap_or(0);
        match listener {
            Listener::Client => SocketAddr::from((Ipv4Addr::UNSPECIFIED, CLIENT_PORT)),
            Listener::ZooKeeper => SocketAddr::from((Ipv4Addr::UNSPECIFIED, ZOOKEEPER_PORT)),
            Listener::Peer => SocketAddr::from((self.at(place, FOR_PEERS), peer_port(node))),
        }
    }

    fn unhindered(&self, node: u64) -> SocketAddr {
        SocketAddr::from((self.at(self.place(node).unwrap_or(0), FOR_PEERS), CLIENT_PORT))
    }

    fn wrap(&self, node: u64) -> Vec<String> {
        let namespace = self.namespace(self.place(node).unwrap_or(0));
        ["ip", "netns", "exec", &namespace].map(str::to_owned).to_vec()
    }

    async fn add_node(&self, node: u64, in_place_of: Option<u64>) -> Result<(), Failed> {
        match in_place_of {
            None => self.lay_place(node),
            Some(old) => {
                let place = self.place(old)?;
                self.book.lock().places.insert(node, place);
                Ok(())
            }
        }
    }

    async fn set(&self, from: Endpoint, to: u64, fault: LinkFault) -> Result<(), Failed> {
        self.put(self.to_node(from, to)?, fault)
    }

    async fn set_answers(&self, from: u64, fault: LinkFault) -> Result<(), Failed> {
        self.put(self.answers_of(from)?, fault)
    }

    async fn heal(&self) -> Result<(), Failed> {
        let cuts: Vec<_> = self.book.lock().cuts.keys().copied().collect();
        cuts.into_iter().try_for_each(|ends| self.put(ends, LinkFault::None))
    }

    async fn passed(&self, from: Endpoint, to: u64) -> Passed {
        self.held(self.to_node(from, to))
    }

    async fn passed_answers(&self, from: u64) -> Passed {
        self.held(self.answers_of(from))
    }
}

/// A member's address is never another's, even where it lived in the same namespace.
fn peer_port(node: u64) -> u16 {
    PEER_PORTS_FROM + u16::try_from(node % 10_000).unwrap_or(0)
}

#[cfg(test)]
#[path = "netns_tests.rs"]
mod tests;
