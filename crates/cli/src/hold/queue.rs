//! A place in the queue of a lock or semaphore, or in those of several locks together.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use lockkeeper_client::{Client, Error, Guard, Session};
use tokio::time::sleep;

use super::{Hold, before_command, lost};
use crate::failure::{EXIT_WAIT_TIMED_OUT, Failure, say};
use crate::output::{ago, shown};

/// What is asked for.
pub(crate) enum What {
    /// Alone.
    Lock(String),
    /// Together with others that share it.
    Shared(String),
    /// All of them or none.
    Together(Vec<String>),
    /// One of so many permits.
    Permit(String, u16),
}

impl What {
    fn names(&self) -> &[String] {
        match self {
            Self::Lock(name) | Self::Shared(name) | Self::Permit(name, _) => std::slice::from_ref(name),
            Self::Together(names) => names,
        }
    }
}

/// How it is asked for.
pub(crate) struct Request {
    pub(crate) what: What,
    /// How long to wait; as long as it takes where it is left out.
    pub(crate) wait: Option<Duration>,
    pub(crate) delay: Duration,
    pub(crate) label: String,
}

impl Request {
    async fn ask(&self, session: &Session) -> Result<Option<Box<dyn Held>>, Error> {
        let (label, delay) = (self.label.clone(), self.delay);
        let wait = self.wait.unwrap_or(Duration::MAX);
        Ok(match &self.what {
            What::Lock(name) => boxed(session.lock(name).label(label).delay(delay).lock_timeout(wait).await?),
            What::Shared(name) => boxed(session.rw_lock(name).label(label).delay(delay).read_timeout(wait).await?),
            What::Together(names) => {
                boxed(session.multi_lock(names).label(label).delay(delay).lock_timeout(wait).await?)
            }
            What::Permit(name, permits) => {
                boxed(session.semaphore(name, *permits).label(label).delay(delay).acquire_timeout(wait).await?)
            }
        })
    }
}

/// A guard of whatever kind.
trait Held {
    fn token(&self) -> u64;
    fn lost(&self) -> BoxFuture<'static, String>;
    fn release(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>>;
}

impl<K: 'static> Held for Guard<K> {
    fn token(&self) -> u64 {
        self.token()
    }

    fn lost(&self) -> BoxFuture<'static, String> {
        self.lost().boxed()
    }

    fn release(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        (*self).release().boxed()
    }
}

fn boxed<K: 'static>(guard: Option<Guard<K>>) -> Option<Box<dyn Held>> {
    guard.map(|guard| Box::new(guard) as Box<dyn Held>)
}

/// A grant, and what was asked for.
pub(crate) struct Place {
    request: Request,
    guard: Box<dyn Held>,
}

impl Place {
    /// Waits for it.
    pub(crate) async fn obtain(session: &Session, request: Request) -> Result<Self, Failure> {
        match request.ask(session).await.map_err(before_command)? {
            Some(guard) => Ok(Self { request, guard }),
            None => Err(timed_out(session.client(), request.what.names(), request.wait).await),
        }
    }

    pub(crate) fn token(&self) -> u64 {
        self.guard.token()
    }

    /// Completes when it was taken away.
    pub(crate) async fn taken(&self, session: &Session) -> String {
        tokio::select! {
            because = self.guard.lost() => because,
            because = no_longer_held(session, self.request.what.names(), self.token()) => because,
        }
    }

    /// Gives it back after CMD has ended with that code.
    pub(crate) async fn give_back(self, session: &Session, hold: &impl Hold, code: u8) -> Result<u8, Failure> {
        match self.guard.release().await {
            Ok(()) => {}
            Err(Error::Lost(_)) => return Err(lost(hold, "it had been taken away before CMD ended")),
            Err(error) => say(&format!(
                "lockkeeper {}: {} could not be released, it is free within {} s: {error}",
                hold.command(),
                hold.name(),
                (session.timeout() + self.request.delay).as_secs_f32()
            )),
        }
        Ok(code)
    }
}

/// Asks again and again whether the token still holds; completes when it does not. The session's stream tells sooner, where
/// there is one.
pub(crate) async fn no_longer_held(session: &Session, locks: &[String], token: u64) -> String {
    let every = session.timeout() / 3;
    loop {
        sleep(every).await;
        for lock in locks {
            // No answer says nothing about the lock; the session's own clock runs.
            if let Ok(verified) = session.client().verify(lock, token).await
                && !verified.held
            {
                return format!("{} was taken away by force", shown(lock));
            }
        }
    }
}

/// Says who holds what was waited for in vain.
pub(crate) async fn timed_out(client: &Client, locks: &[String], wait: Option<Duration>) -> Failure {
    let mut held_by = String::new();
    let mut name = locks.join(" or ");
    for lock in locks {
        let Ok(view) = client.lock(lock).await else { continue };
        if let Some(holder) = view.holders.first() {
            held_by = format!(" by {} since {} (token {})", shown(&holder.label), ago(holder.since_ms), holder.token);
            name = lock.clone();
            break;
        }
    }
    let waited = humantime::format_duration(wait.unwrap_or_default());
    let message = format!("{} is still held{held_by} after a wait of {waited}; wait longer with --wait", shown(&name));
    Failure::new(EXIT_WAIT_TIMED_OUT, message)
}
