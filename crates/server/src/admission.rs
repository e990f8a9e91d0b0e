//! What lets a client's request in (promise P13). Three lanes that cannot fill each other:
//! requests at work, bounded and shared (`limits.in_flight_requests`); requests that wait for a lock or an event
//! (`limits.waiting_requests`), which hold none of the first; and those that keep or give back what somebody has (keepalive, release, verify,
//! the end of a session), which are never refused for the sake of others: a connection has one of them at a time, a stream [`OWN_LANE`].

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::FromRequestParts;
use axum::http::Method;
use axum::http::request::Parts;
use parking_lot::Mutex;

use crate::budget::{Budget, Exceeded, Holder, Taken};
use crate::config::Limits;
use crate::context::Context;
use crate::failure::Failure;
use crate::http::connection::ClientAddress;

/// Requests of one stream at a time that need no place among those at work.
const OWN_LANE: usize = 64;

/// Replies of so many bytes need no room of the budget: the system's buffers hold as much for each connection anyway.
pub(crate) const SMALL_REPLY_BYTES: usize = 64 * 1024;

/// Whether there is room for a reply of so many bytes, before it is built.
///
/// # Errors
/// There is none, or the holder has its share.
pub(crate) fn check_reply(replies: &Arc<Budget>, holder: Holder, bytes: usize) -> Result<(), Exceeded> {
    if bytes > SMALL_REPLY_BYTES { replies.check(holder, bytes) } else { Ok(()) }
}

/// Whether requests for this route have a lane of their own.
pub(crate) fn has_own_lane(method: &Method, route: &str) -> bool {
    match route {
        "/v1/sessions/{id}" => method == Method::DELETE,
        "/v1/sessions/{id}/keepalive"
        | "/v1/locks/{name}/release"
        | "/v1/locks/{name}/downgrade"
        | "/v1/locks/{name}/verify" => method == Method::POST,
        _ => false,
    }
}

/// Whether a request that has found no route yet is one of [`has_own_lane`].
pub(crate) fn keeps_or_gives_back(method: &Method, path: &str) -> bool {
    let one_part = |part: &str| !part.is_empty() && !part.contains('/');
    match (path.strip_prefix("/v1/sessions/"), path.strip_prefix("/v1/locks/").and_then(|rest| rest.rsplit_once('/'))) {
        (Some(id), _) if method == Method::DELETE => one_part(id),
        (Some(rest), _) => method == Method::POST && rest.strip_suffix("/keepalive").is_some_and(one_part),
        // A name may have slashes.
        (None, Some((_, "release" | "downgrade" | "verify"))) => method == Method::POST,
        (None, _) => false,
    }
}

/// Whether this is where a node's health and figures are asked for: who asks needs them most when the node is overloaded.
pub(crate) fn is_health(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/metrics")
}

/// The budgets of the client listener.
#[derive(Debug)]
pub(crate) struct Admission {
    at_work: Arc<Budget>,
    waiting: Arc<Budget>,
    pub(crate) watches: Arc<Budget>,
    /// Bodies that are being read, of requests.
    pub(crate) request_bytes: Arc<Budget>,
    /// What clients have not read yet, of replies and events.
    pub(crate) reply_bytes: Arc<Budget>,
    own_lane: Arc<AtomicUsize>,
}

impl Admission {
    pub(crate) fn new(limits: &Limits) -> Self {
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
            own_lane: Arc::default(),
        }
    }

    /// Lets a request in. `own` counts those of its stream that are in the lane of their own.
    ///
    /// # Errors
    /// There are too many, or the caller's address has its share.
    pub(crate) fn enter(&self, from: IpAddr, lane: Option<&Lane>) -> Result<AtWork, Exceeded> {
        let place = match lane.and_then(Lane::enter) {
            Some(stream) => Place::Own(Counted::new(&self.own_lane), stream),
            None => Place::Shared(self.at_work.take(Holder::address(from), 1)?),
        };
        Ok(AtWork { from, place: Arc::new(Mutex::new(Some(place))) })
    }

    /// Requests that will be answered soon.
    pub(crate) fn brief(&self) -> usize {
        self.at_work.used() + self.own_lane.load(Ordering::Relaxed)
    }

    /// Requests that have begun and are not answered.
    pub(crate) fn in_flight(&self) -> usize {
        self.brief() + self.waiting.used()
    }

    pub(crate) fn show(&self) {
        for budget in [&self.at_work, &self.waiting, &self.watches, &self.request_bytes, &self.reply_bytes] {
            budget.show();
        }
    }
}

/// The lane of its own of one connection or stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lane(Arc<AtomicUsize>);

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

/// What a request has taken, held for its sake.
#[derive(Debug)]
#[expect(dead_code, reason = "held until they are dropped")]
enum Place {
    Shared(Taken),
    Own(Counted, Counted),
    /// With a body.
    Large(Option<Box<Place>>, Taken),
}

/// A request that was let in; its handler can give the place back before it ends.
#[derive(Clone, Debug)]
pub(crate) struct AtWork {
    from: IpAddr,
    place: Arc<Mutex<Option<Place>>>,
}

impl AtWork {
    /// The request waits from here on: it gives its place to others, and takes one of those that wait for as long as what is given lives.
    ///
    /// # Errors
    /// Too many wait, or the caller's address or session has its share; its place is kept then.
    pub(crate) fn wait(&self, admission: &Admission, session: Option<u64>) -> Result<Taken, Failure> {
        let waiting = self.take_waiting(admission, self.holder(session))?;
        self.leave();
        Ok(waiting)
    }

    /// Takes the room of one that waits, and keeps its place among those at work until it [leaves](Self::leave).
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub(crate) fn take_waiting(&self, admission: &Admission, holder: Holder) -> Result<Taken, Failure> {
        Ok(admission.waiting.take(holder, 1)?)
    }

    /// A session that is made for this request.
    pub(crate) fn holder_to_come(&self) -> Holder {
        Holder::new_session(self.from)
    }

    pub(crate) fn holder(&self, session: Option<u64>) -> Holder {
        session.map_or_else(|| Holder::address(self.from), |session| Holder::session(self.from, session))
    }

    /// Keeps what the request's body has taken for as long as the request is at work.
    pub(crate) fn keep(&self, body: Taken) {
        let mut place = self.place.lock();
        let before = place.take().map(Box::new);
        *place = Some(Place::Large(before, body));
    }

    /// The request is answered, or waits.
    pub(crate) fn leave(&self) {
        drop(self.place.lock().take());
    }
}

impl FromRequestParts<Arc<Context>> for AtWork {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, context: &Arc<Context>) -> Result<Self, Failure> {
        match parts.extensions.get::<Self>() {
            Some(at_work) => Ok(at_work.clone()),
            None => Ok(context.admission.enter(address_of(parts.extensions.get()), None)?),
        }
    }
}

/// Every request has come over some connection; without one it counts as this machine's.
pub(crate) fn address_of(from: Option<&ClientAddress>) -> IpAddr {
    from.map_or(Ipv4Addr::LOCALHOST.into(), |ClientAddress(from)| from.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_or_gives_back_is_known_by_its_path() {
        for (method, path) in [
            (Method::DELETE, "/v1/sessions/7"),
            (Method::POST, "/v1/sessions/7/keepalive"),
            (Method::POST, "/v1/locks/a/release"),
            (Method::POST, "/v1/locks/a/b/downgrade"),
            (Method::POST, "/v1/locks/a%2Fb/verify"),
        ] {
            assert!(keeps_or_gives_back(&method, path), "{method} {path}");
            assert!(!keeps_or_gives_back(&Method::GET, path), "{path}");
        }
        for path in
            ["/v1/sessions", "/v1/sessions/7", "/v1/locks/a/acquire", "/v1/locks/release", "/v1/nodes/a/release"]
        {
            assert!(!keeps_or_gives_back(&Method::POST, path), "{path}");
        }
    }

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
