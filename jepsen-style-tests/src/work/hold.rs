//! One client that takes a lock and then does what its arguments say.
//!
//! With a store it increments a number there. It can stop its whole process (SIGSTOP) at the worst moment: between
//! reading and writing. `paused-holder` varies whether the client checks its guard before it writes and whether the
//! store checks the token. Without a store the client holds until it is killed or told to end, and gives the lock back
//! in the way that was asked for.

use std::time::Duration;

use clap::{Args, ValueEnum};
use lockkeeper_client::{Error, Session};
use nix::sys::signal::{Signal, raise};
use tokio::signal::unix::{SignalKind, signal};

use super::{Common, failed, tell_how_sure};
use crate::record::{WorkerEvent, tell};
use crate::store::Store;

/// See the module's text.
#[derive(Args, Clone)]
pub(super) struct HoldWork {
    /// The lock.
    #[arg(long)]
    lock: String,
    /// What is incremented under it: `postgres:CONNECTION` or `file:PATH`.
    #[arg(long)]
    store: Option<Store>,
    /// How it checks that it still holds before it writes.
    #[arg(long, value_enum, default_value_t = Look::Ask)]
    look: Look,
    /// Whether the store is shown the token and refuses a stale one.
    #[arg(long)]
    fence: bool,
    /// Stop this process once, between reading and writing.
    #[arg(long, value_enum)]
    stop: Option<Stop>,
    /// How often it takes the lock and increments.
    #[arg(long, default_value_t = 1)]
    times: u32,
    /// The lock delay that it asks for, in milliseconds.
    #[arg(long)]
    delay_ms: Option<u64>,
    /// How it lets go when it is told to end, if there is no store.
    #[arg(long, value_enum, default_value_t = LetGo::Release)]
    let_go: LetGo,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Look {
    /// Not at all.
    No,
    /// `guard.is_lost()` right before the write.
    Ask,
    /// The write is run by `guard.run(…)`.
    Run,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Stop {
    /// Before it looks at the guard.
    BeforeLook,
    /// After it has looked, before it writes: no look can help there.
    AfterLook,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LetGo {
    /// `guard.release()`.
    Release,
    /// Drops the guard.
    Drop,
    /// Closes the session with the lock held.
    Close,
}

pub(super) async fn run(common: &Common, work: HoldWork) -> Result<Vec<Session>, String> {
    let session = common.open(0).await?;
    tell_how_sure(&session);
    match work.store.clone() {
        Some(store) => increments(&session, &work, &store).await?,
        None => just_hold(&session, &work).await?,
    }
    Ok(vec![session])
}

fn handle(session: &Session, work: &HoldWork) -> lockkeeper_client::locks::Lock {
    let lock = session.lock(&work.lock);
    match work.delay_ms {
        Some(delay_ms) => lock.delay(Duration::from_millis(delay_ms)),
        None => lock,
    }
}

async fn increments(session: &Session, work: &HoldWork, store: &Store) -> Result<(), String> {
    let store = store.open(work.fence).await?;
    let lock = handle(session, work);
    for _ in 0..work.times {
        tell(0, WorkerEvent::Asking);
        let guard = match lock.lock().await {
            Ok(guard) => guard,
            Err(error) => {
                failed(0, "lock", &error).await;
                return Err(error.to_string());
            }
        };
        let token = guard.token();
        tell(0, WorkerEvent::Granted { locks: vec![work.lock.clone()], token });
        let value = store.read().await?;
        tell(0, WorkerEvent::Read { token, value });
        let stop_here = |place| {
            if work.stop == Some(place) {
                // Returns when the process has been continued.
                let _ = raise(Signal::SIGSTOP);
            }
        };
        let wrote = match work.look {
            Look::Run => {
                let writing = async {
                    stop_here(Stop::BeforeLook);
                    // A place where the future can be dropped, as there is one in every write over a network.
                    tokio::task::yield_now().await;
                    store.write(value + 1, token).await
                };
                guard.run(writing).await
            }
            Look::Ask => {
                stop_here(Stop::BeforeLook);
                if guard.is_lost() {
                    Err(Error::Lost(guard.lost().await))
                } else {
                    stop_here(Stop::AfterLook);
                    Ok(store.write(value + 1, token).await)
                }
            }
            Look::No => {
                stop_here(Stop::BeforeLook);
                Ok(store.write(value + 1, token).await)
            }
        };
        match wrote {
            Ok(accepted) => tell(0, WorkerEvent::Wrote { token, value: value + 1, accepted: accepted? }),
            Err(error) => {
                tell(0, WorkerEvent::Lost { token, why: error.to_string() });
                continue;
            }
        }
        tell(0, WorkerEvent::Letting { token });
        match guard.release().await {
            Ok(()) => tell(0, WorkerEvent::LetGo { token }),
            Err(Error::Lost(why)) => tell(0, WorkerEvent::Lost { token, why }),
            Err(error) => failed(0, "release", &error).await,
        }
    }
    Ok(())
}

async fn just_hold(session: &Session, work: &HoldWork) -> Result<(), String> {
    let mut told_to_end = signal(SignalKind::user_defined1()).map_err(|error| error.to_string())?;
    tell(0, WorkerEvent::Asking);
    let guard = handle(session, work).lock().await.map_err(|error| error.to_string())?;
    let token = guard.token();
    tell(0, WorkerEvent::Granted { locks: vec![work.lock.clone()], token });
    tokio::select! {
        _ = told_to_end.recv() => {}
        why = guard.lost() => {
            tell(0, WorkerEvent::Lost { token, why });
            return Ok(());
        }
    }
    tell(0, WorkerEvent::Letting { token });
    match work.let_go {
        LetGo::Release => guard.release().await.map_err(|error| error.to_string())?,
        LetGo::Drop => drop(guard),
        LetGo::Close => {
            // The guard outlives the session: its release then finds nothing to do.
            session.clone().close().await.map_err(|error| error.to_string())?;
            drop(guard);
        }
    }
    tell(0, WorkerEvent::LetGo { token });
    Ok(())
}
