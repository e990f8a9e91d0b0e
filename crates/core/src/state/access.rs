//! The replicated part of access control: roles, grants and tokens; who a caller is, and what it may do.

use std::borrow::Cow;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use lockkeeper_mutants::mutant;
use serde::{Deserialize, Serialize};

use super::arguments::bad;
use super::namespaces::{Added, SessionOwner};
use super::size;
use super::transaction::Transaction;
use crate::access::{
    ANYONE, AccessOp, CERTIFICATE, DIGEST, JWT, Need, Resource, Rights, Rule, TOKEN, TOKEN_ID_DIGITS, is_name,
    without_hash,
};
use crate::acl::{Identity, Principals};
use crate::ids::{SessionId, Zxid};
use crate::limits::{MAX_ACCESS_NAME_BYTES, MAX_GRANTS, MAX_PATH_BYTES, MAX_ROLES, MAX_RULES, MAX_TOKENS};
use crate::reply::{Refusal, Reply};

/// The role and the principal that the first enabling makes.
const ADMIN: &str = "admin";
/// Digits of a token's hash.
const HASH_DIGITS: usize = 64;

/// Roles, grants and tokens. `Clone` is O(1).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Access {
    pub(crate) enabled: bool,
    /// The zxid of its last change.
    pub(crate) version: Zxid,
    pub(crate) roles: OrdMap<Arc<str>, Arc<Role>>,
    pub(crate) grants: OrdMap<Arc<str>, OrdSet<Arc<str>>>,
    /// By the hash of the token.
    pub(crate) tokens: OrdMap<Arc<str>, Arc<Token>>,
}

/// A role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Role {
    /// Its rules.
    pub rules: Vec<Rule>,
    /// The zxid of its last change.
    pub version: Zxid,
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// The principal that it proves.
    pub principal: Arc<str>,
    /// When it was made, by the replicated clock.
    pub created_ms: u64,
    /// When it stops to count, by the replicated clock.
    pub expires_ms: Option<u64>,
    /// The beginning of the hour in which it was last used, by the replicated clock.
    pub last_used_ms: Option<u64>,
}

impl Token {
    pub(super) fn counts(&self, clock_ms: u64) -> bool {
        self.expires_ms.is_none_or(|at| clock_ms < at)
    }
}

impl Access {
    /// Whether it is enforced.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// The zxid of its last change.
    pub fn version(&self) -> Zxid {
        self.version
    }

    /// The roles by name.
    pub fn roles(&self) -> impl ExactSizeIterator<Item = (&str, &Role)> {
        self.roles.iter().map(|(name, role)| (&**name, &**role))
    }

    /// The principals with the names of their roles.
    pub fn grants(&self) -> impl ExactSizeIterator<Item = (&str, &OrdSet<Arc<str>>)> {
        self.grants.iter().map(|(principal, roles)| (&**principal, roles))
    }

    /// The tokens by id.
    pub fn tokens(&self) -> impl ExactSizeIterator<Item = (&str, &Token)> {
        self.tokens.iter().map(|(hash, token)| (id_of(hash), &**token))
    }

    /// When the next token expires after this time.
    pub fn next_expiry_ms(&self, clock_ms: u64) -> Option<u64> {
        self.tokens.values().filter_map(|token| token.expires_ms).filter(|at| *at > clock_ms).min()
    }

    /// The principal that an identity proves.
    pub fn principal_of<'a>(&'a self, identity: &'a Identity, clock_ms: u64) -> Option<Cow<'a, str>> {
        match &*identity.scheme {
            TOKEN => {
                let token = self.tokens.get(&identity.id).filter(|token| token.counts(clock_ms))?;
                Some(Cow::Borrowed(&*token.principal))
            }
            // The frontend has verified these, and has seen to it that a JWT counts still.
            CERTIFICATE | JWT => Some(Cow::Borrowed(&*identity.id)),
            DIGEST => Some(Cow::Owned(format!("{DIGEST}:{}", identity.id))),
            Principals::SUPER => Some(Cow::Borrowed(Principals::SUPER)),
            _ => None,
        }
    }

    /// The principals that a caller has proved to be.
    pub fn principals_of<'a>(&'a self, who: &'a Principals, clock_ms: u64) -> impl Iterator<Item = Cow<'a, str>> + 'a {
        who.identities.iter().filter_map(move |identity| self.principal_of(identity, clock_ms))
    }

    /// The identity of a caller to which its session belongs: the first one that proves a principal with a role. Where
    /// access control is not enforced, a principal without one will do.
    pub(crate) fn identity_of(&self, who: &Principals, clock_ms: u64) -> Option<Identity> {
        let is_super = |identity: &&Identity| *identity.scheme == *Principals::SUPER;
        let proves = |identity: &&Identity| self.principal_of(identity, clock_ms).is_some();
        let has_role = |identity: &&Identity| {
            self.principal_of(identity, clock_ms).is_some_and(|principal| self.grants.contains_key(&*principal))
        };
        let all = || who.identities.iter();
        let best = all().find(is_super).or_else(|| all().find(has_role));
        best.or_else(|| all().find(proves).filter(|_| !self.enabled)).cloned()
    }

    /// Whether a caller shows a token that does not count. Nothing is done for such a caller, whatever else it shows.
    fn shows_bad_token(&self, who: &Principals, clock_ms: u64) -> bool {
        let mut tokens = who.identities.iter().filter(|identity| *identity.scheme == *TOKEN);
        tokens.any(|token| self.principal_of(token, clock_ms).is_none())
    }

    /// The names of the roles that a principal has.
    pub fn roles_of(&self, principal: &str) -> impl Iterator<Item = &Arc<str>> {
        self.grants.get(principal).into_iter().flatten()
    }

    /// The role and the rule that allow a principal what is needed.
    pub fn rule_for<'a>(&'a self, principal: &str, need: &Need<'_>) -> Option<(&'a str, &'a Rule)> {
        self.roles_of(principal).find_map(|name| {
            let role = self.roles.get(name)?;
            role.rules.iter().find(|rule| rule.allows(need)).map(|rule| (&**name, rule))
        })
    }

    /// Whether the caller may do what needs this.
    pub(crate) fn allows(&self, who: &Principals, clock_ms: u64, need: &Need<'_>) -> bool {
        self.check(who, clock_ms, need).is_ok()
    }

    /// Whether the caller could do what needs this if it were enforced.
    pub fn would_allow(&self, who: &Principals, clock_ms: u64, need: &Need<'_>) -> bool {
        Self { enabled: true, ..self.clone() }.allows(who, clock_ms, need)
    }

    /// Checks that the caller may do what needs this.
    ///
    /// # Errors
    /// The caller is nobody, or no rule of its roles allows it: which right is missing, and to whom.
    pub fn check(&self, who: &Principals, clock_ms: u64, need: &Need<'_>) -> Result<(), Refusal> {
        if !self.enabled || who.is_super() || mutant!(AllowEverything) {
            return Ok(());
        }
        self.check_known_token(who, clock_ms)?;
        let mut known: Vec<Cow<'_, str>> = self.principals_of(who, clock_ms).collect();
        if known.iter().any(|principal| self.rule_for(principal, need).is_some()) {
            return Ok(());
        }
        if self.rule_for(ANYONE, need).is_some() {
            return Ok(());
        }
        if known.is_empty() {
            return Err(Refusal::Unauthenticated(format!("{need} is for callers who prove who they are").into()));
        }
        known.truncate(3);
        let names: Vec<&str> = known.iter().map(|principal| without_hash(principal)).collect();
        let names = names.join(", ");
        Err(Refusal::Forbidden(format!("no role of {names} has {need}; ask who administers the cluster").into()))
    }

    pub(crate) fn check_known_token(&self, who: &Principals, clock_ms: u64) -> Result<(), Refusal> {
        if self.enabled && self.shows_bad_token(who, clock_ms) {
            return Err(Refusal::Unauthenticated("the token is unknown, expired or revoked".into()));
        }
        Ok(())
    }

    /// Checks that the caller may have a session: any role will do.
    pub(crate) fn check_role(&self, who: &Principals, clock_ms: u64) -> Result<(), Refusal> {
        if !self.enabled || who.is_super() {
            return Ok(());
        }
        self.check_known_token(who, clock_ms)?;
        let mut nobody = true;
        for principal in self.principals_of(who, clock_ms) {
            if self.grants.contains_key(&*principal) {
                return Ok(());
            }
            nobody = false;
        }
        if self.grants.contains_key(ANYONE) {
            return Ok(());
        }
        if nobody {
            return Err(Refusal::Unauthenticated("a session is for callers who prove who they are".into()));
        }
        Err(Refusal::Forbidden("a session is for principals with at least one role, and this caller has none".into()))
    }

    /// Whether a session may go on: its credential still counts, and its principal has a role. One that belongs to
    /// nobody may go on if it owns nothing.
    pub fn session_may_live(&self, identity: Option<&Identity>, owns_nothing: bool, clock_ms: u64) -> bool {
        !self.enabled || mutant!(RevokedSessionLives) || self.would_live(identity, owns_nothing, clock_ms)
    }

    /// The same as if it were enforced.
    pub fn would_live(&self, identity: Option<&Identity>, owns_nothing: bool, clock_ms: u64) -> bool {
        match identity {
            Some(identity) if *identity.scheme == *Principals::SUPER => true,
            Some(identity) => self
                .principal_of(identity, clock_ms)
                .is_some_and(|principal| self.grants.contains_key(&*principal) || self.grants.contains_key(ANYONE)),
            None => owns_nothing || self.grants.contains_key(ANYONE),
        }
    }

    /// Whether somebody with a token or a password can change it.
    fn has_admin(&self, clock_ms: u64) -> bool {
        let need = Need::of(Resource::Cluster, "", Rights::ADMIN);
        let mut by_token = self.tokens.values().filter(|token| token.expires_ms.is_none() && token.counts(clock_ms));
        let digest = |principal: &str| is_of_digest(principal) && self.rule_for(principal, &need).is_some();
        by_token.any(|token| self.rule_for(&token.principal, &need).is_some())
            || self.grants.keys().any(|principal| digest(principal))
    }

    /// The hash of the token with this id.
    pub(super) fn hash_of(&self, id: &str) -> Option<&Arc<str>> {
        let (hash, _) = self.tokens.range(Arc::<str>::from(id)..).next()?;
        (id.len() == TOKEN_ID_DIGITS && hash.starts_with(id)).then_some(hash)
    }

    /// Whether there is a token with this hash that counts.
    pub fn has_token_with_hash(&self, hash: &str, clock_ms: u64) -> bool {
        self.tokens.get(hash).is_some_and(|token| token.counts(clock_ms))
    }

    /// Whether it is as this operation leaves it, because the operation was carried out before. Who asks for a token
    /// draws it at random, so its hash identifies the operation.
    pub(crate) fn is_done(&self, clock_ms: u64, op: &AccessOp) -> bool {
        let (hash, principal, ttl_ms) = match op {
            AccessOp::Enable { first: Some(hash) } if self.enabled => (hash, ADMIN, None),
            AccessOp::CreateToken { hash, principal, ttl_ms } => (hash, &**principal, *ttl_ms),
            _ => return false,
        };
        self.tokens.get(hash).is_some_and(|token| {
            let expires_ms = ttl_ms.map(|ttl_ms| token.created_ms.saturating_add(ttl_ms));
            token.counts(clock_ms) && &*token.principal == principal && token.expires_ms == expires_ms
        })
    }

    /// The same after a change.
    fn changed(&self, zxid: Zxid, clock_ms: u64, op: &AccessOp) -> Result<Self, Refusal> {
        let mut access = self.clone();
        access.version = zxid;
        match op {
            AccessOp::Enable { first } => access.enable(zxid, clock_ms, first.as_ref())?,
            AccessOp::Disable => access.enabled = false,
            AccessOp::PutRole { name, rules, version } => access.put_role(zxid, name, rules, *version)?,
            AccessOp::DeleteRole { name } => access.delete_role(name)?,
            AccessOp::Grant { principal, role } => access.grant(principal, role)?,
            AccessOp::Revoke { principal, role } => access.revoke(principal, role)?,
            AccessOp::CreateToken { hash, principal, ttl_ms } => {
                access.create_token(clock_ms, hash, principal, *ttl_ms)?;
            }
            AccessOp::RevokeToken { id } => {
                let hash = access.hash_of(id).cloned().ok_or_else(|| missing("token", id))?;
                access.tokens.remove(&hash);
            }
            AccessOp::Identify | AccessOp::PutNamespace { .. } | AccessOp::DeleteNamespace { .. } => {}
        }
        Ok(access)
    }

    fn enable(&mut self, zxid: Zxid, clock_ms: u64, first: Option<&Arc<str>>) -> Result<(), Refusal> {
        self.enabled = true;
        if self.has_admin(clock_ms) {
            return Ok(());
        }
        let Some(hash) = first else {
            return Err(Refusal::Forbidden("nobody could administer access control then".into()));
        };
        let all =
            [Resource::Locks, Resource::Nodes, Resource::Gates, Resource::Sessions, Resource::Cluster, Resource::Rates];
        let rules = all.map(|resource| Rule { resource, prefix: "".into(), rights: Rights::ALL });
        if self.roles.get(ADMIN).is_some_and(|role| role.rules != rules) {
            // Those who have it would get every right.
            let why = "there is a role 'admin' with other rules, and nobody could administer access control; grant a \
                       role with the right to admin on cluster, and make a token, before";
            return Err(Refusal::Forbidden(why.into()));
        }
        self.put_role(zxid, &ADMIN.into(), &rules, None)?;
        self.grant(&ADMIN.into(), &ADMIN.into())?;
        self.create_token(clock_ms, hash, &ADMIN.into(), None)
    }

    fn put_role(&mut self, zxid: Zxid, name: &Arc<str>, rules: &[Rule], expected: Option<Zxid>) -> Result<(), Refusal> {
        check_name("a role", name)?;
        check_rules(rules)?;
        let actual = self.roles.get(name).map_or(Zxid(0), |role| role.version);
        if let Some(expected) = expected.filter(|expected| *expected != actual) {
            return Err(Refusal::RoleChanged { role: name.clone(), expected, actual });
        }
        if actual == Zxid(0) && self.roles.len() >= MAX_ROLES {
            return Err(bad(format!("there are at most {MAX_ROLES} roles")));
        }
        self.roles.insert(name.clone(), Arc::new(Role { rules: rules.to_vec(), version: zxid }));
        Ok(())
    }

    fn delete_role(&mut self, name: &Arc<str>) -> Result<(), Refusal> {
        self.roles.remove(name).ok_or_else(|| missing("role", name))?;
        let granted = self.grants.iter().filter(|(_, roles)| roles.contains(name));
        let principals: Vec<Arc<str>> = granted.map(|(principal, _)| principal.clone()).collect();
        principals.iter().try_for_each(|principal| self.revoke(principal, name))
    }

    fn grant(&mut self, principal: &Arc<str>, role: &Arc<str>) -> Result<(), Refusal> {
        check_name("a principal", principal)?;
        if !self.roles.contains_key(role) {
            return Err(missing("role", role));
        }
        let mut roles = self.grants.get(principal).cloned().unwrap_or_default();
        let is_new = roles.insert(role.clone()).is_none();
        if is_new && self.grants.values().map(OrdSet::len).sum::<usize>() >= MAX_GRANTS {
            return Err(bad(format!("there are at most {MAX_GRANTS} grants")));
        }
        self.grants.insert(principal.clone(), roles);
        Ok(())
    }

    fn revoke(&mut self, principal: &Arc<str>, role: &Arc<str>) -> Result<(), Refusal> {
        let not_granted = || Refusal::NotThere(format!("{principal} has no role '{role}'").into());
        let mut roles = self.grants.get(principal).cloned().ok_or_else(not_granted)?;
        roles.remove(role).ok_or_else(not_granted)?;
        if roles.is_empty() {
            self.grants.remove(principal);
        } else {
            self.grants.insert(principal.clone(), roles);
        }
        Ok(())
    }

    fn create_token(
        &mut self,
        clock_ms: u64,
        hash: &Arc<str>,
        principal: &Arc<str>,
        ttl_ms: Option<u64>,
    ) -> Result<(), Refusal> {
        check_name("a principal", principal)?;
        if &**principal == ANYONE || is_of_digest(principal) {
            return Err(bad(format!("'{principal}' is not proved by a token")));
        }
        if hash.len() != HASH_DIGITS || !hash.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(bad(format!("the hash of a token has {HASH_DIGITS} hexadecimal digits")));
        }
        if ttl_ms == Some(0) {
            return Err(bad("a token counts for at least a millisecond"));
        }
        // Those that do not count any more make room.
        let expired = self.tokens.iter().filter(|(_, token)| !token.counts(clock_ms));
        let expired: Vec<Arc<str>> = expired.map(|(hash, _)| hash.clone()).collect();
        expired.iter().for_each(|hash| drop(self.tokens.remove(hash)));
        if self.tokens.len() >= MAX_TOKENS {
            return Err(bad(format!("there are at most {MAX_TOKENS} tokens")));
        }
        if self.hash_of(id_of(hash)).is_some() {
            return Err(bad("there is a token with such a hash"));
        }
        let expires_ms = ttl_ms.map(|ttl| clock_ms.saturating_add(ttl));
        let token = Token { principal: principal.clone(), created_ms: clock_ms, expires_ms, last_used_ms: None };
        self.tokens.insert(hash.clone(), Arc::new(token));
        Ok(())
    }

    /// Checks what must hold for roles, grants and tokens.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let fail = |why: Refusal| why.to_string();
        for (name, role) in &self.roles {
            check_name("a role", name).and_then(|()| check_rules(&role.rules)).map_err(fail)?;
        }
        for (principal, roles) in &self.grants {
            check_name("a principal", principal).map_err(fail)?;
            if roles.is_empty() || roles.iter().any(|role| !self.roles.contains_key(role)) {
                return Err(format!("the roles of {principal} are not all there"));
            }
        }
        let bad_hash = |hash: &Arc<str>| hash.len() != HASH_DIGITS || !hash.is_ascii();
        if self.tokens.keys().any(bad_hash) {
            return Err("the hash of a token is malformed".into());
        }
        Ok(())
    }
}

fn is_of_digest(principal: &str) -> bool {
    principal.strip_prefix(DIGEST).is_some_and(|rest| rest.starts_with(':'))
}

/// The id of the token with this hash.
fn id_of(hash: &str) -> &str {
    hash.get(..TOKEN_ID_DIGITS).unwrap_or(hash)
}

fn missing(what: &str, name: &str) -> Refusal {
    Refusal::NotThere(format!("there is no {what} '{name}'").into())
}

fn check_name(what: &str, name: &str) -> Result<(), Refusal> {
    if !is_name(name) {
        return Err(bad(format!(
            "the name of {what} has 1 to {MAX_ACCESS_NAME_BYTES} letters, digits and . _ - @ / : = +"
        )));
    }
    Ok(())
}

fn check_rules(rules: &[Rule]) -> Result<(), Refusal> {
    if rules.len() > MAX_RULES {
        return Err(bad(format!("a role has at most {MAX_RULES} rules, this one {}", rules.len())));
    }
    for Rule { resource, prefix, rights } in rules {
        if prefix.len() > MAX_PATH_BYTES {
            return Err(bad(format!("the prefix of a rule is at most {MAX_PATH_BYTES} bytes long")));
        }
        if *rights == Rights::default() || rights.0 & !Rights::KNOWN.0 != 0 {
            return Err(bad("a rule has at least one right, and only rights that there are"));
        }
        let nameless = matches!(resource, Resource::Sessions | Resource::Cluster);
        if nameless && !prefix.is_empty() {
            return Err(bad(format!("{resource} has no names: leave out the prefix '{prefix}'")));
        }
        let is_path = prefix.is_empty() || prefix.starts_with('/');
        if *resource == Resource::Nodes && !is_path {
            return Err(bad(format!("the prefix of nodes is a path and begins with a slash, not '{prefix}'")));
        }
        if matches!(resource, Resource::Locks | Resource::Gates | Resource::Rates) && prefix.starts_with('/') {
            return Err(bad(format!("names of {resource} do not begin with a slash as '{prefix}' does")));
        }
    }
    Ok(())
}

impl Transaction<'_> {
    /// Carries out a change of access control. The right to it has been checked.
    pub(crate) fn change_access(&mut self, session: Option<SessionId>, op: &AccessOp) -> Result<Reply, Refusal> {
        match op {
            AccessOp::Identify => return self.identify(session),
            AccessOp::PutNamespace { name, owner, limits, version } => {
                owner.iter().try_for_each(|owner| check_name("a principal", owner))?;
                return self.put_namespace(name, owner.as_ref(), limits, *version);
            }
            AccessOp::DeleteNamespace { name } => return self.delete_namespace(name),
            _ => {}
        }
        if self.access.is_done(self.clock_ms, op) {
            return Ok(Reply::AccessChanged);
        }
        let changed = self.access.changed(self.zxid, self.clock_ms, op)?;
        // Nobody could undo what nobody may change. The caller of this change counts, because its credential is known
        // to work; others only where that is certain.
        let need = Need::of(Resource::Cluster, "", Rights::ADMIN);
        let keeps = |principals: &Principals| changed.allows(principals, self.clock_ms, &need);
        if changed.enabled
            && !changed.has_admin(self.clock_ms)
            && self.who.is_some_and(|actor| !keeps(&actor.principals))
        {
            let why = "after this change nobody could administer access control; give somebody else the right to \
                       admin on cluster, and a token, before";
            return Err(Refusal::Forbidden(why.into()));
        }
        *self.access = changed;
        self.changed = true;
        Ok(Reply::AccessChanged)
    }

    fn identify(&mut self, session: Option<SessionId>) -> Result<Reply, Refusal> {
        let session = session.ok_or(Refusal::SessionRequired)?;
        let is_nobodys = self.sessions.get(&session).is_some_and(|session| session.identity.is_none());
        if is_nobodys && let Some(owner) = self.caller_as_owner() {
            self.tree.namespaces.check(owner.namespace.as_deref(), &Added::session())?;
        }
        self.changed = self.adopt(Some(session));
        Ok(Reply::AccessChanged)
    }

    fn caller_as_owner(&self) -> Option<SessionOwner> {
        self.tree.namespaces.owner_of_session(self.access, &self.who?.principals, self.clock_ms)
    }

    /// Makes a session that of the caller's principal, if it is nobody's yet. True if it was.
    pub(crate) fn adopt(&mut self, session: Option<SessionId>) -> bool {
        let Some(owner) = self.caller_as_owner() else { return false };
        let Some((id, session)) = session.and_then(|id| Some((id, self.sessions.get_mut(&id)?))) else { return false };
        if session.identity.is_some() {
            return false;
        }
        *self.session_bytes += size::of_identity(&owner.identity);
        let session = Arc::make_mut(session);
        self.tree.namespaces.add_session(owner.namespace.as_deref(), id);
        (session.identity, session.namespace) = (Some(owner.identity), owner.namespace);
        true
    }
}
