//! `lockkeeper lock` and `lockkeeper semaphore`: run a command while holding locks or a permit.

use std::cell::Cell;

use lockkeeper_client::api::{Code, Credential};
use lockkeeper_client::{Error, Moment, Session};

use crate::args::{Common, IfUnreachable, Lock, Semaphore};
use crate::failure::{EXIT_INTERNAL, Failure, print_error};
use crate::hold::nested::{self, Reentered};
use crate::hold::queue::{self, Grant, Request, Target, no_longer_held};
use crate::hold::waiting::Waiting;
use crate::hold::{self, Ended, Hold, Obtained};

/// Most locks that the server accepts in one request.
const MAX_TOGETHER: usize = 256;

/// Runs the command while holding the locks.
pub(crate) fn run(common: &Common, args: &Lock) -> Result<u8, Failure> {
    let mut names = args.names.clone();
    names.sort_unstable();
    names.dedup();
    if names.len() > MAX_TOGETHER {
        let message = format!("{} locks named; at most {MAX_TOGETHER} can be acquired together", names.len());
        return Err(Failure::new(EXIT_INTERNAL, message));
    }
    if args.shared && names.len() > 1 {
        let message = "several locks together are exclusive; omit --shared, or name one lock";
        return Err(Failure::new(EXIT_INTERNAL, message));
    }
    if args.unfair && names.len() > 1 {
        return Err(Failure::new(EXIT_INTERNAL, "--unfair is for one lock; omit it, or name one lock"));
    }
    let above = nested::session_above(&names, args.shared)?;
    hold::run(common, &args.holding, &LockHold { args, names, above, left_open: Cell::new(false) })
}

/// How the locks are held.
enum LockGrant {
    Own(Grant),
    /// Once more, in the session of a lockkeeper around this one.
    Nested(Reentered, Moment),
}

struct LockHold<'a> {
    args: &'a Lock,
    /// Sorted and without duplicates.
    names: Vec<String>,
    /// The session that holds them around this process, and the token.
    above: Option<(Credential, u64)>,
    /// A lockkeeper within still uses this process's session.
    left_open: Cell<bool>,
}

impl LockHold<'_> {
    /// Notes how often the session still holds the locks after this process's own hold has ended. Unless it certainly
    /// does not, the session is left open: its end would take the lock from a lockkeeper within. Only a single
    /// exclusive lock can be held by one.
    fn note_left(&self, still_held: Option<u32>) {
        self.left_open.set(still_held != Some(0) && !self.args.shared && self.names.len() == 1);
        if still_held.is_some_and(|holds| holds > 0) {
            print_error(&format!(
                "lockkeeper lock: {} is still held by a lockkeeper within, and free once that has ended",
                self.name()
            ));
        }
    }
}

impl Hold for LockHold<'_> {
    type Held = LockGrant;

    fn command(&self) -> &'static str {
        "lock"
    }

    fn name(&self) -> String {
        self.args.names.join(" and ")
    }

    fn if_unreachable(&self) -> IfUnreachable {
        self.args.outage.if_unreachable
    }

    fn session_above(&self) -> Option<Credential> {
        self.above.map(|(credential, _)| credential)
    }

    fn is_left_open(&self) -> bool {
        self.left_open.get()
    }

    fn time_limit(&self) -> &'static str {
        "--max-hold"
    }

    fn ends_at(&self, held: &LockGrant) -> Option<Moment> {
        let granted = match held {
            LockGrant::Own(grant) => grant.granted(),
            LockGrant::Nested(_, at) => *at,
        };
        self.args.queueing.max_hold.map(|longest| granted + longest)
    }

    async fn obtain(&self, session: &Session) -> Result<Obtained<LockGrant>, Failure> {
        let label = hold::label(&self.args.holding);
        if let Some((_, token)) = self.above.filter(|(credential, _)| *credential == session.credential())
            && let [name] = &self.names[..]
        {
            let entered = Reentered::enter(session, name, &label, token).await?;
            return Ok(Obtained::Held(LockGrant::Nested(entered, Moment::now())));
        }
        let target = match &self.names[..] {
            [name] if self.args.unfair => Target::Unfair(name.clone()),
            [name] if self.args.shared => Target::Shared(name.clone()),
            [name] => Target::Lock(name.clone()),
            several => Target::Together(several.to_vec()),
        };
        let request = Request { target, wait: self.args.queueing.wait, delay: self.args.queueing.delay, label };
        Grant::obtain(session, request).await.map(|grant| Obtained::Held(LockGrant::Own(grant)))
    }

    async fn waiting(&self, session: &Session) -> Option<Waiting> {
        queue::waiting(session, &self.names).await
    }

    fn variables(&self, held: &LockGrant) -> Vec<(&'static str, String)> {
        let (token, own) = match held {
            LockGrant::Own(grant) => {
                let token = grant.token();
                (token, Some(nested::variable(&self.names, self.args.shared, token, grant.credential())))
            }
            // The variable has them already.
            LockGrant::Nested(entered, _) => (entered.token(), None),
        };
        let names = ("LOCKKEEPER_LOCK", self.args.names.join("\n"));
        [names, ("LOCKKEEPER_TOKEN", token.to_string())].into_iter().chain(own).collect()
    }

    async fn revoked(&self, session: &Session, held: &LockGrant) -> String {
        match held {
            LockGrant::Own(grant) => grant.revoked(session).await,
            LockGrant::Nested(entered, _) => {
                no_longer_held(session, std::slice::from_ref(entered.name()), entered.token()).await
            }
        }
    }

    async fn release(&self, session: &Session, held: LockGrant, ended: Ended) -> Result<u8, Failure> {
        let entered = match held {
            LockGrant::Own(grant) => {
                let (released, still_held) = grant.release_after(session, self).await;
                self.note_left(still_held);
                return released.map(|()| ended.code);
            }
            LockGrant::Nested(entered, _) => entered,
        };
        let lost = || Err(hold::lost(self, "it was released before CMD ended"));
        match entered.leave(session).await {
            Ok(()) => Ok(ended.code),
            Err(Error::Lost(_)) => lost(),
            Err(error) if error.code() == Some(Code::NotHeld) => lost(),
            Err(error) => {
                print_error(&format!("lockkeeper lock: cannot give {} back: {error}", self.name()));
                Ok(ended.code)
            }
        }
    }

    async fn abandon(&self, session: &Session, held: LockGrant) {
        let entered = match held {
            LockGrant::Nested(entered, _) => entered,
            LockGrant::Own(grant) => {
                // Should this be given up in the middle, the session stays for a lockkeeper within.
                self.note_left(None);
                let (_, still_held) = grant.give_back().await;
                return self.note_left(still_held);
            }
        };
        match entered.leave(session).await {
            Ok(()) | Err(Error::Lost(_)) => {}
            Err(error) if error.code() == Some(Code::NotHeld) => {}
            Err(error) => print_error(&format!("lockkeeper lock: cannot give {} back: {error}", self.name())),
        }
    }
}

/// Runs the command while holding a permit.
pub(crate) fn run_semaphore(common: &Common, args: &Semaphore) -> Result<u8, Failure> {
    hold::run(common, &args.holding, args)
}

impl Hold for Semaphore {
    type Held = Grant;

    fn command(&self) -> &'static str {
        "semaphore"
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn if_unreachable(&self) -> IfUnreachable {
        self.outage.if_unreachable
    }

    async fn obtain(&self, session: &Session) -> Result<Obtained<Grant>, Failure> {
        let request = Request {
            target: Target::Permit(self.name.clone(), self.permits),
            wait: self.queueing.wait,
            delay: self.queueing.delay,
            label: hold::label(&self.holding),
        };
        Grant::obtain(session, request).await.map(Obtained::Held)
    }

    async fn waiting(&self, session: &Session) -> Option<Waiting> {
        queue::waiting(session, std::slice::from_ref(&self.name)).await
    }

    fn variables(&self, held: &Grant) -> Vec<(&'static str, String)> {
        vec![("LOCKKEEPER_LOCK", self.name.clone()), ("LOCKKEEPER_TOKEN", held.token().to_string())]
    }

    fn time_limit(&self) -> &'static str {
        "--max-hold"
    }

    fn ends_at(&self, held: &Grant) -> Option<Moment> {
        self.queueing.max_hold.map(|longest| held.granted() + longest)
    }

    async fn revoked(&self, session: &Session, held: &Grant) -> String {
        held.revoked(session).await
    }

    async fn release(&self, session: &Session, held: Grant, ended: Ended) -> Result<u8, Failure> {
        held.release_after(session, self).await.0.map(|()| ended.code)
    }
}
