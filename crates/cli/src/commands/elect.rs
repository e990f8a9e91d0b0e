//! `lockkeeper elect`: runs a command while elected leader.

use std::time::Duration;

use lockkeeper_client::recipes::{Leadership, RecipeError};
use lockkeeper_client::{Error, Session};

use crate::args::{Common, Elect};
use crate::failure::{EXIT_INTERNAL, EXIT_LOCK_LOST, EXIT_UNKNOWN_OUTCOME, EXIT_UNREACHABLE, Failure, print_error};
use crate::hold::waiting::Waiting;
use crate::hold::{self, Ended, Hold, Obtained, queue};
use crate::output::escaped;

/// Pause before becoming a candidate again after the cluster could not serve.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Runs the command as leader.
pub(crate) fn run(common: &Common, args: &Elect) -> Result<u8, Failure> {
    hold::run(common, &args.holding, args)
}

impl Hold for Elect {
    type Held = Leadership;

    fn command(&self) -> &'static str {
        "elect"
    }

    fn name(&self) -> String {
        format!("the leadership of {}", escaped(&self.name))
    }

    async fn obtain(&self, session: &Session) -> Result<Obtained<Leadership>, Failure> {
        let election = session.election(&self.name).map_err(refused)?.label(hold::label(&self.holding));
        let wait = self.wait.unwrap_or(Duration::MAX);
        match election.campaign_timeout(self.data.as_bytes(), wait).await.map_err(refused)? {
            Some(leadership) => Ok(Obtained::Held(leadership)),
            None => Err(queue::timed_out(session, &[election.lock_name()], self.wait)),
        }
    }

    async fn waiting(&self, session: &Session) -> Option<Waiting> {
        let election = session.election(&self.name).ok()?;
        let waiting = queue::waiting(session, &[election.lock_name()]).await?;
        Some(Waiting { name: self.name(), ..waiting })
    }

    fn variables(&self, held: &Leadership) -> Vec<(&'static str, String)> {
        vec![("LOCKKEEPER_ELECTION", self.name.clone()), ("LOCKKEEPER_TOKEN", held.token().to_string())]
    }

    async fn revoked(&self, session: &Session, held: &Leadership) -> String {
        let lock = [held.lock_name()];
        tokio::select! {
            because = held.lost() => because,
            because = queue::no_longer_held(session, &lock, held.token()) => because,
        }
    }

    async fn release(&self, session: &Session, held: Leadership, ended: Ended) -> Result<u8, Failure> {
        match held.resign().await {
            Ok(()) => {}
            Err(RecipeError::Client(Error::Lost(_))) => {
                return Err(hold::lost(self, "it ended before CMD did"));
            }
            Err(error) => print_error(&format!(
                "lockkeeper elect: cannot resign from {}; the next candidate leads within {} s: {error}",
                escaped(&self.name),
                session.timeout().as_secs_f32()
            )),
        }
        Ok(ended.code)
    }

    fn retry_after(&self, failure: &Failure) -> Option<Duration> {
        match failure.code {
            EXIT_LOCK_LOST if self.forever => Some(Duration::ZERO),
            EXIT_UNREACHABLE | EXIT_UNKNOWN_OUTCOME if self.forever => Some(RETRY_PAUSE),
            _ => None,
        }
    }
}

fn refused(error: RecipeError) -> Failure {
    match error {
        RecipeError::Client(error) => hold::before_command(error),
        // The leadership was lost before the data were published.
        error @ RecipeError::Stale { .. } => Failure::new(EXIT_LOCK_LOST, error.to_string()),
        other => Failure::new(EXIT_INTERNAL, other.to_string()),
    }
}
