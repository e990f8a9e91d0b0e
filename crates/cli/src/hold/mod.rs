//! Runs a command while something is held, and never longer: what `lock` and its siblings have in common.
//!
//! The order that matters: the group is dead before what is held can be another's. So CMD gets SIGTERM when what is left of the
//! session is the grace, SIGKILL when the client calls the session lost (which is before it can expire), and what is held is
//! given back only when nothing of the group is left.

mod capture;
mod label;
pub(crate) mod queue;
mod signals;
mod supervision;

use std::time::Duration;

use lockkeeper_client::{Client, Error, Moment, Session, SessionOptions};
use nix::sys::signal::Signal;
use tokio::sync::mpsc;

use crate::args::{Common, Holding};
use crate::commands::{client, runtime};
use crate::failure::{EXIT_INTERNAL, EXIT_LOCK_LOST, EXIT_UNKNOWN_OUTCOME, EXIT_UNREACHABLE, Failure, say};
use crate::supervise::code_of;
pub(crate) use label::label;
use supervision::{End, supervise};

const SHORTEST_TTL: Duration = Duration::from_millis(500);
/// How long the end of the session may keep the caller waiting.
const LONGEST_CLOSE: Duration = Duration::from_secs(1);

/// What may be held while a command runs.
pub(crate) trait Hold {
    /// What it is once it is held.
    type Held;

    /// The command, as it is typed.
    fn command(&self) -> &'static str;

    /// What it is called, for people.
    fn name(&self) -> String;

    /// Gets it, or finds out that CMD need not run. Dropping the future gives up.
    async fn obtain(&self, session: &Session) -> Result<Obtained<Self::Held>, Failure>;

    /// What CMD finds in its environment.
    fn variables(&self, held: &Self::Held) -> Vec<(&'static str, String)>;

    /// How many bytes of CMD's standard output are kept for [`settle`](Self::settle); more end CMD. Without it CMD writes where
    /// lockkeeper would.
    fn keeps_output(&self) -> Option<usize> {
        None
    }

    /// When it ends even though the session lives.
    fn ends_at(&self, _held: &Self::Held) -> Option<Moment> {
        None
    }

    /// Completes when it was taken away although the session lives, with the reason.
    async fn taken(&self, session: &Session, held: &Self::Held) -> String;

    /// CMD has ended, and nothing of its group is left: gives it back.
    async fn settle(&self, session: &Session, held: Self::Held, ended: Ended) -> Result<u8, Failure>;

    /// Whether to begin anew after that, with another session, and after what pause.
    fn again_after(&self, _failure: &Failure) -> Option<Duration> {
        None
    }
}

/// How CMD ended by itself.
pub(crate) struct Ended {
    /// Its exit code.
    pub(crate) code: u8,
    /// What it printed, where that is kept.
    pub(crate) output: Vec<u8>,
}

/// What came of trying to get something.
pub(crate) enum Obtained<T> {
    /// It is held.
    Held(T),
    /// CMD is not run, and this is the exit code.
    Instead(u8),
}

/// Holds it and runs the command.
pub(crate) fn run(common: &Common, args: &Holding, hold: &impl Hold) -> Result<u8, Failure> {
    if args.ttl < SHORTEST_TTL {
        let message = format!("--ttl is at least {} ms", SHORTEST_TTL.as_millis());
        return Err(Failure::new(EXIT_INTERNAL, message));
    }
    let client = client(common).map_err(|failure| failure.with_code(EXIT_INTERNAL))?;
    // The command is started from this very thread, see `Supervised::start`.
    runtime()?.block_on(async {
        let mut signals = signals::passed_on()?;
        loop {
            let result = once(&client, args, hold, &mut signals).await;
            let Err(failure) = &result else { return result };
            let Some(pause) = hold.again_after(failure) else { return result };
            failure.tell(hold.command());
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                Some(signal) = signals.recv() => return Ok(code_of(signal)),
            }
        }
    })
}

async fn once(
    client: &Client,
    args: &Holding,
    hold: &impl Hold,
    signals: &mut mpsc::Receiver<Signal>,
) -> Result<u8, Failure> {
    let options = SessionOptions { timeout: args.ttl, label: label(args), ..SessionOptions::default() };
    let session = tokio::select! {
        opened = Session::open(client, &options) => opened.map_err(before_command)?,
        Some(signal) = signals.recv() => return Ok(code_of(signal)),
    };
    let obtained = tokio::select! {
        obtained = hold.obtain(&session) => obtained,
        because = session.lost() => Err(before_command(Error::Lost(because))),
        Some(signal) = signals.recv() => Ok(Obtained::Instead(code_of(signal))),
    };
    let mut capture = None;
    let result = match obtained {
        Ok(Obtained::Held(held)) => match supervise(&session, args, hold, &held, signals, &mut capture).await {
            Ok(End::Exited(ended)) => hold.settle(&session, held, ended).await,
            Ok(End::Lost(because)) => Err(lost(hold, &because)),
            Err(failure) => Err(failure),
        },
        Ok(Obtained::Instead(code)) => Ok(code),
        Err(failure) => Err(failure),
    };
    close(session, hold).await;
    // Last, for whoever reads it may take their time.
    if let Some(capture) = capture {
        capture.finish();
    }
    result
}

/// It was another's, or may have been, before CMD had ended by itself.
pub(crate) fn lost(hold: &impl Hold, because: &str) -> Failure {
    Failure::new(EXIT_LOCK_LOST, format!("lost {} while CMD ran: {because}", hold.name()))
}

/// Failures before CMD ran: those without a code of their own are this command's.
pub(crate) fn before_command(error: Error) -> Failure {
    let failure = match error {
        Error::Lost(because) => {
            Failure::new(EXIT_UNREACHABLE, format!("the session was lost while waiting: {because}"))
        }
        other => Failure::from(other),
    };
    match failure.code {
        EXIT_UNREACHABLE | EXIT_UNKNOWN_OUTCOME => failure,
        _ => failure.with_code(EXIT_INTERNAL),
    }
}

async fn close(session: Session, hold: &impl Hold) {
    // Without a cluster there is nobody to tell; the session runs out by itself, and the caller is not kept waiting for it.
    if session.left().is_zero() {
        return;
    }
    if let Ok(Err(error)) = tokio::time::timeout(LONGEST_CLOSE, session.close()).await
        && !matches!(error, Error::Unreachable { .. })
    {
        let (command, name) = (hold.command(), hold.name());
        say(&format!("lockkeeper {command}: the session of {name} could not be closed, it ends by itself: {error}"));
    }
}
