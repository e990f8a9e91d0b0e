//! Identities of a connection and ACLs in the protocol's form. `principals` says what they mean.

use lockkeeper_core::acl::Principals;
use lockkeeper_core::{AclEntry, Permissions};
use lockkeeper_service::principals::{DIGEST, IP, SuperDigest, fix_up, prove, shown_id};
use lockkeeper_zookeeper::{Acl, ClientInfo, ErrorCode, Id};

use super::java_order::{hash_of_identity, sort_identities};

/// The identities that one connection has authenticated.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    principals: Principals,
}

impl Identity {
    /// Of a connection that is known by its address, and by its client's certificate if it has one.
    pub(super) fn of(principals: Principals) -> Self {
        Self { principals }
    }

    pub(super) fn principals(&self) -> &Principals {
        &self.principals
    }

    /// Adds the identity that credentials prove.
    pub(super) fn authenticate(
        &mut self,
        scheme: &str,
        credentials: &[u8],
        super_digest: &SuperDigest,
    ) -> Result<(), ErrorCode> {
        prove(&mut self.principals, scheme, credentials, super_digest).map_err(|_| ErrorCode::AuthFailed)
    }

    /// The identities without secrets, in the order of whoAmI.
    pub(super) fn shown(&self) -> Vec<ClientInfo> {
        let address = self.principals.address.map(|address| (IP, address.to_string()));
        let proved = self.principals.identities.iter().map(|known| (&*known.scheme, known.id.to_string()));
        let mut all: Vec<(&str, String)> = address.into_iter().chain(proved).collect();
        sort_identities(&mut all, |(scheme, id)| hash_of_identity(scheme, id));
        let shown = |(scheme, mut id): (&str, String)| {
            if scheme == DIGEST {
                id.truncate(id.find(':').unwrap_or(id.len()));
            }
            ClientInfo { auth_scheme: scheme.into(), user: id }
        };
        all.into_iter().map(shown).collect()
    }

    /// The entries in their stored form.
    ///
    /// # Errors
    /// `InvalidAcl` if an entry is invalid or the list is empty.
    pub(super) fn fix_up(&self, acl: &[Acl]) -> Result<Vec<AclEntry>, ErrorCode> {
        let entries: Result<Vec<AclEntry>, _> = acl.iter().map(stored).collect();
        let fixed = entries.and_then(|entries| fix_up(&self.principals, entries).map_err(drop));
        fixed.ok().filter(|fixed| !fixed.is_empty()).ok_or(ErrorCode::InvalidAcl)
    }
}

fn stored(Acl { permissions, id: Id { scheme, id } }: &Acl) -> Result<AclEntry, ()> {
    let permissions = u32::try_from(permissions.0).map(Permissions).map_err(drop)?;
    Ok(AclEntry { permissions, scheme: scheme.clone(), id: id.clone() })
}

/// Entries in the form that clients read. Without the right to administer the node, hashes are left out.
pub(super) fn shown(acl: &[AclEntry], whole: bool) -> Vec<Acl> {
    let show = |entry: &AclEntry| {
        // At most 31, as every stored entry.
        let permissions = lockkeeper_zookeeper::Permissions(i32::try_from(entry.permissions.0).unwrap_or_default());
        Acl { permissions, id: Id { scheme: entry.scheme.clone(), id: shown_id(entry, whole) } }
    };
    acl.iter().map(show).collect()
}

#[cfg(test)]
mod tests {
    use lockkeeper_service::principals::from_address;

    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let mut identity = Identity::of(from_address("10.0.0.7".parse().unwrap()));
        identity.authenticate("digest", b"bob:secret", &SuperDigest::default()).unwrap();
        assert_eq!(identity.authenticate("kerberos", b"bob", &SuperDigest::default()), Err(ErrorCode::AuthFailed));
        let shown: Vec<(String, String)> =
            identity.shown().into_iter().map(|info| (info.auth_scheme, info.user)).collect();
        assert_eq!(shown, [("digest".into(), "bob".into()), ("ip".into(), "10.0.0.7".into())]);
    }

    #[test]
    fn an_empty_or_invalid_acl_is_refused() {
        let identity = Identity::of(from_address("10.0.0.7".parse().unwrap()));
        assert_eq!(identity.fix_up(&[]), Err(ErrorCode::InvalidAcl));
        let nobody = Id { scheme: "auth".into(), id: String::new() };
        let acl = Acl { permissions: lockkeeper_zookeeper::Permissions::ALL, id: nobody };
        assert_eq!(identity.fix_up(&[acl]), Err(ErrorCode::InvalidAcl));
    }
}
