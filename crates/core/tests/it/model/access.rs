//! Access control as ZooKeeper's programmer's guide has it: a list of grants, nothing inherited, each permission by
//! itself; `world` means all, `ip` compares the leading bits of the caller's address, other schemes compare the
//! identities that the caller has proved, and `super` passes.

use std::net::IpAddr;

use lockkeeper_core::limits::*;
use lockkeeper_core::*;

use super::naive::Model;

/// The bits of an address as text, those of an IPv4 address that came over IPv6 as 32.
fn bits(address: IpAddr) -> String {
    let octets: Vec<u8> = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255];
    octets.strip_prefix(&mapped).unwrap_or(&octets).iter().map(|octet| format!("{octet:08b}")).collect()
}

fn lies_in(address: IpAddr, network: &str) -> bool {
    let (base, length) = network.split_once('/').unwrap_or((network, ""));
    let Ok(base) = base.parse::<IpAddr>().map(bits) else { return false };
    let length = if network.contains('/') { length.parse().unwrap_or(usize::MAX) } else { base.len() };
    let own = bits(address);
    own.len() == base.len() && length <= base.len() && own[..length] == base[..length]
}

pub(crate) fn may(who: &Principals, wanted: Permissions, acl: &[AclEntry]) -> bool {
    let proved = |scheme: &str, id: &str| who.identities.iter().any(|i| &*i.scheme == scheme && &*i.id == id);
    if who.identities.iter().any(|i| &*i.scheme == "super") {
        return true;
    }
    let mut granted = 0;
    for AclEntry { permissions, scheme, id } in acl {
        let meant = match &scheme[..] {
            "world" => id == "anyone",
            "ip" => who.address.is_some_and(|address| lies_in(address, id)),
            _ => proved(scheme, id),
        };
        if meant {
            granted |= permissions.0;
        }
    }
    (0..32).any(|bit| granted & wanted.0 & (1 << bit) != 0)
}

pub(crate) fn is_valid(acl: &[AclEntry]) -> Result<(), Refusal> {
    let valid = |entry: &AclEntry| {
        !entry.scheme.is_empty()
            && entry.scheme.len() <= MAX_ACL_ID_BYTES
            && entry.id.len() <= MAX_ACL_ID_BYTES
            && entry.permissions.0 < 32
    };
    if acl.is_empty() || acl.len() > MAX_ACL_ENTRIES || !acl.iter().all(valid) {
        return Err(Refusal::InvalidAcl("".into()));
    }
    Ok(())
}

impl Model {
    /// Whether the list of a node that is there lets the caller do this.
    pub(crate) fn allow(&self, at: &str, wanted: Permissions) -> Result<(), Refusal> {
        if may(&self.who, wanted, &self.nodes[at].acl) {
            return Ok(());
        }
        Err(Refusal::NoAuth { path: NodePath::parse(at).unwrap(), wanted })
    }
}

/// How many callers there are.
pub(crate) const CALLERS: u16 = 8 * 7;

/// Callers and lists that mean some of them, by number.
pub(crate) fn caller(number: u16) -> Principals {
    let proved: &[(&str, &str)] = match number % 8 {
        0 | 1 => &[],
        2 | 3 => &[("digest", "bob")],
        4 => &[("digest", "eve"), ("x509", "bob")],
        5 => &[("digest", "eve"), ("digest", "bob")],
        6 => &[("ip", "10.0.0.0/8"), ("auth", "bob"), ("world", "nobody")],
        _ => &[("digest", "eve"), ("super", "")],
    };
    const ADDRESSES: [&str; 7] = ["", "10.0.0.7", "11.0.0.7", "::ffff:10.0.0.7", "fd00::7", "fd07::7", "fd08::7"];
    let address = ADDRESSES[usize::from(number / 8) % ADDRESSES.len()];
    let identity = |(scheme, id): &(&str, &str)| Identity { scheme: (*scheme).into(), id: (*id).into() };
    Principals { address: address.parse().ok(), identities: proved.iter().map(identity).collect() }
}

pub(crate) fn list(number: u16) -> Vec<AclEntry> {
    let entry = |permissions, scheme: &str, id: &str| AclEntry {
        permissions: Permissions(permissions),
        scheme: scheme.into(),
        id: id.into(),
    };
    let some = u32::from(number / 32 % 32);
    match number % 32 {
        0 => vec![],
        1 => vec![entry(some + 8, "digest", "bob")],
        2 => vec![AclEntry::open(), entry(31, "", "")],
        3 => vec![entry(some, "world", "anyone")],
        4 => vec![entry(some, "digest", "bob"), entry(31 - some, "digest", "eve")],
        5 => vec![entry(some, "world", "anyone"), entry(31, "digest", "bob")],
        6 => vec![entry(some, "ip", "10.0.0.0/8")],
        7 => vec![entry(some, "ip", "fd00::/13"), entry(31, "ip", "11.0.0.7")],
        8 => vec![entry(31, "ip", "0.0.0.0/0"), entry(31, "ip", "nowhere"), entry(31, "ip", "10.0.0.7/33")],
        9 => vec![entry(31, "auth", "bob"), entry(some, "x509", "bob")],
        10 => vec![entry(31, "world", "nobody")],
        11 => vec![entry(some, "super", "")],
        12 => vec![entry(0, "world", "anyone"), entry(some, "digest", "bob"), entry(some, "digest", "bob")],
        _ => vec![AclEntry::open()],
    }
}
