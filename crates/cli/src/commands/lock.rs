//! `lockkeeper lock`: runs a command while holding a lock.

use lockkeeper_api::locks::{Acquired, Mode};
use lockkeeper_client::Session;

use crate::args::{Common, Lock};
use crate::failure::{Failure, say};
use crate::hold::{self, Hold, Obtained, queue};

/// Holds the lock and runs the command.
pub(crate) fn run(common: &Common, args: &Lock) -> Result<u8, Failure> {
    hold::run(common, &args.holding, args)
}

impl Hold for Lock {
    type Held = Acquired;

    fn command(&self) -> &'static str {
        "lock"
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    async fn obtain(&self, session: &Session) -> Result<Obtained<Acquired>, Failure> {
        let request = queue::Request {
            name: &self.name,
            mode: if self.shared { Mode::Shared } else { Mode::Exclusive },
            wait: self.wait,
            label: hold::label(&self.holding),
        };
        queue::acquire(session, &request).await.map(Obtained::Held)
    }

    fn variables(&self, held: &Acquired) -> Vec<(&'static str, String)> {
        vec![("LOCKKEEPER_LOCK", self.name.clone()), ("LOCKKEEPER_TOKEN", held.token.to_string())]
    }

    async fn taken(&self, session: &Session, held: &Acquired) -> String {
        queue::taken(session, &self.name, held.token).await
    }

    async fn settle(&self, session: &Session, held: &Acquired, code: u8) -> Result<u8, Failure> {
        match session.client().release(&self.name, held.token).await {
            Err(error) if queue::says_lost(&error) => {
                return Err(hold::lost(self, "it had been taken away before CMD ended"));
            }
            Err(error) => say(&format!(
                "lockkeeper lock: {} could not be released, it is free within {} s: {error}",
                self.name,
                session.timeout().as_secs_f32()
            )),
            Ok(_) => {}
        }
        Ok(code)
    }
}
