//! Who a connection is, and what a client may write into an ACL (reference: `PrepRequestProcessor.fixupACL` and the authentication
//! providers of ZooKeeper 3.9).
//!
//! The state decides who may do what (`lockkeeper_core::acl`). Here credentials become identities, and the entries that clients send become
//! entries that can be stored.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lockkeeper_core::acl::{Identity, Network, Principals};
use lockkeeper_core::limits::MAX_IDENTITIES;
use lockkeeper_core::{AclEntry, Permissions};
use lockkeeper_zookeeper::{Acl, ClientInfo, ErrorCode, Id};
use sha1::{Digest as _, Sha1};
use subtle::ConstantTimeEq as _;

const DIGEST: &str = "digest";
const IP: &str = "ip";
const WORLD: &str = "world";
const ANYONE: &str = "anyone";
const AUTH: &str = "auth";
const X509: &str = "x509";

/// What has been proved over one connection.
#[derive(Clone, Debug)]
pub(super) struct Known {
    principals: Principals,
}

impl Known {
    /// Nothing but where it comes from.
    pub(super) fn at(address: IpAddr) -> Self {
        Self { principals: Principals { address: Some(address.to_canonical()), identities: Vec::new() } }
    }

    /// As the state is told.
    pub(super) fn principals(&self) -> &Principals {
        &self.principals
    }

    /// Takes credentials; `super_digest` is what `super` proves itself by, as `user:hash`.
    pub(super) fn take(
        &mut self,
        scheme: &str,
        credentials: &[u8],
        super_digest: Option<&str>,
    ) -> Result<(), ErrorCode> {
        match scheme {
            DIGEST => {
                let text = std::str::from_utf8(credentials).map_err(|_| ErrorCode::AuthFailed)?;
                let id = digest_of(text).ok_or(ErrorCode::AuthFailed)?;
                if super_digest.is_some_and(|known| bool::from(known.as_bytes().ct_eq(id.as_bytes()))) {
                    self.add(Principals::SUPER, "")?;
                }
                self.add(DIGEST, &id)
            }
            // Known by itself, as ZooKeeper's provider has it.
            IP => Ok(()),
            _ => Err(ErrorCode::AuthFailed),
        }
    }

    fn add(&mut self, scheme: &str, id: &str) -> Result<(), ErrorCode> {
        let identity = Identity { scheme: scheme.into(), id: id.into() };
        if self.principals.identities.contains(&identity) {
            return Ok(());
        }
        if self.principals.identities.len() >= MAX_IDENTITIES {
            return Err(ErrorCode::AuthFailed);
        }
        self.principals.identities.push(identity);
        Ok(())
    }

    /// The connection's identities without their secrets, as whoAmI shows them.
    pub(super) fn shown(&self) -> Vec<ClientInfo> {
        let info = |scheme: &str, user: &str| ClientInfo { auth_scheme: scheme.into(), user: user.into() };
        let address = self.principals.address.map(|address| info(IP, &address.to_string()));
        let proved = self.principals.identities.iter().map(|identity| {
            let user = if *identity.scheme == *DIGEST {
                identity.id.split(':').next().unwrap_or_default()
            } else {
                &identity.id
            };
            info(&identity.scheme, user)
        });
        address.into_iter().chain(proved).collect()
    }

    /// The entries as they are to be stored: each once, `auth` spelt out as who the caller is.
    ///
    /// # Errors
    /// `InvalidAcl` where one makes no sense, or the list is empty.
    pub(super) fn fix_up(&self, acl: &[Acl]) -> Result<Vec<AclEntry>, ErrorCode> {
        let mut stored: Vec<AclEntry> = Vec::new();
        for Acl { permissions, id: Id { scheme, id } } in acl {
            let permissions = u32::try_from(permissions.0).map(Permissions).map_err(|_| ErrorCode::InvalidAcl)?;
            let mut put = |scheme: &str, id: &str| {
                let entry = AclEntry { permissions, scheme: scheme.into(), id: id.into() };
                if !stored.contains(&entry) {
                    stored.push(entry);
                }
            };
            match scheme.as_str() {
                WORLD if id == ANYONE => put(WORLD, ANYONE),
                AUTH => {
                    let of_digest = self.principals.identities.iter().filter(|identity| *identity.scheme == *DIGEST);
                    let mut some = false;
                    for identity in of_digest {
                        some = true;
                        put(DIGEST, &identity.id);
                    }
                    if !some {
                        return Err(ErrorCode::InvalidAcl);
                    }
                }
                DIGEST if id.split(':').count() == 2 => put(DIGEST, id),
                IP if Network::parse(id).is_some() => put(IP, id),
                X509 if !id.is_empty() => put(X509, id),
                _ => return Err(ErrorCode::InvalidAcl),
            }
        }
        if stored.is_empty() { Err(ErrorCode::InvalidAcl) } else { Ok(stored) }
    }
}

/// `user:password` as lists name it: the user, and the hash of both.
pub(super) fn digest_of(credentials: &str) -> Option<String> {
    let (user, _) = credentials.split_once(':')?;
    Some(format!("{user}:{}", STANDARD.encode(Sha1::digest(credentials))))
}

/// Entries as clients read them. Whoever may not administer the node sees no hashes.
pub(super) fn shown(acl: &[AclEntry], whole: bool) -> Vec<Acl> {
    let show = |entry: &AclEntry| {
        let id = match entry.id.split_once(':') {
            Some((user, _)) if !whole && entry.scheme == DIGEST => format!("{user}:x"),
            _ => entry.id.clone(),
        };
        // At most 31, as every stored entry.
        let permissions = lockkeeper_zookeeper::Permissions(i32::try_from(entry.permissions.0).unwrap_or_default());
        Acl { permissions, id: Id { scheme: entry.scheme.clone(), id } }
    };
    acl.iter().map(show).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(scheme: &str, id: &str) -> Acl {
        Acl { permissions: lockkeeper_zookeeper::Permissions::ALL, id: Id { scheme: scheme.into(), id: id.into() } }
    }

    fn somebody() -> Known {
        Known::at("10.0.0.7".parse().unwrap())
    }

    #[test]
    fn a_digest_is_the_one_that_zookeeper_makes() {
        // From ZooKeeper's documentation of `super:superpw` and of its own tools.
        assert_eq!(digest_of("super:superpw").unwrap(), "super:g9oN2HttPfn8MMWJZ2r45Np/LIA=");
        assert_eq!(digest_of("nobody"), None);
    }

    #[test]
    fn credentials_make_identities_and_their_secrets_are_not_shown() {
        let mut known = somebody();
        assert_eq!(known.take("digest", b"bob:secret", None), Ok(()));
        assert_eq!(known.take("digest", b"bob:secret", None), Ok(()));
        assert_eq!(known.take("ip", b"", None), Ok(()));
        assert_eq!(known.take("kerberos", b"bob", None), Err(ErrorCode::AuthFailed));
        assert_eq!(known.take("digest", b"bob", None), Err(ErrorCode::AuthFailed));
        assert_eq!(known.principals().identities.len(), 1);
        let shown: Vec<(String, String)> =
            known.shown().into_iter().map(|info| (info.auth_scheme, info.user)).collect();
        assert_eq!(shown, [("ip".into(), "10.0.0.7".into()), ("digest".into(), "bob".into())]);
        assert!(!known.principals().is_super());
        let digest = digest_of("root:pw").unwrap();
        assert_eq!(known.take("digest", b"root:wrong", Some(&digest)), Ok(()));
        assert!(!known.principals().is_super());
        assert_eq!(known.take("digest", b"root:pw", Some(&digest)), Ok(()));
        assert!(known.principals().is_super());
    }

    #[test]
    fn identities_are_bounded() {
        let mut known = somebody();
        for number in 0..MAX_IDENTITIES {
            assert_eq!(known.take("digest", format!("u{number}:p").as_bytes(), None), Ok(()));
        }
        assert_eq!(known.take("digest", b"more:p", None), Err(ErrorCode::AuthFailed));
    }

    #[test]
    fn lists_are_fixed_up_or_refused() {
        let mut known = somebody();
        assert_eq!(known.fix_up(&[]), Err(ErrorCode::InvalidAcl));
        assert_eq!(known.fix_up(&[acl("auth", "")]), Err(ErrorCode::InvalidAcl), "nobody was authenticated");
        for wrong in [acl("world", "bob"), acl("ip", "nowhere"), acl("digest", "bob"), acl("magic", "x"), acl("", "")] {
            assert_eq!(known.fix_up(std::slice::from_ref(&wrong)), Err(ErrorCode::InvalidAcl), "{wrong:?}");
        }
        known.take("digest", b"bob:pw", None).unwrap();
        let bob = digest_of("bob:pw").unwrap();
        let stored = known.fix_up(&[acl("auth", "anything"), acl("world", "anyone"), acl("digest", &bob)]).unwrap();
        let ids: Vec<&str> = stored.iter().map(|entry| entry.id.as_str()).collect();
        assert_eq!(ids, [bob.as_str(), "anyone"], "who is named twice stands there once");
        assert_eq!(shown(&stored, false)[0].id.id, "bob:x");
        assert_eq!(shown(&stored, true)[0].id.id, bob);
    }
}
