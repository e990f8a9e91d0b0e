//! The naive model's rules of ownership: lock requests, kept places and gates belong to the session that made them,
//! the tops of the service's trees to the super user; and of which names may share a queue.

use lockkeeper_checkers::name::parse;
use lockkeeper_core::*;

use super::naive::{Model, bad, is_lock_directory, split};

/// Whom a node belongs to.
#[derive(PartialEq)]
enum Belongs {
    Nobody,
    Top,
    Request,
    Gate,
}

fn belongs(at: &str, kind: NodeKind) -> Belongs {
    let queued = split(at).is_some_and(|(parent, name)| is_lock_directory(&parent) && parse(&name).is_some());
    match at {
        "/locks" | "/gates" => Belongs::Top,
        _ if queued => Belongs::Request,
        _ if at.starts_with("/gates/") && kind != NodeKind::Container => Belongs::Gate,
        _ => Belongs::Nobody,
    }
}

fn forbidden<T>() -> Result<T, Refusal> {
    Err(Refusal::Forbidden("".into()))
}

/// Which clients look for a name.
fn family(name: &str) -> Option<&'static str> {
    let stem = name.get(..name.len().checked_sub(10)?)?;
    if !name[stem.len()..].bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(match parse(name) {
        None => "others",
        Some(_) if stem.ends_with("lock__") => "kazoo",
        Some(_) if stem.ends_with("__") => "readers and writers",
        Some(_) if stem.ends_with("lock-") => "mutex",
        Some(_) => "permits",
    })
}

impl Model {
    fn is_super(&self) -> bool {
        self.who.identities.iter().any(|identity| &*identity.scheme == "super")
    }

    fn is_own(&self, session: Option<SessionId>, at: &str) -> bool {
        session.is_some_and(|session| self.nodes[at].owner == Some(session.0))
    }

    /// Whether a node that may go goes by force.
    pub(crate) fn goes_by_force(&self, session: Option<SessionId>, at: &str) -> Result<bool, Refusal> {
        match belongs(at, self.nodes[at].kind) {
            Belongs::Nobody => Ok(false),
            Belongs::Top => {
                if self.is_super() {
                    Ok(false)
                } else {
                    forbidden()
                }
            }
            Belongs::Request | Belongs::Gate if self.is_own(session, at) => Ok(false),
            Belongs::Request | Belongs::Gate => {
                if self.may_force {
                    Ok(true)
                } else {
                    forbidden()
                }
            }
        }
    }

    pub(crate) fn check_data_is_theirs(&self, session: Option<SessionId>, at: &str) -> Result<(), Refusal> {
        let theirs = match belongs(at, self.nodes[at].kind) {
            Belongs::Nobody => true,
            Belongs::Top => self.is_super(),
            Belongs::Request => self.is_own(session, at),
            Belongs::Gate => false,
        };
        if theirs { Ok(()) } else { forbidden() }
    }

    pub(crate) fn check_list_is_theirs(&self, session: Option<SessionId>, at: &str) -> Result<(), Refusal> {
        let theirs = match belongs(at, self.nodes[at].kind) {
            Belongs::Nobody => at != "/",
            Belongs::Top => false,
            Belongs::Request | Belongs::Gate => self.is_own(session, at),
        };
        if theirs || self.is_super() { Ok(()) } else { forbidden() }
    }

    /// Whether such a node is made by hand; and the list that it gets, if not the one that was asked for.
    pub(crate) fn check_made_by_hand(&self, at: &str, kind: NodeKind) -> Result<Option<Vec<AclEntry>>, Refusal> {
        let (parent, _) = split(at).unwrap();
        if belongs(&parent, self.nodes[&parent].kind) == Belongs::Gate {
            return forbidden();
        }
        match (belongs(at, kind), kind) {
            (Belongs::Nobody, _) | (Belongs::Request, NodeKind::Ephemeral) => Ok(None),
            (Belongs::Request, _) => bad(),
            (Belongs::Gate, _) => forbidden(),
            (Belongs::Top, NodeKind::Ephemeral | NodeKind::Ttl { .. }) => bad(),
            (Belongs::Top, _) if self.is_super() => Ok(None),
            (Belongs::Top, _) => Ok(Some(vec![AclEntry::open()])),
        }
    }

    /// Names that whoever makes `own` does not look for; all that the service makes looks for all that it makes.
    pub(crate) fn check_names(&self, directory: &str, own: Option<&str>) -> Result<(), Refusal> {
        if self.rules.foreign_names == ForeignNames::Allow || !is_lock_directory(directory) {
            return Ok(());
        }
        let own = match own {
            Some(name) => match family(name) {
                Some(family) => vec![family],
                None => return Ok(()),
            },
            None => vec!["mutex", "readers and writers", "permits"],
        };
        let counts = |name: &String| {
            let is_ephemeral = self.nodes[&format!("{directory}/{name}")].kind == NodeKind::Ephemeral;
            family(name).filter(|family| is_ephemeral || *family != "others")
        };
        if self.children(directory).iter().filter_map(counts).all(|other| own.contains(&other)) {
            return Ok(());
        }
        Err(Refusal::ForeignNames { lock: directory["/locks/".len()..].into(), detail: "".into() })
    }

    /// The list of a directory, for what the service makes there.
    pub(crate) fn list_of(&self, directory: &str) -> Vec<AclEntry> {
        match self.nodes.get(directory) {
            Some(node) if directory != "/" => node.acl.clone(),
            _ => vec![AclEntry::open()],
        }
    }
}
