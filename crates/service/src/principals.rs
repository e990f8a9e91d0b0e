//! Authentication of callers over HTTP and ZooKeeper's protocol, and the ACL entries that a caller may write
//! (reference: `PrepRequestProcessor.fixupACL` and the authentication providers of ZooKeeper 3.9).
//!
//! The state decides on access (`lockkeeper_core::acl`). Here credentials become identities, and the entries that
//! clients send become entries that can be stored.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use lockkeeper_config::Admin;
use lockkeeper_core::access::{CERTIFICATE, JWT, Need, TOKEN, TOKEN_ID_DIGITS};
use lockkeeper_core::acl::{Identity, Network, Principals};
use lockkeeper_core::limits::{MAX_ACL_ENTRIES, MAX_ACL_ID_BYTES, MAX_IDENTITIES};
use lockkeeper_core::{AclEntry, NodePath, Permissions, Refusal, State};
use lockkeeper_node::WatchItem;
use sha1::{Digest as _, Sha1};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use tokio::time::Instant;

use crate::jwt::{Jwt, JwtError};
use crate::socket::ClientCertificate;

/// The scheme of user and password.
pub const DIGEST: &str = "digest";
/// The scheme of addresses.
pub const IP: &str = "ip";
const WORLD: &str = "world";
const ANYONE: &str = "anyone";
const AUTH: &str = "auth";

/// The user who is `super`, as `user:hash`; `None` for nobody.
#[derive(Clone, Debug, Default)]
pub struct SuperDigest {
    digest: Option<String>,
    /// Whether the callers whom this value is for are too far away to be this user.
    is_remote: bool,
}

impl SuperDigest {
    /// As the configuration has it: empty for nobody.
    pub fn new(text: &str) -> Self {
        Self { digest: Some(text.to_owned()).filter(|text| !text.is_empty()), is_remote: false }
    }

    fn is(&self, digest: &str, address: Option<IpAddr>) -> bool {
        let is_known = self.digest.as_deref().is_some_and(|known| known.as_bytes().ct_eq(digest.as_bytes()).into());
        if is_known && self.is_remote {
            tracing::warn!(
                address = address.map(tracing::field::display),
                "the password of the super user came from another machine and does not count; ask from the node's own \
                 machine, or set admin.super_from = \"anywhere\""
            );
        }
        is_known && !self.is_remote
    }
}

/// The super user of the configuration.
#[derive(Clone, Debug)]
pub struct SuperUser {
    for_local: SuperDigest,
    for_remote: SuperDigest,
}

impl SuperUser {
    /// As the configuration has it.
    pub fn new(admin: &Admin) -> Self {
        let for_local = SuperDigest::new(&admin.super_digest);
        let is_remote = !admin.super_from.allows(false);
        Self { for_remote: SuperDigest { is_remote, ..for_local.clone() }, for_local }
    }

    /// As it is for a caller on this machine, or on another one.
    pub fn for_caller(&self, is_local: bool) -> &SuperDigest {
        if is_local { &self.for_local } else { &self.for_remote }
    }
}

/// The first letters of every token, so that a leaked one is recognised.
pub const TOKEN_PREFIX: &str = "lk_";
/// Random bytes of a token.
pub(crate) const TOKEN_BYTES: usize = 32;

/// The credentials prove nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unproved {
    /// The scheme is not known here.
    #[error("its scheme is not known")]
    Scheme,
    /// They are not `user:password`.
    #[error("they are not user:password")]
    Form,
    /// They are not a token of this cluster.
    #[error("a token is lk_ and 43 letters and digits of base64url")]
    Token,
    /// They are not a JWT that counts.
    #[error(transparent)]
    Jwt(#[from] JwtError),
    /// No ACL could name such a user.
    #[error("user and hash are at most {MAX_ACL_ID_BYTES} bytes long")]
    TooLong,
    /// Too many identities for one caller.
    #[error("one caller has at most {MAX_IDENTITIES} identities")]
    TooMany,
}

/// The identity of an address alone.
pub fn from_address(address: IpAddr) -> Principals {
    Principals { address: Some(address.to_canonical()), identities: Vec::new() }
}

/// Adds the identity that credentials prove. Without a colon they are a user without a password, as in ZooKeeper.
///
/// # Errors
/// They prove nothing.
pub fn prove(
    principals: &mut Principals,
    scheme: &str,
    credentials: &[u8],
    super_digest: &SuperDigest,
) -> Result<(), Unproved> {
    match scheme {
        DIGEST => {
            let id = digest_of(std::str::from_utf8(credentials).map_err(|_| Unproved::Form)?);
            if id.len() > MAX_ACL_ID_BYTES {
                return Err(Unproved::TooLong);
            }
            if super_digest.is(&id, principals.address) {
                add(principals, Principals::SUPER, "")?;
            }
            add(principals, DIGEST, &id)
        }
        // As in ZooKeeper's provider.
        IP => Ok(()),
        _ => Err(Unproved::Scheme),
    }
}

/// A token as its holder writes it.
pub(crate) fn token_text(secret: &[u8; TOKEN_BYTES]) -> String {
    format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(secret))
}

/// The hash of a token as the state knows it.
pub(crate) fn hash_of_token(text: &str) -> String {
    Sha256::digest(text).iter().fold(String::with_capacity(64), |mut hash, byte| {
        // Writing to a String cannot fail.
        let _ = write!(hash, "{byte:02x}");
        hash
    })
}

/// Adds the identity of a client certificate that the handshake has verified: the principal that it proves by the rule
/// of its listener, if any.
pub fn prove_certificate(principals: &mut Principals, certificate: &ClientCertificate) {
    if let Some(name) = certificate.principal.as_deref() {
        // One of at most a few identities: there is room.
        let _ = add(principals, CERTIFICATE, name);
    }
}

/// Adds the identity that an `Authorization` header proves: a token of this cluster, a JWT where the configuration has
/// an issuer, or user and password. Another scheme, or another token where there are no JWTs, is for somebody in
/// between, such as a proxy. Returns when a JWT stops to count.
///
/// # Errors
/// It proves nothing, and is meant to.
pub fn prove_header(
    principals: &mut Principals,
    header: &str,
    super_digest: &SuperDigest,
    jwt: Option<&Jwt>,
) -> Result<Option<Instant>, Unproved> {
    let (scheme, token) = scheme_and_credentials(header)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return match prove_basic(principals, header, super_digest) {
            Ok(()) | Err(Unproved::Scheme) => Ok(None),
            Err(why) => Err(why),
        };
    }
    let Some(secret) = token.strip_prefix(TOKEN_PREFIX) else {
        let Some(jwt) = jwt else { return Ok(None) };
        let (principal, until) = jwt.prove(token)?;
        return add(principals, JWT, &principal).map(|()| Some(until));
    };
    let secret = URL_SAFE_NO_PAD.decode(secret).map_err(|_| Unproved::Token)?;
    if secret.len() != TOKEN_BYTES {
        return Err(Unproved::Token);
    }
    add(principals, TOKEN, &hash_of_token(token)).map(|()| None)
}

fn scheme_and_credentials(header: &str) -> Result<(&str, &str), Unproved> {
    let (scheme, credentials) = header.trim().split_once(' ').ok_or(Unproved::Form)?;
    Ok((scheme, credentials.trim()))
}

/// Adds the identity that an `Authorization` header proves: `Basic` (RFC 7617) carries the user and password of
/// ZooKeeper's digest scheme.
///
/// # Errors
/// It is another scheme, or is not written as that one is.
fn prove_basic(principals: &mut Principals, header: &str, super_digest: &SuperDigest) -> Result<(), Unproved> {
    let (scheme, credentials) = scheme_and_credentials(header)?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return Err(Unproved::Scheme);
    }
    let credentials = STANDARD.decode(credentials).map_err(|_| Unproved::Form)?;
    prove(principals, DIGEST, &credentials, super_digest)
}

fn add(principals: &mut Principals, scheme: &str, id: &str) -> Result<(), Unproved> {
    let identity = Identity { scheme: scheme.into(), id: id.into() };
    if principals.identities.contains(&identity) {
        return Ok(());
    }
    if principals.identities.len() >= MAX_IDENTITIES {
        return Err(Unproved::TooMany);
    }
    principals.identities.push(identity);
    Ok(())
}

/// The entries as they are stored: each once, `auth` replaced by the caller's identities.
///
/// # Errors
/// An entry is invalid: which, and why.
pub fn fix_up(principals: &Principals, acl: impl IntoIterator<Item = AclEntry>) -> Result<Vec<AclEntry>, String> {
    let mut stored: Vec<AclEntry> = Vec::new();
    for entry in acl {
        // Checked as it grows: finding duplicates takes quadratic time.
        if stored.len() > MAX_ACL_ENTRIES {
            return Err(format!("a list has at most {MAX_ACL_ENTRIES} entries"));
        }
        let mut put = |entry: AclEntry| {
            if !stored.contains(&entry) {
                stored.push(entry);
            }
        };
        let AclEntry { permissions, scheme, id } = &entry;
        match scheme.as_str() {
            WORLD if id == ANYONE => put(entry),
            WORLD => return Err(format!("scheme world has the id {ANYONE} alone, not '{id}'")),
            AUTH => {
                let mut proved = principals.identities.iter().filter(|known| *known.scheme == *DIGEST).peekable();
                if proved.peek().is_none() {
                    return Err(
                        "scheme auth means who the caller has proved to be, and this one has proved nothing".into()
                    );
                }
                for known in proved {
                    put(AclEntry { permissions: *permissions, scheme: DIGEST.into(), id: known.id.to_string() });
                }
            }
            DIGEST if id.split_once(':').is_some_and(|(_, hash)| !hash.is_empty() && !hash.contains(':')) => put(entry),
            DIGEST => return Err(format!("the id of scheme digest is user:hash, not '{id}'")),
            IP if Network::parse(id).is_some() => put(entry),
            IP => return Err(format!("the id of scheme ip is an address, or one with a number of bits, not '{id}'")),
            // Nobody can prove another scheme here: such an ACL would lock out its author.
            _ => return Err(format!("scheme '{scheme}' is none of world, auth, digest and ip")),
        }
    }
    Ok(stored)
}

/// Refuses to show a node that the caller may not read. A node that does not exist is no secret.
///
/// # Errors
/// The caller has no right to it, or the node's list does not allow it.
pub fn may_read(principals: &Principals, state: &State, path: &NodePath) -> Result<(), Refusal> {
    state.check_right(principals, &Need::to_read(path))?;
    list_allows(principals, state, path)
}

/// The part of [`may_read`] that asks the node's own list.
pub(crate) fn list_allows(principals: &Principals, state: &State, path: &NodePath) -> Result<(), Refusal> {
    match state.get(path) {
        Some(node) if !principals.may(Permissions::READ, node.acl) => {
            Err(Refusal::NoAuth { path: path.clone(), wanted: Permissions::READ })
        }
        _ => Ok(()),
    }
}

/// Whether the caller may learn the name of a node: it must have the right to read it, and be allowed to list its
/// directory.
pub(crate) fn may_name(principals: &Principals, state: &State, path: &NodePath) -> bool {
    state.check_right(principals, &Need::to_read(path)).is_ok()
        && path.parent().is_none_or(|directory| list_allows(principals, state, &directory).is_ok())
}

/// The part of a watch's item that the caller may know: of changes that it may not read only the zxid.
pub fn readable(principals: &Principals, state: &State, item: WatchItem) -> WatchItem {
    let WatchItem::Changes(mut changes) = item else { return item };
    let zxid = changes.last().map(|change| change.zxid);
    changes.retain(|change| {
        principals.may(Permissions::READ, &change.acl)
            && state.check_right(principals, &Need::to_read(&change.path)).is_ok()
    });
    match zxid {
        Some(zxid) if changes.is_empty() => WatchItem::Bookmark(zxid),
        _ => WatchItem::Changes(changes),
    }
}

/// `user:password` as ACLs name it: the user, and the hash of both.
pub(crate) fn digest_of(credentials: &str) -> String {
    let user = credentials.split(':').next().unwrap_or_default();
    format!("{user}:{}", STANDARD.encode(Sha1::digest(credentials)))
}

/// An entry as readers see it: without hashes for callers who may not administer the node.
pub fn shown_id(entry: &AclEntry, whole: bool) -> String {
    match entry.id.split_once(':') {
        Some((user, _)) if !whole && entry.scheme == DIGEST => format!("{user}:x"),
        _ => entry.id.clone(),
    }
}

/// The names of a caller for people and logs, without hashes: `digest:bob`, `super`, the principal of a certificate, a
/// JWT or a token, or the id of a token that this state does not know. Anybody may call itself by a user of the digest
/// scheme; only the hash tells two callers of one name apart.
pub(crate) fn names_in(principals: &Principals, state: &State) -> Vec<String> {
    let known = |identity: &Identity| match &*identity.scheme {
        TOKEN => state.access().principal_of(identity, state.clock_ms()).map(Cow::into_owned),
        _ => None,
    };
    principals.identities.iter().map(|identity| known(identity).unwrap_or_else(|| name(identity))).collect()
}

fn name(identity: &Identity) -> String {
    match &*identity.scheme {
        DIGEST => format!("{DIGEST}:{}", identity.id.split(':').next().unwrap_or_default()),
        CERTIFICATE | JWT => identity.id.to_string(),
        TOKEN => format!("token {}", identity.id.get(..TOKEN_ID_DIGITS).unwrap_or_default()),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_config::AdminFrom;

    use super::*;

    fn entry(scheme: &str, id: &str) -> AclEntry {
        AclEntry { permissions: Permissions::ALL, scheme: scheme.into(), id: id.into() }
    }

    fn somebody() -> Principals {
        from_address("10.0.0.7".parse().unwrap())
    }

    #[test]
    fn a_digest_is_the_one_that_zookeeper_makes() {
        // From ZooKeeper's documentation of `super:superpw` and of its own tools.
        assert_eq!(digest_of("super:superpw"), "super:g9oN2HttPfn8MMWJZ2r45Np/LIA=");
        assert_eq!(digest_of(""), ":2jmj7l5rSw0yVb/vlWAYkK/YBwk=");
    }

    #[test]
    fn credentials_make_identities() {
        let (mut known, nobody) = (somebody(), SuperDigest::new(""));
        assert_eq!(prove(&mut known, "digest", b"bob:secret", &nobody), Ok(()));
        assert_eq!(prove(&mut known, "digest", b"bob:secret", &nobody), Ok(()));
        assert_eq!(prove(&mut known, "ip", b"", &nobody), Ok(()));
        assert_eq!(prove(&mut known, "kerberos", b"bob", &nobody), Err(Unproved::Scheme));
        assert_eq!(prove(&mut known, "digest", b"\xff", &nobody), Err(Unproved::Form));
        assert_eq!(prove(&mut known, "digest", &[b'x'; MAX_ACL_ID_BYTES], &nobody), Err(Unproved::TooLong));
        assert_eq!(known.identities.len(), 1);
        let root = SuperDigest::new(&digest_of("root:pw"));
        assert_eq!(prove(&mut known, "digest", b"root:wrong", &root), Ok(()));
        assert!(!known.is_super());
        assert_eq!(prove(&mut known, "digest", b"root:pw", &root), Ok(()));
        assert!(known.is_super());
        assert_eq!(names_in(&known, &State::new()), ["digest:bob", "digest:root", "super", "digest:root"]);
    }

    #[test]
    fn the_super_user_counts_from_this_machine_unless_the_configuration_says_otherwise() {
        let is_super = |super_from, is_local| {
            let admin = Admin { super_digest: digest_of("root:pw"), super_from, ..Admin::default() };
            let (mut known, user) = (somebody(), SuperUser::new(&admin));
            prove(&mut known, "digest", b"root:pw", user.for_caller(is_local)).unwrap();
            assert_eq!(known.identities.last().map(|last| &*last.scheme), Some(DIGEST), "it is a digest in any case");
            known.is_super()
        };
        assert!(is_super(AdminFrom::Local, true) && !is_super(AdminFrom::Local, false));
        assert!(is_super(AdminFrom::Anywhere, true) && is_super(AdminFrom::Anywhere, false));
    }

    #[test]
    fn basic_is_digest_by_another_road() {
        let prove = |text: &str| {
            let mut known = somebody();
            prove_basic(&mut known, text, &SuperDigest::default()).map(|()| known.identities[0].id.to_string())
        };
        assert_eq!(prove("Basic Ym9iOnNlY3JldA=="), Ok(digest_of("bob:secret")));
        assert_eq!(prove("basic  Ym9iOnNlY3JldA=="), Ok(digest_of("bob:secret")));
        assert_eq!(prove("Bearer abc"), Err(Unproved::Scheme));
        for wrong in ["Basic", "Basic !!"] {
            assert_eq!(prove(wrong), Err(Unproved::Form), "{wrong}");
        }
    }

    #[test]
    fn identities_are_bounded() {
        let (mut known, nobody) = (somebody(), SuperDigest::default());
        for number in 0..MAX_IDENTITIES {
            assert_eq!(prove(&mut known, "digest", format!("u{number}:p").as_bytes(), &nobody), Ok(()));
        }
        assert_eq!(prove(&mut known, "digest", b"more:p", &nobody), Err(Unproved::TooMany));
    }

    #[test]
    fn lists_are_fixed_up_or_refused() {
        let mut known = somebody();
        for wrong in [
            entry("auth", ""),
            entry("world", "bob"),
            entry("ip", "nowhere"),
            entry("digest", "bob"),
            entry("digest", "bob:"),
            entry("digest", "bob:a:b"),
            entry("x509", "CN=bob"),
            entry("magic", "x"),
            entry("", ""),
        ] {
            assert!(fix_up(&known, [wrong.clone()]).is_err(), "{wrong:?}");
        }
        prove(&mut known, "digest", b"bob:pw", &SuperDigest::default()).unwrap();
        let bob = digest_of("bob:pw");
        let many = (0..100_000).map(|number| entry("digest", &format!("u{number}:hash")));
        assert!(fix_up(&known, many).is_err(), "and at once");
        let stored =
            fix_up(&known, [entry("auth", "anything"), entry("world", "anyone"), entry("digest", &bob)]).unwrap();
        let ids: Vec<&str> = stored.iter().map(|entry| entry.id.as_str()).collect();
        assert_eq!(ids, [bob.as_str(), "anyone"], "who is named twice stands there once");
        assert_eq!(shown_id(&stored[0], false), "bob:x");
        assert_eq!(shown_id(&stored[0], true), bob);
    }
}
