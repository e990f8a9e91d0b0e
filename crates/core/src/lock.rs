//! Names of locks and of the requests in their queues.
//!
//! A queue learns everything about a request from its node's name: uuid, mode, permits, lock delay, sequence.
//!
//! A lock is a directory in the tree. A request for it is an ephemeral sequential child, named as Apache Curator
//! names them (`StandardLockInternalsDriver`, `InterProcessReadWriteLock`), so that a Curator client on the same path
//! is in the same queue. kazoo's names (Python, `kazoo.recipe.lock`) are requests too.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ids::{FencingToken, RequestId};
use crate::limits::{MAX_DELAY_MS, MAX_PERMITS};
use crate::path::{NodePath, ParsedText, PathError};

/// The directory under which native locks live.
pub const LOCKS_ROOT: &str = "/locks";

/// The name of a lock, such as `orders/42`: a valid path without its leading slash.
///
/// Holds the path of the lock's directory, whose text ends with the name: each request asks for that path several
/// times, and gets it without a copy.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(NodePath);

impl LockName {
    /// Validates `name`.
    ///
    /// # Errors
    /// The rule of [`NodePath`] that the lock's directory would break. There must be room for the name of a request.
    pub fn parse(name: &str) -> Result<Self, PathError> {
        let path = NodePath::of_name(LOCKS_ROOT, name)?;
        let longest = path.as_str().len() + REQUEST_NAME_BYTES;
        if longest > crate::limits::MAX_PATH_BYTES {
            return Err(PathError::TooLong(longest));
        }
        Ok(Self(path))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0.as_str()[LOCKS_ROOT.len() + 1..]
    }

    /// The lock's directory in the tree.
    pub fn directory(&self) -> NodePath {
        self.0.clone()
    }

    /// The lock whose directory this is, if it lies under [`LOCKS_ROOT`].
    pub fn of_directory(path: &NodePath) -> Option<Self> {
        Self::text_of_directory(path.as_str()).map(|_| Self(path.clone()))
    }

    /// The same without a copy. `path` is a valid path, so the text below the root of the locks is a name if there is
    /// room for requests below it.
    pub(crate) fn text_of_directory(path: &str) -> Option<&str> {
        let has_room = path.len() + REQUEST_NAME_BYTES <= crate::limits::MAX_PATH_BYTES;
        path.strip_prefix(LOCKS_ROOT)?.strip_prefix('/').filter(|_| has_room)
    }
}

/// Room for `/_c_<uuid>-delay-<ms>-permit-<n>-<sequence>` below the lock's directory.
const REQUEST_NAME_BYTES: usize = 80;

/// As its name.
impl Serialize for LockName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for LockName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(ParsedText("the name of a lock", LockName::parse))
    }
}

impl From<LockName> for Arc<str> {
    fn from(name: LockName) -> Self {
        Arc::from(name.as_str())
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// How a lock is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LockMode {
    /// Alone; the node is named `lock-`, as Curator's `InterProcessMutex` does.
    Exclusive,
    /// Together with other readers; named `__READ__`.
    Shared,
    /// Alone, beside readers; named `__WRIT__`, as Curator's `InterProcessReadWriteLock` does. Queues like
    /// `Exclusive`.
    Write,
    /// One of n permits, from 1 to [`MAX_PERMITS`]; named `permit-<n>-`.
    Permit(u16),
}

impl LockMode {
    fn infix(self) -> Cow<'static, str> {
        match self {
            Self::Exclusive => "lock-".into(),
            Self::Shared => "__READ__".into(),
            Self::Write => "__WRIT__".into(),
            Self::Permit(permits) => format!("permit-{permits}-").into(),
        }
    }

    /// Whether it excludes everyone else.
    pub fn is_exclusive(self) -> bool {
        matches!(self, Self::Exclusive | Self::Write)
    }

    /// How many may hold a semaphore at a time; `None` for a lock.
    pub fn permits(self) -> Option<u16> {
        match self {
            Self::Permit(permits) => Some(permits),
            Self::Exclusive | Self::Shared | Self::Write => None,
        }
    }
}

/// What the name of a request's node says, without its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestForm {
    /// How the lock is asked for.
    pub mode: LockMode,
    /// The lock delay that was asked for, in milliseconds; 0 is none.
    pub delay_ms: u32,
}

impl RequestForm {
    /// The name of a request's node up to its sequence.
    pub fn prefix(self, uuid: RequestId) -> String {
        match self.delay_ms {
            0 => format!("_c_{uuid}-{}", self.mode.infix()),
            delay_ms => format!("_c_{uuid}-delay-{delay_ms}-{}", self.mode.infix()),
        }
    }
}

/// The arguments of an acquire.
pub(crate) struct Request<'a> {
    pub(crate) locks: &'a [LockName],
    pub(crate) form: RequestForm,
    pub(crate) uuid: RequestId,
    pub(crate) label: &'a Arc<str>,
}

/// What the name of a request or of a kept place says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestName {
    /// Its place in the queue.
    pub sequence: u64,
    /// What it asks for.
    pub form: RequestForm,
    /// For a kept place: the token of the dead holder.
    pub keeps_place_of: Option<FencingToken>,
}

/// The name of the node that keeps a dead holder's place. A reader's place is kept by a writer, which blocks readers
/// and writers.
pub(crate) fn delay_name(sequence: u64, form: RequestForm, dead: FencingToken) -> String {
    let mode = if form.mode == LockMode::Shared { LockMode::Write } else { form.mode };
    format!("{DELAY}{}-{dead}-{}{sequence:010}", form.delay_ms, mode.infix())
}

/// The name of a writer's node after a downgrade.
pub(crate) fn downgraded_name(writer: &str) -> String {
    let (stem, sequence) = writer.split_at(writer.len().saturating_sub(SEQUENCE_DIGITS));
    let stem = stem.strip_suffix(&*LockMode::Write.infix()).unwrap_or(stem);
    format!("{stem}{}{sequence}", LockMode::Shared.infix())
}

/// The beginning of a kept place's name, and the mark of a delay in a request's name.
const DELAY: &str = "delay-";

/// The sequence at the end of a node's name: exactly ten digits.
pub fn sequence_of(name: &str) -> Option<u64> {
    let digits = name.get(name.len().checked_sub(SEQUENCE_DIGITS)?..)?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// How many digits end the name of a sequential node.
pub(crate) const SEQUENCE_DIGITS: usize = 10;

/// A child's sequence and mode, read from its name; `None` if the child is no lock request.
pub fn parse_request(name: &str) -> Option<(u64, LockMode)> {
    let sequence = sequence_of(name)?;
    let (mode, _) = mode_of(&name[..name.len() - SEQUENCE_DIGITS])?;
    Some((sequence, mode))
}

/// Everything that a child's name says; `None` if the child is no lock request.
pub fn parse_name(name: &str) -> Option<RequestName> {
    let sequence = sequence_of(name)?;
    let (mode, before) = mode_of(&name[..name.len() - SEQUENCE_DIGITS])?;
    let (delay_ms, keeps_place_of) = match (delay_asked(before), delay_kept(before)) {
        (Some(delay_ms), _) => (delay_ms, None),
        (None, Some((delay_ms, dead))) => (delay_ms, Some(dead)),
        (None, None) => (0, None),
    };
    Some(RequestName { sequence, form: RequestForm { mode, delay_ms }, keeps_place_of })
}

/// Whether this is the name of a kept place.
pub(crate) fn is_delay(name: &str) -> bool {
    name.starts_with(DELAY) && parse_name(name).is_some_and(|name| name.keeps_place_of.is_some())
}

/// The infix before the sequence, and its mode: Curator's names, which Lockkeeper uses too, and those of kazoo's
/// `Lock` and `ReadLock`.
const INFIXES: [(&str, LockMode); 5] = [
    ("lock-", LockMode::Exclusive),
    ("__READ__", LockMode::Shared),
    ("__WRIT__", LockMode::Write),
    ("__lock__", LockMode::Exclusive),
    ("__rlock__", LockMode::Shared),
];

/// The mode of a request, and the part of its name before the infix.
pub(crate) fn mode_of(stem: &str) -> Option<(LockMode, &str)> {
    for (infix, mode) in INFIXES {
        if let Some(before) = stem.strip_suffix(infix) {
            return Some((mode, before));
        }
    }
    let (before, permits) = stem.strip_suffix('-')?.rsplit_once('-')?;
    let permits = number(permits, MAX_PERMITS.into()).and_then(|permits| u16::try_from(permits).ok())?;
    Some((LockMode::Permit(permits), before.strip_suffix("permit")?))
}

/// Whether a recipe asks for an exclusive lock under this name, which lacks its sequence. Unlike [`mode_of`], this does
/// not take `clock-` for `lock-`.
pub(crate) fn is_exclusive_request(stem: &str) -> bool {
    mode_of(stem).is_some_and(|(mode, before)| {
        let is_other_word = stem.ends_with("lock-") && before.ends_with(char::is_alphanumeric);
        mode.is_exclusive() && !is_other_word
    })
}

/// Families of sequential names. A client sees the names of its own family and ignores all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameFamily {
    /// `lock-`: Curator's `InterProcessMutex`, ZooKeeper's own recipe, our exclusive requests.
    Lock,
    /// `__READ__` and `__WRIT__`: Curator's `InterProcessReadWriteLock`, our shared and write requests.
    ReadWrite,
    /// `__lock__` and `__rlock__`: kazoo's `Lock`, `ReadLock` and `WriteLock`.
    Kazoo,
    /// `permit-<n>-`: our semaphores.
    Permit,
    /// Any other sequential name: the C recipe's `x-<session>-`, Curator's `latch-` and `lease-`, an application's
    /// own.
    Other,
}

impl NameFamily {
    /// The number of families.
    pub(crate) const COUNT: usize = 5;
    pub(crate) const ALL: [Self; Self::COUNT] = [Self::Lock, Self::ReadWrite, Self::Kazoo, Self::Permit, Self::Other];
}

impl fmt::Display for NameFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lock => "names of Curator's mutex (lock-)",
            Self::ReadWrite => "names of Curator's read-write lock (__READ__, __WRIT__)",
            Self::Kazoo => "kazoo's own names (__lock__, __rlock__)",
            Self::Permit => "names of permits (permit-<n>-)",
            Self::Other => "names of another recipe",
        })
    }
}

/// The family of a sequential node's name; `None` if the name does not end in a sequence.
pub(crate) fn family_of(name: &str) -> Option<NameFamily> {
    sequence_of(name)?;
    let stem = &name[..name.len() - SEQUENCE_DIGITS];
    Some(match mode_of(stem) {
        Some((LockMode::Permit(_), _)) => NameFamily::Permit,
        Some(_) if stem.ends_with("__lock__") || stem.ends_with("__rlock__") => NameFamily::Kazoo,
        Some((LockMode::Exclusive, _)) => NameFamily::Lock,
        Some(_) => NameFamily::ReadWrite,
        None => NameFamily::Other,
    })
}

/// The delay in `_c_<uuid>-delay-<ms>-`.
fn delay_asked(before: &str) -> Option<u32> {
    let own = before.strip_prefix("_c_")?.get(UUID_CHARACTERS..)?;
    let delay_ms = own.strip_prefix('-')?.strip_prefix(DELAY)?.strip_suffix('-')?;
    number(delay_ms, MAX_DELAY_MS.into()).and_then(|ms| u32::try_from(ms).ok())
}

const UUID_CHARACTERS: usize = 36;

/// Delay and token in `delay-<ms>-<token>-`.
fn delay_kept(before: &str) -> Option<(u32, FencingToken)> {
    let (delay_ms, dead) = before.strip_prefix(DELAY)?.strip_suffix('-')?.split_once('-')?;
    let delay_ms = number(delay_ms, MAX_DELAY_MS.into()).and_then(|ms| u32::try_from(ms).ok())?;
    Some((delay_ms, FencingToken(number(dead, u64::MAX)?)))
}

/// A number from 1 up, without sign or leading zero.
fn number(digits: &str, at_most: u64) -> Option<u64> {
    let plain = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
    digits.parse().ok().filter(|number| plain && (1..=at_most).contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_directories() {
        let name = LockName::parse("orders/42").expect("valid");
        assert_eq!(name.directory().as_str(), "/locks/orders/42");
        assert_eq!((name.as_str(), format!("{name:?}").as_str()), ("orders/42", "\"orders/42\""));
        let bytes = postcard::to_stdvec(&name).expect("encodes");
        assert_eq!(Ok(&bytes), postcard::to_stdvec("orders/42").as_ref(), "as its text");
        assert_eq!(postcard::from_bytes::<LockName>(&bytes).as_ref(), Ok(&name));
        assert_eq!(LockName::of_directory(&name.directory()), Some(name));
        for bad in ["", "/", "a/", "/a", "a/../b", &"x".repeat(256), &"x/".repeat(480)] {
            assert!(LockName::parse(bad).is_err(), "{bad:?} was taken");
        }
        let refused = |name| LockName::parse(name).unwrap_err().to_string();
        assert!(refused("/orders/42").ends_with("leave out the leading slash"));
        assert!(refused("orders/42/").ends_with("leave out the trailing slash"));
    }

    #[test]
    fn requests_are_read_back_from_their_names() {
        let uuid = RequestId(7);
        for mode in [LockMode::Exclusive, LockMode::Shared, LockMode::Write, LockMode::Permit(1000)] {
            for delay_ms in [0, 1, MAX_DELAY_MS] {
                let form = RequestForm { mode, delay_ms };
                let name = format!("{}{:010}", form.prefix(uuid), 12);
                assert_eq!(parse_request(&name), Some((12, mode)));
                assert_eq!(parse_name(&name), Some(RequestName { sequence: 12, form, keeps_place_of: None }));
                assert!(name.len() < REQUEST_NAME_BYTES && !is_delay(&name));
            }
        }
        for other in [
            "lock-",
            "lock-123",
            "n_0000000001",
            "lock-00000000-1",
            "ä0000000001",
            "permit-0-0000000001",
            "permit-01-0000000001",
            "permit-1001-0000000001",
            "permit--0000000001",
            "permit-+1-0000000001",
        ] {
            assert_eq!(parse_request(other), None, "{other}");
            assert_eq!(parse_name(other), None, "{other}");
        }
    }

    #[test]
    fn kazoos_requests_stand_in_the_same_queue() {
        let named = |infix: &str| parse_request(&format!("8f14e45fceea4672a0b1c8e5d3f90ab1{infix}0000000007"));
        assert_eq!(named("__lock__"), Some((7, LockMode::Exclusive)));
        assert_eq!(named("__rlock__"), Some((7, LockMode::Shared)));
        assert_eq!(named("__lock"), None);
        assert_eq!(named("lease"), None);
    }

    #[test]
    fn each_sequential_name_is_of_one_family() {
        let families = [
            ("_c_5d0c2b3e-0000-0000-0000-000000000001-lock-", NameFamily::Lock),
            ("lock-", NameFamily::Lock),
            ("8f14e45fceea4672a0b1c8e5d3f90ab1-lock-", NameFamily::Lock),
            ("_c_5d0c2b3e-0000-0000-0000-000000000001-__READ__", NameFamily::ReadWrite),
            ("_c_5d0c2b3e-0000-0000-0000-000000000001-__WRIT__", NameFamily::ReadWrite),
            ("8f14e45fceea4672a0b1c8e5d3f90ab1__lock__", NameFamily::Kazoo),
            ("8f14e45fceea4672a0b1c8e5d3f90ab1__rlock__", NameFamily::Kazoo),
            ("_c_5d0c2b3e-0000-0000-0000-000000000001-permit-3-", NameFamily::Permit),
            ("x-0000000000000007-", NameFamily::Other),
            ("_c_5d0c2b3e-0000-0000-0000-000000000001-latch-", NameFamily::Other),
            ("", NameFamily::Other),
        ];
        for (stem, family) in families {
            assert_eq!(family_of(&format!("{stem}0000000012")), Some(family), "{stem}");
            assert_eq!(family_of(&format!("{stem}notes")), None);
        }
        for (at, family) in NameFamily::ALL.into_iter().enumerate() {
            assert_eq!(family as usize, at);
        }
    }

    #[test]
    fn delays_are_told_from_requests() {
        let dead = FencingToken(u64::MAX);
        for mode in [LockMode::Exclusive, LockMode::Shared, LockMode::Write, LockMode::Permit(3)] {
            let form = RequestForm { mode, delay_ms: 500 };
            let name = delay_name(7, form, dead);
            let read = parse_name(&name).expect("it has a place");
            assert_eq!((read.sequence, read.form.delay_ms, read.keeps_place_of), (7, 500, Some(dead)));
            assert_eq!(read.form.mode.is_exclusive(), mode.permits().is_none());
            assert!(is_delay(&name) && name.len() < REQUEST_NAME_BYTES);
        }
        for other in ["delay-0-1-lock-0000000001", "delay-600001-1-lock-0000000001", "xdelay-1-1-lock-0000000001"] {
            assert_eq!(parse_name(other).map(|name| (name.form.delay_ms, name.keeps_place_of)), Some((0, None)));
        }
    }
}
