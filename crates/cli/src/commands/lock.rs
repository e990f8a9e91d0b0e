//! `lockkeeper lock` and `lockkeeper semaphore`: run a command while holding locks or a permit.

use lockkeeper_client::Session;

use crate::args::{Common, Lock, Semaphore};
use crate::failure::{EXIT_INTERNAL, Failure};
use crate::hold::queue::{Grant, Request, Target};
use crate::hold::{self, Ended, Hold, Obtained};

/// Most locks that the server accepts in one request.
const MAX_TOGETHER: usize = 32;

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
    hold::run(common, &args.holding, &LockHold { args, names })
}

struct LockHold<'a> {
    args: &'a Lock,
    /// Sorted and without duplicates.
    names: Vec<String>,
}

impl Hold for LockHold<'_> {
    type Held = Grant;

    fn command(&self) -> &'static str {
        "lock"
    }

    fn name(&self) -> String {
        self.args.names.join(" and ")
    }

    async fn obtain(&self, session: &Session) -> Result<Obtained<Grant>, Failure> {
        let target = match &self.names[..] {
            [name] if self.args.shared => Target::Shared(name.clone()),
            [name] => Target::Lock(name.clone()),
            several => Target::Together(several.to_vec()),
        };
        let request = Request {
            target,
            wait: self.args.queueing.wait,
            delay: self.args.queueing.delay,
            label: hold::label(&self.args.holding),
        };
        Grant::obtain(session, request).await.map(Obtained::Held)
    }

    fn variables(&self, held: &Grant) -> Vec<(&'static str, String)> {
        vec![("LOCKKEEPER_LOCK", self.args.names.join("\n")), ("LOCKKEEPER_TOKEN", held.token().to_string())]
    }

    async fn revoked(&self, session: &Session, held: &Grant) -> String {
        held.revoked(session).await
    }

    async fn release(&self, session: &Session, held: Grant, ended: Ended) -> Result<u8, Failure> {
        held.release_after(session, self, ended.code).await
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

    async fn obtain(&self, session: &Session) -> Result<Obtained<Grant>, Failure> {
        let request = Request {
            target: Target::Permit(self.name.clone(), self.permits),
            wait: self.queueing.wait,
            delay: self.queueing.delay,
            label: hold::label(&self.holding),
        };
        Grant::obtain(session, request).await.map(Obtained::Held)
    }

    fn variables(&self, held: &Grant) -> Vec<(&'static str, String)> {
        vec![("LOCKKEEPER_LOCK", self.name.clone()), ("LOCKKEEPER_TOKEN", held.token().to_string())]
    }

    async fn revoked(&self, session: &Session, held: &Grant) -> String {
        held.revoked(session).await
    }

    async fn release(&self, session: &Session, held: Grant, ended: Ended) -> Result<u8, Failure> {
        held.release_after(session, self, ended.code).await
    }
}
