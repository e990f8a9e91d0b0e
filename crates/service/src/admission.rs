//! Admission of clients' requests (promise P13), in three lanes that cannot fill each other:
//!
//! - requests at work, bounded and shared (`limits.in_flight_requests`);
//! - requests that wait for a lock or an event (`limits.waiting_requests`); a waiting request holds no place of the
//!   first lane;
//! - requests that keep or give back something (keepalive, release, verify, close of a session). Other requests never
//!   cause one of these to be refused: a connection has one at a time, a stream up to `OWN_LANE`.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockkeeper_config::Limits;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::budget::{Budget, Exceeded, Holder, Taken};
use crate::failure::Failure;
use crate::throttle::Throttle;

/// Most requests of one stream at a time in the lane of its own; further ones count as requests at work.
const OWN_LANE: usize = 64;

/// A reply of at most this size takes nothing of the budget: the system's buffers hold as much for each connection
/// anyway.
pub const SMALL_REPLY_BYTES: usize = 64 * 1024;

/// Checks for room for a reply of this size, before the reply is built.
///
/// # Errors
/// The budget is used up, or the holder has its share.
pub(crate) fn check_reply(replies: &Arc<Budget>, holder: Holder, bytes: usize) -> Result<(), Exceeded> {
    if bytes > SMALL_REPLY_BYTES { replies.check(holder, bytes) } else { Ok(()) }
}

/// The budgets of the client listener.
#[derive(Debug)]
pub struct Admission {
    at_work: Arc<Budget>,
    waiting: Arc<Budget>,
    /// Watches.
    pub watches: Arc<Budget>,
    /// Bytes of request bodies that are being read.
    pub request_bytes: Arc<Budget>,
    /// Bytes of replies and events that clients have not read yet.
    pub reply_bytes: Arc<Budget>,
    /// One large body is parsed at a time, so that others leave the processors to small requests.
    pub large_bodies: Semaphore,
    /// Requests a second of namespaces.
    pub throttle: Arc<Throttle>,
    own_lane: Arc<AtomicUsize>,
}

impl Admission {
    /// The budgets with these limits.
    pub fn new(limits: &Limits) -> Self {
        let budget = Budget::new;
        Self {
            at_work: budget(
                "in_flight_requests",
                "requests at work",
                "limits.in_flight_requests",
                limits.in_flight_requests,
            ),
            waiting: budget("waiting_requests", "waiting requests", "limits.waiting_requests", limits.waiting_requests),
            watches: budget("watches", "watches", "limits.watches", limits.watches),
            request_bytes: budget(
                "request_bytes_in_flight",
                "bytes of bodies",
                "limits.request_bytes_in_flight",
                limits.request_bytes_in_flight,
            ),
            reply_bytes: budget(
                "reply_bytes_in_flight",
                "bytes of unread replies",
                "limits.reply_bytes_in_flight",
                limits.reply_bytes_in_flight,
            ),
            large_bodies: Semaphore::new(1),
            throttle: Arc::default(),
            own_lane: Arc::default(),
        }
    }

    /// Admits a request; one with a `lane` of its own takes a place there while there is one.
    ///
    /// # Errors
    /// Too many requests are at work, or the caller's address has its share.
    pub fn enter(&self, from: IpAddr, lane: Option<&Lane>) -> Result<AtWork, Exceeded> {
        let place = match lane.and_then(Lane::enter) {
            Some(stream) => Place::Own(Counted::new(&self.own_lane), stream),
            None => Place::Shared(self.at_work.take(Holder::address(from), 1)?),
        };
        Ok(AtWork { from, place: Arc::new(Mutex::new(Some(place))) })
    }

    /// Requests at work, without those that wait.
    pub fn brief(&self) -> usize {
        self.at_work.used() + self.own_lane.load(Ordering::Relaxed)
    }

    /// Requests at work and requests that wait.
    pub fn in_flight(&self) -> usize {
        self.brief() + self.waiting.used()
    }

    /// Sets the gauges of all budgets.
    pub fn show(&self) {
        for budget in [&self.at_work, &self.waiting, &self.watches, &self.request_bytes, &self.reply_bytes] {
            budget.show();
        }
    }
}

/// The lane of one connection or stream for requests that keep or give back something.
#[derive(Clone, Debug, Default)]
pub struct Lane(Arc<AtomicUsize>);

impl Lane {
    fn enter(&self) -> Option<Counted> {
        let counted = Counted::new(&self.0);
        (self.0.load(Ordering::Relaxed) <= OWN_LANE).then_some(counted)
    }
}

/// Counts for as long as it lives.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The place of a request, freed when it is dropped.
#[derive(Debug)]
#[expect(dead_code, reason = "held until they are dropped")]
enum Place {
    Shared(Taken),
    Own(Counted, Counted),
    /// With a body.
    Large(Option<Box<Place>>, Taken),
}

/// The place of an admitted request. The handler can free it before the request ends.
#[derive(Clone, Debug)]
pub struct AtWork {
    from: IpAddr,
    place: Arc<Mutex<Option<Place>>>,
}

impl AtWork {
    /// Moves the request from the lane of requests at work to that of waiting requests, where it stays until the result
    /// is dropped.
    ///
    /// # Errors
    /// Too many requests wait, or the caller's address or session has its share. The request keeps its place at work.
    pub fn wait(&self, admission: &Admission, session: Option<u64>) -> Result<Taken, Failure> {
        let waiting = self.take_waiting(admission, self.holder(session))?;
        self.leave();
        Ok(waiting)
    }

    /// Frees the place for a pause, with a place among waiting requests in its stead. What the body has taken is kept.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub(crate) fn step_aside(&self, admission: &Admission) -> Result<Taken, Failure> {
        let waiting = self.take_waiting(admission, self.holder(None))?;
        let mut place = self.place.lock();
        *place = match place.take() {
            Some(Place::Large(_, body)) => Some(Place::Large(None, body)),
            _ => None,
        };
        Ok(waiting)
    }

    /// Takes a place at work again.
    ///
    /// # Errors
    /// Too many requests are at work, or the caller's address has its share.
    pub(crate) fn come_back(&self, admission: &Admission) -> Result<(), Failure> {
        let shared = Place::Shared(admission.at_work.take(Holder::address(self.from), 1)?);
        let mut place = self.place.lock();
        *place = Some(match place.take() {
            Some(Place::Large(_, body)) => Place::Large(Some(Box::new(shared)), body),
            _ => shared,
        });
        Ok(())
    }

    /// Takes a place among waiting requests, and keeps the one at work until [`leave`](Self::leave).
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub(crate) fn take_waiting(&self, admission: &Admission, holder: Holder) -> Result<Taken, Failure> {
        Ok(admission.waiting.take(holder, 1)?)
    }

    /// The holder for a session that will be opened for this request.
    pub(crate) fn holder_to_come(&self) -> Holder {
        Holder::new_session(self.from)
    }

    /// The holder for the request, or for its session.
    pub fn holder(&self, session: Option<u64>) -> Holder {
        session.map_or_else(|| Holder::address(self.from), |session| Holder::session(self.from, session))
    }

    /// Keeps what the request's body has taken for as long as the request is at work.
    pub fn keep(&self, body: Taken) {
        let mut place = self.place.lock();
        let before = place.take().map(Box::new);
        *place = Some(Place::Large(before, body));
    }

    /// Frees the place: the request is answered, or waits.
    pub fn leave(&self) {
        drop(self.place.lock().take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_reply_is_refused_before_it_is_built() {
        let limits = Limits { reply_bytes_in_flight: 4 * SMALL_REPLY_BYTES, ..Limits::default() };
        let replies = Admission::new(&limits).reply_bytes;
        let holder = Holder::address(IpAddr::from([10, 0, 0, 1]));
        let large = 2 * SMALL_REPLY_BYTES;
        assert_eq!(check_reply(&replies, holder, large), Ok(()));
        let unread = replies.take(holder, large).unwrap();
        let why = check_reply(&replies, holder, large).unwrap_err();
        assert!(why.to_string().contains("limits.reply_bytes_in_flight"), "{why}");
        assert_eq!(check_reply(&replies, holder, SMALL_REPLY_BYTES), Ok(()), "the system's buffers hold that");
        drop(unread);
        assert_eq!((check_reply(&replies, holder, large), replies.used()), (Ok(()), 0));
    }

    #[test]
    fn a_request_that_steps_aside_leaves_its_place_and_keeps_its_body() {
        let admission = Admission::new(&Limits::default());
        let from = IpAddr::from([10, 0, 0, 1]);
        let at_work = admission.enter(from, None).unwrap();
        at_work.keep(admission.request_bytes.take(Holder::address(from), 1_000).unwrap());
        let waiting = at_work.step_aside(&admission).unwrap();
        assert_eq!((admission.brief(), admission.in_flight(), admission.request_bytes.used()), (0, 1, 1_000));
        at_work.come_back(&admission).unwrap();
        drop(waiting);
        assert_eq!((admission.brief(), admission.in_flight(), admission.request_bytes.used()), (1, 1, 1_000));
        at_work.leave();
        assert_eq!((admission.in_flight(), admission.request_bytes.used()), (0, 0));
    }

    #[test]
    fn waiters_leave_their_place_and_what_gives_back_needs_none() {
        let limits = Limits { in_flight_requests: 4, waiting_requests: 8, ..Limits::default() };
        let admission = Admission::new(&limits);
        let from = IpAddr::from([10, 0, 0, 1]);
        let waiting: Vec<_> = (0..4)
            .map(|session| admission.enter(from, None).unwrap().wait(&admission, Some(session)).unwrap())
            .collect();
        assert_eq!((admission.brief(), admission.in_flight()), (0, 4));
        let at_work: Vec<_> = (0..2).map(|_| admission.enter(from, None).unwrap()).collect();
        let refused: Failure = admission.enter(from, None).unwrap_err().into();
        assert!(refused.problem().detail.contains("limits.in_flight_requests"), "{:?}", refused.problem());
        assert!(admission.enter(IpAddr::from([10, 0, 0, 2]), None).is_ok(), "another address has room");
        let stream = Lane::default();
        let own: Vec<_> = (0..OWN_LANE).map(|_| admission.enter(from, Some(&stream)).unwrap()).collect();
        assert!(admission.enter(from, Some(&stream)).is_err(), "beyond its lane it is a request as any other");
        assert!(admission.enter(from, Some(&Lane::default())).is_ok());
        drop((own, at_work, waiting));
        assert_eq!(admission.in_flight(), 0);
    }
}
