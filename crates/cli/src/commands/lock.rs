//! `lockkeeper lock`: runs a command while holding a lock, or several together.

use lockkeeper_client::Session;

use crate::args::{Common, Lock};
use crate::failure::{EXIT_INTERNAL, Failure};
use crate::hold::queue::{Place, Request, What};
use crate::hold::{self, Ended, Hold, Obtained};

/// What the server takes in one request.
const MAX_TOGETHER: usize = 32;

/// Holds the locks and runs the command.
pub(crate) fn run(common: &Common, args: &Lock) -> Result<u8, Failure> {
    let mut names = args.names.clone();
    names.sort_unstable();
    names.dedup();
    if names.len() > MAX_TOGETHER {
        let message = format!("{} locks named; at most {MAX_TOGETHER} are taken together", names.len());
        return Err(Failure::new(EXIT_INTERNAL, message));
    }
    if args.shared && names.len() > 1 {
        let message = "several locks are taken alone, not shared; leave out --shared, or name one lock";
        return Err(Failure::new(EXIT_INTERNAL, message));
    }
    hold::run(common, &args.holding, &Locks { args, names })
}

struct Locks<'a> {
    args: &'a Lock,
    /// Sorted, and each once.
    names: Vec<String>,
}

impl Hold for Locks<'_> {
    type Held = Place;

    fn command(&self) -> &'static str {
        "lock"
    }

    fn name(&self) -> String {
        self.args.names.join(" and ")
    }

    async fn obtain(&self, session: &Session) -> Result<Obtained<Place>, Failure> {
        let what = match &self.names[..] {
            [name] if self.args.shared => What::Shared(name.clone()),
            [name] => What::Lock(name.clone()),
            several => What::Together(several.to_vec()),
        };
        let request = Request {
            what,
            wait: self.args.queueing.wait,
            delay: self.args.queueing.delay,
            label: hold::label(&self.args.holding),
        };
        Place::obtain(session, request).await.map(Obtained::Held)
    }

    fn variables(&self, held: &Place) -> Vec<(&'static str, String)> {
        vec![("LOCKKEEPER_LOCK", self.args.names.join("\n")), ("LOCKKEEPER_TOKEN", held.token().to_string())]
    }

    async fn taken(&self, session: &Session, held: &Place) -> String {
        held.taken(session).await
    }

    async fn settle(&self, session: &Session, held: Place, ended: Ended) -> Result<u8, Failure> {
        held.give_back(session, self, ended.code).await
    }
}
