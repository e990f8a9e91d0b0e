//! `lockkeeper semaphore`: runs a command while holding one of so many permits.

use lockkeeper_client::Session;

use crate::args::{Common, Semaphore};
use crate::failure::Failure;
use crate::hold::queue::{Place, Request, What};
use crate::hold::{self, Ended, Hold, Obtained};

/// Holds a permit and runs the command.
pub(crate) fn run(common: &Common, args: &Semaphore) -> Result<u8, Failure> {
    hold::run(common, &args.holding, args)
}

impl Hold for Semaphore {
    type Held = Place;

    fn command(&self) -> &'static str {
        "semaphore"
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    async fn obtain(&self, session: &Session) -> Result<Obtained<Place>, Failure> {
        let request = Request {
            what: What::Permit(self.name.clone(), self.permits),
            wait: self.queueing.wait,
            delay: self.queueing.delay,
            label: hold::label(&self.holding),
        };
        Place::obtain(session, request).await.map(Obtained::Held)
    }

    fn variables(&self, held: &Place) -> Vec<(&'static str, String)> {
        vec![("LOCKKEEPER_LOCK", self.name.clone()), ("LOCKKEEPER_TOKEN", held.token().to_string())]
    }

    async fn taken(&self, session: &Session, held: &Place) -> String {
        held.taken(session).await
    }

    async fn settle(&self, session: &Session, held: Place, ended: Ended) -> Result<u8, Failure> {
        held.give_back(session, self, ended.code).await
    }
}
