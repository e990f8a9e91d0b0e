//! `lockkeeper lock` within the CMD of another `lockkeeper lock`: a lock that is held around CMD is held once more, in
//! the same session, instead of being waited for.
//!
//! The locks that are held around CMD are in a variable of its environment, with their sessions' credentials. So
//! whoever reads the environment of CMD can act for these sessions; nothing else may print it.

use lockkeeper_client::api::Credential;
use lockkeeper_client::api::locks::Acquire;
use lockkeeper_client::{Error, Session};

use super::before_command;
use crate::failure::{EXIT_INTERNAL, EXIT_LOCK_LOST, Failure, print_error};
use crate::output::escaped;

/// The environment variable: a line for each lock, the innermost last.
pub(crate) const VARIABLE: &str = "LOCKKEEPER_HELD";

/// A lock that is held around this process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HeldAbove {
    credential: Credential,
    shared: bool,
    token: u64,
    name: String,
}

impl HeldAbove {
    /// `<credential> <mode> <token> <name>`; `None` for anything else.
    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.splitn(4, ' ');
        let credential = parts.next()?.parse().ok()?;
        let shared = match parts.next()? {
            "exclusive" => false,
            "shared" => true,
            _ => return None,
        };
        Some(Self { credential, shared, token: parts.next()?.parse().ok()?, name: parts.next()?.to_owned() })
    }

    fn line(&self) -> String {
        let mode = if self.shared { "shared" } else { "exclusive" };
        format!("{} {mode} {} {}", self.credential, self.token, self.name)
    }
}

fn held_above() -> Vec<HeldAbove> {
    let lines = std::env::var(VARIABLE).unwrap_or_default();
    lines.lines().filter_map(HeldAbove::parse).collect()
}

/// The variable for a CMD that runs under these locks too.
pub(crate) fn variable(names: &[String], shared: bool, token: u64, credential: Credential) -> (&'static str, String) {
    let own = names.iter().map(|name| HeldAbove { credential, shared, token, name: name.clone() });
    let lines: Vec<String> = held_above().into_iter().chain(own).map(|held| held.line()).collect();
    (VARIABLE, lines.join("\n"))
}

/// The session that holds this lock around this process, and the token; `None` if none of these locks is held so.
///
/// # Errors
/// Waiting for the locks would be waiting for itself, and they cannot be held once more.
pub(crate) fn session_above(names: &[String], shared: bool) -> Result<Option<(Credential, u64)>, Failure> {
    decide(names, shared, &held_above())
}

fn decide(names: &[String], shared: bool, above: &[HeldAbove]) -> Result<Option<(Credential, u64)>, Failure> {
    let innermost = |name: &String| above.iter().rev().find(|held| held.name == *name);
    let found: Vec<&HeldAbove> = names.iter().filter_map(innermost).collect();
    let Some(first) = found.first() else { return Ok(None) };
    let refuse = |why: &str| {
        let message = format!("{} is held by a lockkeeper around this one ({VARIABLE}), {why}", escaped(&first.name));
        Err(Failure::new(EXIT_INTERNAL, message))
    };
    if shared || found.iter().any(|held| held.shared) {
        return refuse("and only a lock that is held and asked for without --shared can be held once more");
    }
    if names.len() > 1 {
        return refuse("and a lock can be held once more only by itself; name here only locks that are not held yet");
    }
    let is_of_its_request = |held: &&HeldAbove| held.credential == first.credential && held.token == first.token;
    if above.iter().filter(is_of_its_request).any(|held| held.name != first.name) {
        // Its locks are released together, so none of them can be counted by itself.
        return refuse("together with other locks, and only a lock that is held by itself can be held once more");
    }
    Ok(Some((first.credential, first.token)))
}

/// A lock that this process holds once more.
pub(crate) struct Reentered {
    name: String,
    token: u64,
}

impl Reentered {
    /// Holds the lock once more under this token.
    pub(crate) async fn enter(session: &Session, name: &str, label: &str, token: u64) -> Result<Self, Failure> {
        let ask = Acquire { reentrant: true, label: Some(label.to_owned()), ..Acquire::default() };
        let not_held = || {
            let message = format!("{} is not held any more by the lockkeeper around this one", escaped(name));
            Failure::new(EXIT_LOCK_LOST, message)
        };
        let held = match session.client().acquire(name, &ask).await {
            Err(Error::Refused(problem)) if problem.code == lockkeeper_client::api::Code::LockBusy => {
                return Err(not_held());
            }
            answer => answer.map_err(before_command)?,
        };
        if held.token != token {
            // It was free, and is held anew: not what the outer command holds.
            session.client().release(name, held.token).await.map_err(before_command)?;
            return Err(not_held());
        }
        print_error(&format!(
            "lockkeeper lock: {} is held by the lockkeeper around this one (session {}), and now once more by this one",
            escaped(name),
            session.id()
        ));
        Ok(Self { name: name.to_owned(), token })
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    pub(crate) fn name(&self) -> &String {
        &self.name
    }

    /// Gives this process's own hold of the lock back.
    pub(crate) async fn leave(self, session: &Session) -> Result<(), Error> {
        session.client().release(&self.name, self.token).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(session_id: u64, shared: bool, name: &str) -> HeldAbove {
        HeldAbove {
            credential: Credential { session_id, secret: [7; 16] },
            shared,
            token: session_id,
            name: name.into(),
        }
    }

    fn decided(names: &[&str], shared: bool, above: &[HeldAbove]) -> Result<Option<u64>, ()> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let found = decide(&names, shared, above).map_err(drop)?;
        Ok(found.map(|(credential, _)| credential.session_id))
    }

    #[test]
    fn a_line_comes_back_as_it_was() {
        let lock = held(3, false, "with spaces/x");
        assert_eq!(HeldAbove::parse(&lock.line()), Some(lock));
        for line in ["", "3.07", "3.07070707070707070707070707070707 read 4 x", "x exclusive 4 y"] {
            assert_eq!(HeldAbove::parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn only_a_lock_that_is_held_by_itself_is_held_once_more() {
        let above = [held(1, false, "a"), held(1, false, "b"), held(2, false, "c"), held(3, true, "s")];
        assert_eq!(decided(&["z"], false, &above), Ok(None));
        assert_eq!(decided(&["c"], false, &above), Ok(Some(2)));
        assert_eq!(decided(&["a"], false, &above), Err(()), "it is held together with b");
        assert_eq!(decided(&["b", "a"], false, &above), Err(()));
        assert_eq!(decided(&["c", "z"], false, &above), Err(()), "one more is not held");
        assert_eq!(decided(&["c"], true, &above), Err(()));
        assert_eq!(decided(&["s"], false, &above), Err(()));
        let again = [held(1, false, "a"), held(4, false, "a")];
        assert_eq!(decided(&["a"], false, &again), Ok(Some(4)), "the innermost");
    }
}
