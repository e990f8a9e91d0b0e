//! The grammar of the names in a lock's queue (`docs/zookeeper.md`). A request ends in its infix and ten digits:
//!
//! | infix | mode | whose name |
//! |---|---|---|
//! | `lock-` | exclusive | Lockkeeper, Curator |
//! | `__WRIT__` | write | Lockkeeper, Curator |
//! | `__READ__` | shared | Lockkeeper, Curator |
//! | `permit-<n>-` | one of n permits | Lockkeeper |
//! | `__lock__`, `__rlock__` | exclusive, shared | kazoo |
//!
//! Anything may stand before the infix. Two forms mean more: `_c_<uuid>-delay-<ms>-` asks for a lock delay, and
//! `delay-<ms>-<token>-` keeps the place of a dead holder. Numbers have no sign and no leading zero.

/// The most permits that a semaphore can have.
pub const MAX_PERMITS: u16 = 1_000;
/// The longest lock delay.
pub const MAX_DELAY_MS: u32 = 600_000;

const SEQUENCE_DIGITS: usize = 10;
const UUID_CHARACTERS: usize = 36;
const INFIXES: [(&str, LockMode); 5] = [
    ("lock-", LockMode::Exclusive),
    ("__READ__", LockMode::Shared),
    ("__WRIT__", LockMode::Write),
    ("__lock__", LockMode::Exclusive),
    ("__rlock__", LockMode::Shared),
];

/// How a request asks for its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Alone.
    Exclusive,
    /// Together with other readers.
    Shared,
    /// Alone, beside readers.
    Write,
    /// One of so many permits.
    Permit(u16),
}

impl LockMode {
    /// How many may hold a semaphore at a time; `None` for a lock.
    pub fn permits(self) -> Option<u16> {
        if let Self::Permit(permits) = self { Some(permits) } else { None }
    }

    /// Whether it excludes everyone else.
    pub fn is_exclusive(self) -> bool {
        matches!(self, Self::Exclusive | Self::Write)
    }
}

/// What the name of a node in a queue says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestName {
    /// Its place among the children of its directory.
    pub sequence: u64,
    /// How it asks.
    pub mode: LockMode,
    /// The lock delay that it asks for or, for a kept place, is; 0 is none.
    pub delay_ms: u32,
    /// For a kept place: the token of the dead holder.
    pub keeps_place_of: Option<u64>,
    /// The request's uuid, if the whole name is one that Lockkeeper gives to a request.
    pub uuid: Option<String>,
}

/// Reads a name; `None` for a child that is not in the queue.
pub fn parse(name: &str) -> Option<RequestName> {
    let (stem, digits) = name.split_at_checked(name.len().checked_sub(SEQUENCE_DIGITS)?)?;
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let sequence = digits.parse().ok()?;
    let (front, mode) = infix(stem)?;
    let (mut delay_ms, mut keeps_place_of, mut uuid) = (0, None, None);
    if let Some((of, rest)) = front.strip_prefix("_c_").and_then(|own| own.split_at_checked(UUID_CHARACTERS)) {
        let delay = rest.strip_prefix("-delay-").and_then(|rest| number(rest.strip_suffix('-')?, MAX_DELAY_MS.into()));
        delay_ms = delay.unwrap_or(0) as u32;
        let is_kazoos = stem.ends_with("lock__");
        uuid = ((rest == "-" || delay.is_some()) && !is_kazoos).then(|| of.to_owned());
    } else if let Some((ms, dead)) = kept(front) {
        (delay_ms, keeps_place_of) = (ms, Some(dead));
    }
    Some(RequestName { sequence, mode, delay_ms, keeps_place_of, uuid })
}

/// Whether the name is that of a node that keeps a dead holder's place.
pub fn is_kept_place(name: &str) -> bool {
    parse(name).is_some_and(|name| name.keeps_place_of.is_some())
}

/// What stands before the infix, and the mode that the infix means.
fn infix(stem: &str) -> Option<(&str, LockMode)> {
    for (infix, mode) in INFIXES {
        if let Some(front) = stem.strip_suffix(infix) {
            return Some((front, mode));
        }
    }
    let (front, permits) = stem.strip_suffix('-')?.rsplit_once("permit-")?;
    Some((front, LockMode::Permit(number(permits, MAX_PERMITS.into())? as u16)))
}

/// Delay and token in `delay-<ms>-<token>-`.
fn kept(front: &str) -> Option<(u32, u64)> {
    let (delay_ms, dead) = front.strip_prefix("delay-")?.strip_suffix('-')?.split_once('-')?;
    Some((number(delay_ms, MAX_DELAY_MS.into())? as u32, number(dead, u64::MAX)?))
}

fn number(digits: &str, most: u64) -> Option<u64> {
    if digits.starts_with('0') || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().filter(|number| *number <= most)
}

/// Whether `reader` is the name that a downgrade gives to `writer`: in place, with the same sequence.
pub fn is_downgrade(writer: &str, reader: &str) -> bool {
    let split = |name: &str, infix: &str| {
        let (stem, digits) = name.split_at_checked(name.len().checked_sub(SEQUENCE_DIGITS)?)?;
        Some((stem.strip_suffix(infix)?.to_owned(), digits.to_owned()))
    };
    split(writer, "__WRIT__").is_some_and(|writer| split(reader, "__READ__") == Some(writer))
}

/// The lock in whose queue a node at this path would stand, and the node's name.
pub fn lock_and_name(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix("/locks/")?.rsplit_once('/')
}

/// The namespace of a node: the first part of the name of the lock, gate or rate limit, or of the path.
pub fn namespace_of(path: &str) -> Option<&str> {
    let below = |root: &&str| path.strip_prefix(*root).filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let name = ["/locks", "/gates", "/rates"].iter().find_map(below).unwrap_or(path);
    name.strip_prefix('/')?.split('/').next().filter(|first| !first.is_empty())
}

/// The requests among a directory's children, in queue order: by sequence, then by name.
pub fn in_order<'a>(children: impl IntoIterator<Item = &'a String>) -> Vec<(&'a str, RequestName)> {
    let mut queue: Vec<_> = children.into_iter().filter_map(|child| Some((child.as_str(), parse(child)?))).collect();
    queue.sort_by_key(|(child, name)| (name.sequence, *child));
    queue
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "00000000-0000-4000-8000-000000000007";

    #[test]
    fn every_form_is_read() {
        for (infix, mode) in [
            ("lock-", LockMode::Exclusive),
            ("__READ__", LockMode::Shared),
            ("__WRIT__", LockMode::Write),
            ("permit-1000-", LockMode::Permit(1_000)),
        ] {
            let plain = RequestName { sequence: 12, mode, delay_ms: 0, keeps_place_of: None, uuid: None };
            let own = RequestName { uuid: Some(UUID.into()), ..plain.clone() };
            assert_eq!(parse(&format!("_c_{UUID}-{infix}0000000012")), Some(own.clone()));
            let delayed = RequestName { delay_ms: 600_000, ..own };
            assert_eq!(parse(&format!("_c_{UUID}-delay-600000-{infix}0000000012")), Some(delayed));
            let kept = RequestName { delay_ms: 500, keeps_place_of: Some(u64::MAX), ..plain.clone() };
            assert_eq!(parse(&format!("delay-500-{}-{infix}0000000012", u64::MAX)), Some(kept));
            for front in ["", "x-", "8f14e45fceea4672a0b1c8e5d3f90ab1-"] {
                assert_eq!(parse(&format!("{front}{infix}0000000012")), Some(plain.clone()), "made by hand: {front}");
            }
        }
    }

    #[test]
    fn kazoos_names_are_requests_without_a_uuid() {
        for (infix, mode) in [("__lock__", LockMode::Exclusive), ("__rlock__", LockMode::Shared)] {
            for front in ["8f14e45fceea4672a0b1c8e5d3f90ab1", "", &format!("_c_{UUID}-")] {
                let read = parse(&format!("{front}{infix}0000000007")).unwrap();
                assert_eq!((read.sequence, read.mode, read.delay_ms, read.uuid), (7, mode, 0, None));
            }
            let delayed = parse(&format!("_c_{UUID}-delay-900-{infix}0000000007")).unwrap();
            assert_eq!((delayed.delay_ms, delayed.uuid), (900, None));
        }
    }

    #[test]
    fn other_children_are_no_requests() {
        for other in [
            "",
            "lock-",
            "lock-123",
            "lock-00000000-1",
            "0000000001",
            "n_0000000001",
            "latch-0000000001",
            "t7-c1-3",
            "ä000000001",
            "permit--0000000001",
            "permit-0-0000000001",
            "permit-01-0000000001",
            "permit-+1-0000000001",
            "permit-1001-0000000001",
            "permit-1-x-0000000001",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_delay_is_read_where_it_is_asked_for_and_nowhere_else() {
        let of = |front: &str| {
            let read = parse(&format!("{front}lock-0000000001")).unwrap();
            (read.delay_ms, read.keeps_place_of, read.uuid.is_some())
        };
        for front in ["delay-0", "delay-600001", "delay-05", "delay-+5", "delay-5-6", "delay-", "delay-5-x"] {
            assert_eq!(of(&format!("_c_{UUID}-{front}-")), (0, None, false), "{front}");
        }
        for front in [
            "x-delay-5-",
            "_c_x-delay-5-",
            "delay-5-",
            "delay-0-1-",
            "delay-5-0-",
            "delay-05-1-",
            "delay-5-01-",
            "delay-5-1-x-",
            "delay-5-1",
            "xdelay-5-1-",
            "delay-600001-1-",
            "delay-5-18446744073709551616-",
        ] {
            assert_eq!(of(front), (0, None, false), "{front}");
        }
        assert_eq!(of(&format!("_c_{UUID}")), (0, None, false), "no dash behind the uuid");
    }

    #[test]
    fn paths_order_and_downgrades() {
        assert_eq!(lock_and_name("/locks/a/b/x"), Some(("a/b", "x")));
        assert_eq!(lock_and_name("/locks/x"), None);
        assert_eq!(lock_and_name("/other/a"), None);
        for (path, namespace) in [("/locks/n/l", "n"), ("/gates/n", "n"), ("/n/a/b", "n"), ("/locksmith", "locksmith")]
        {
            assert_eq!(namespace_of(path), Some(namespace));
        }
        assert_eq!((namespace_of("/"), namespace_of("/locks")), (None, None));
        let children =
            ["b-lock-0000000002", "other", "a-lock-0000000010", "a-lock-0000000002", "delay-5-1-lock-0000000002"];
        let children = children.map(str::to_owned);
        let order: Vec<&str> = in_order(&children).into_iter().map(|(child, _)| child).collect();
        assert_eq!(order, ["a-lock-0000000002", "b-lock-0000000002", "delay-5-1-lock-0000000002", "a-lock-0000000010"]);
        assert!(is_downgrade("_c_x-__WRIT__0000000001", "_c_x-__READ__0000000001"));
        assert!(is_downgrade("__WRIT__0000000001", "__READ__0000000001"));
        for (writer, reader) in [
            ("_c_x-__WRIT__0000000001", "_c_x-__READ__0000000002"),
            ("_c_x-__WRIT__0000000001", "_c_y-__READ__0000000001"),
            ("_c_x-__READ__0000000001", "_c_x-__READ__0000000001"),
            ("_c_x-lock-0000000001", "_c_x-__READ__0000000001"),
        ] {
            assert!(!is_downgrade(writer, reader), "{writer} {reader}");
        }
    }
}
