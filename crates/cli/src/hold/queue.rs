//! Acquires a lock, several locks together, or a permit of a semaphore.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use lockkeeper_client::api::{Credential, locks};
use lockkeeper_client::locks::Backoff;
use lockkeeper_client::{Error, Guard, Moment, Session};
use tokio::time::sleep;

use super::waiting::{Waiting, held_by};
use super::{Hold, before_command, lost};
use crate::failure::{EXIT_WAIT_TIMED_OUT, Failure, print_error};
use crate::output::escaped;

/// What to acquire.
pub(crate) enum Target {
    /// An exclusive lock.
    Lock(String),
    /// An exclusive lock, without standing in the queue.
    Unfair(String),
    /// A shared lock.
    Shared(String),
    /// Several exclusive locks, all or none.
    Together(Vec<String>),
    /// One of a semaphore's permits.
    Permit(String, u16),
}

impl Target {
    fn names(&self) -> &[String] {
        match self {
            Self::Lock(name) | Self::Unfair(name) | Self::Shared(name) | Self::Permit(name, _) => {
                std::slice::from_ref(name)
            }
            Self::Together(names) => names,
        }
    }
}

/// What to acquire, and how.
pub(crate) struct Request {
    pub(crate) target: Target,
    /// How long to wait; `None` waits as long as it takes.
    pub(crate) wait: Option<Duration>,
    pub(crate) delay: Duration,
    pub(crate) label: String,
}

impl Request {
    async fn acquire(&self, session: &Session) -> Result<Option<Box<dyn HeldLock>>, Error> {
        let (label, delay) = (self.label.clone(), self.delay);
        let wait = self.wait.unwrap_or(Duration::MAX);
        Ok(match &self.target {
            Target::Lock(name) => boxed(session.lock(name).label(label).delay(delay).lock_timeout(wait).await?),
            Target::Unfair(name) => {
                let lock = session.spin_lock(name, Backoff::default()).label(label).delay(delay);
                boxed(lock.lock_timeout(wait).await?)
            }
            Target::Shared(name) => boxed(session.rw_lock(name).label(label).delay(delay).read_timeout(wait).await?),
            Target::Together(names) => {
                boxed(session.multi_lock(names).label(label).delay(delay).lock_timeout(wait).await?)
            }
            Target::Permit(name, permits) => {
                boxed(session.semaphore(name, *permits).label(label).delay(delay).acquire_timeout(wait).await?)
            }
        })
    }
}

/// A guard of any kind.
trait HeldLock {
    fn token(&self) -> u64;
    fn lost(&self) -> BoxFuture<'static, String>;
    /// Returns how often the session still holds it.
    fn release(self: Box<Self>) -> BoxFuture<'static, Result<u32, Error>>;
}

impl<K: 'static> HeldLock for Guard<K> {
    fn token(&self) -> u64 {
        self.token()
    }

    fn lost(&self) -> BoxFuture<'static, String> {
        self.lost().boxed()
    }

    fn release(self: Box<Self>) -> BoxFuture<'static, Result<u32, Error>> {
        (*self).release_counted().boxed()
    }
}

fn boxed<K: 'static>(guard: Option<Guard<K>>) -> Option<Box<dyn HeldLock>> {
    guard.map(|guard| Box::new(guard) as Box<dyn HeldLock>)
}

/// A grant and its request.
pub(crate) struct Grant {
    request: Request,
    guard: Box<dyn HeldLock>,
    credential: Credential,
    granted: Moment,
}

impl Grant {
    /// Waits for the grant.
    pub(crate) async fn obtain(session: &Session, request: Request) -> Result<Self, Failure> {
        match request.acquire(session).await.map_err(before_command)? {
            Some(guard) => Ok(Self { request, guard, credential: session.credential(), granted: Moment::now() }),
            None => Err(timed_out(session, request.target.names(), request.wait)),
        }
    }

    pub(crate) fn token(&self) -> u64 {
        self.guard.token()
    }

    /// The credential of the session that holds it.
    pub(crate) fn credential(&self) -> Credential {
        self.credential
    }

    /// When it was granted.
    pub(crate) fn granted(&self) -> Moment {
        self.granted
    }

    /// Completes with the reason when the grant was revoked.
    pub(crate) async fn revoked(&self, session: &Session) -> String {
        tokio::select! {
            because = self.guard.lost() => because,
            because = no_longer_held(session, self.request.target.names(), self.token()) => because,
        }
    }

    /// Gives the own hold back after CMD has ended. Also returns how often the session still holds it, if that is
    /// known: a lockkeeper that CMD left behind may.
    pub(crate) async fn give_back(self) -> (Result<(), Error>, Option<u32>) {
        match self.guard.release().await {
            Ok(still_held) => (Ok(()), Some(still_held)),
            Err(error @ Error::Lost(_)) => (Err(error), Some(0)),
            Err(error) => (Err(error), None),
        }
    }

    /// Releases the grant after CMD has exited, and says so where it was lost, or where that is unknown. Returns how
    /// often the session still holds it, as [`give_back`](Self::give_back).
    pub(crate) async fn release_after(self, session: &Session, hold: &impl Hold) -> (Result<(), Failure>, Option<u32>) {
        let within = session.timeout() + self.request.delay;
        let (released, still_held) = self.give_back().await;
        let result = match released {
            Ok(()) => Ok(()),
            Err(Error::Lost(_)) => Err(lost(hold, "it was revoked before CMD ended")),
            Err(error) => {
                print_error(&format!(
                    "lockkeeper {}: cannot release {}, which becomes free within {} s: {error}",
                    hold.command(),
                    hold.name(),
                    within.as_secs_f32()
                ));
                Ok(())
            }
        };
        (result, still_held)
    }
}

/// Polls whether the token still holds. Completes when it does not. The session's stream, if there is one, reports it
/// sooner.
pub(crate) async fn no_longer_held(session: &Session, locks: &[String], token: u64) -> String {
    let every = session.timeout() / 3;
    loop {
        sleep(every).await;
        for lock in locks {
            // A failed call says nothing about the lock; the session's own deadline still counts.
            if let Ok(verified) = session.client().verify(lock, token).await
                && !verified.held
            {
                return format!("{} was released by force", escaped(lock));
            }
        }
    }
}

/// Whom this session's request for the locks waits for. The first lock in which it waits counts.
pub(crate) async fn waiting(session: &Session, names: &[String]) -> Option<Waiting> {
    for lock in names {
        let view = session.client().lock_stale(lock).await.ok()?;
        let is_own = |request: &locks::Request| request.session_id == Some(session.id());
        let place = view.queue.iter().position(is_own);
        if let Some(holder) = view.holders.first().filter(|_| place.is_some() || !view.holders.iter().any(is_own)) {
            return Some(Waiting {
                name: lock.clone(),
                place: place.map(|before| before as u64 + 1),
                holder: Some(holder.into()),
                more_holders: view.holders.len() - 1,
                waiters: view.waiting,
            });
        }
    }
    None
}

/// The failure of a wait that timed out, with its place and the holder.
pub(crate) fn timed_out(session: &Session, names: &[String], wait: Option<Duration>) -> Failure {
    let problem = session.last_busy();
    let holders = problem.as_ref().map(|problem| &problem.holders[..]).unwrap_or_default();
    let place = problem.as_ref().and_then(|problem| problem.place);
    // Of several locks, the problem is about one.
    let name = holders.first().and_then(|holder| holder.path.strip_prefix("/locks/")?.rsplit_once('/'));
    let name = name.map_or_else(|| names.join(" or "), |(lock, _request)| lock.to_owned());
    let held = holders.first().map_or_else(|| "held".into(), |first| held_by(&first.into(), holders.len() - 1));
    let place = place.map_or_else(String::new, |place| format!(" at place {place}"));
    let waited = humantime::format_duration(wait.unwrap_or_default());
    let message =
        format!("{} is still {held} after a wait of {waited}{place}; wait longer with --wait", escaped(&name));
    let failure = Failure::new(EXIT_WAIT_TIMED_OUT, message);
    match &problem {
        Some(problem) => failure.with_document(problem),
        None => failure,
    }
}
