//! A session, from its client's side: a keepalive every third of the timeout, and an end by the client's own clock,
//! counted from the sending of the last acknowledged keepalive and a margin earlier than the cluster may end it
//! (promise P11). Follows the lease of `lockkeeper_client`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Principals, RequestId};
use lockkeeper_node::{Caller, Credential, KeepaliveAck, Node};
use parking_lot::Mutex;
use rand::Rng;
use tokio_util::sync::CancellationToken;

use super::attempt::{Attempt, ServeGuard, TRY, session_end_shown};
use super::{Client, Outcome};
use crate::checkers::Checkers;
use crate::checks::Check;

/// The largest margin, and the share of the timeout that it is below that: as the client library has it.
const LARGEST_MARGIN: Duration = Duration::from_millis(500);
/// Most requests that are acknowledged with one other.
const ACKNOWLEDGED: usize = 16;

#[derive(Debug)]
struct Lease {
    /// True time of the last acknowledged sending.
    sent_us: u64,
    timeout: Duration,
    lost: bool,
    /// The client does not run before this.
    frozen_until_us: u64,
}

/// An open session; clones are the same one.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) credential: Credential,
    /// Whose it is, and who asks under it.
    pub(super) principals: Principals,
    lease: Arc<Mutex<Lease>>,
    acknowledged: Arc<Mutex<VecDeque<RequestId>>>,
    /// Nobody renews it any more.
    stop: CancellationToken,
}

impl Session {
    /// Opens one and begins to keep it alive.
    pub(super) async fn open(client: &mut Client, timeout_ms: u32) -> Option<Session> {
        Self::open_as(client, timeout_ms, Principals::default()).await
    }

    /// The same for somebody.
    pub(super) async fn open_as(client: &mut Client, timeout_ms: u32, principals: Principals) -> Option<Session> {
        let give_up_us = client.now_us() + 10_000_000;
        loop {
            let sent_us = client.now_us();
            let began = client.lab.checkers.lock().reads.began();
            let label = format!("client {}", client.number);
            let who = principals.clone();
            let opening =
                client.call(TRY, move |node| async move { node.open_session_as(who, false, timeout_ms, &label).await });
            if let Attempt::Done(opened) = opening.await {
                client.lab.count("open", Outcome::Ok);
                let credential = opened.value.credential;
                let timeout = Duration::from_millis(opened.value.timeout_ms.into());
                {
                    let mut checkers = client.lab.checkers.lock();
                    checkers.answered("the opening of a session", began, opened.zxid.0);
                    let (session, for_ms) = (credential.session.0, opened.value.timeout_ms.into());
                    checkers
                        .judge(Check::SessionEarly, |it| it.sessions.promised(session, "its opening", sent_us, for_ms));
                }
                let lease = Lease { sent_us, timeout, lost: false, frozen_until_us: 0 };
                let session = Session {
                    credential,
                    principals,
                    lease: Arc::new(Mutex::new(lease)),
                    acknowledged: Arc::default(),
                    stop: CancellationToken::new(),
                };
                session.rely_on(client);
                let (stop, keeping) = (session.stop.clone(), keep(client.fork(), session.clone()));
                tokio::spawn(async move { stop.run_until_cancelled(keeping).await });
                return Some(session);
            }
            client.lab.count("open", Outcome::Unknown);
            if client.now_us() >= give_up_us || client.lab.stopping() {
                return None;
            }
            client.pause_between_tries().await;
        }
    }

    fn lost_at_us(&self, client: &Client) -> u64 {
        let lease = self.lease.lock();
        let margin = (lease.timeout / 10).min(LARGEST_MARGIN);
        lease.sent_us + client.clock.truly_us(lease.timeout - margin)
    }

    /// Tells the checkers until when the client relies on it.
    fn rely_on(&self, client: &Client) {
        let (session, until_us) = (self.credential.session.0, self.lost_at_us(client));
        client.lab.checkers.lock().judge(Check::HolderTold, |it| it.sessions.relied_on(session, until_us));
    }

    /// Whether the client may rely on it no longer. Final.
    pub(super) fn is_lost(&self, client: &Client) -> bool {
        let late = client.now_us() >= self.lost_at_us(client);
        let mut lease = self.lease.lock();
        lease.lost |= late;
        lease.lost
    }

    /// The cluster has said that it is over.
    pub(super) fn report_end(&self, client: &Client) {
        self.lease.lock().lost = true;
        client.lab.checkers.lock().session_end_reported(self.credential.session.0, client.now_us());
    }

    /// A keepalive that was sent then is acknowledged.
    fn renewed(&self, client: &Client, sent_us: u64, timeout_ms: u32) {
        let (session, for_ms) = (self.credential.session.0, timeout_ms.into());
        let promised = |it: &mut Checkers| it.sessions.promised(session, "a keepalive", sent_us, for_ms);
        client.lab.checkers.lock().judge(Check::SessionEarly, promised);
        // Lost is lost: its holder knows.
        if self.is_lost(client) {
            return;
        }
        {
            let mut lease = self.lease.lock();
            lease.timeout = Duration::from_millis(timeout_ms.into());
            lease.sent_us = lease.sent_us.max(sent_us);
        }
        self.rely_on(client);
    }

    /// The client stands still for a while, its keepalives too.
    pub(super) async fn freeze(&self, client: &Client, ms: u64) {
        let until_us = client.now_us() + ms * 1_000;
        self.lease.lock().frozen_until_us = until_us;
        client.sleep_ms(ms).await;
    }

    fn frozen_ms(&self, client: &Client) -> u64 {
        self.lease.lock().frozen_until_us.saturating_sub(client.now_us()) / 1_000
    }

    /// Nobody keeps it alive any more: it will expire.
    pub(super) fn abandon(&self) {
        self.stop.cancel();
    }

    /// Renews it no more, and asks one node after another whether it is over, about when it is.
    pub(super) async fn outlive(&self, client: &mut Client) {
        self.stop.cancel();
        for _ in 0..4 {
            let timeout_ms = u64::try_from(self.lease.lock().timeout.as_millis()).unwrap_or(u64::MAX);
            let ms = timeout_ms + client.rng.random_range(0..=timeout_ms / 8);
            client.sleep_ms(ms).await;
            for _ in 0..4 {
                let (attempt, sent_us) = self.keepalive(client, TRY).await;
                match attempt {
                    Attempt::SessionEnded => return self.report_end(client),
                    // It was not over, and begins anew.
                    Attempt::Done(ack) => {
                        self.renewed(client, sent_us, ack.value.timeout_ms);
                        break;
                    }
                    Attempt::Refused(_) | Attempt::NotExecuted | Attempt::Unknown => client.move_on(),
                }
            }
            if client.lab.stopping() {
                return;
            }
        }
    }

    /// One keepalive, and when it was sent.
    async fn keepalive(&self, client: &mut Client, deadline: Duration) -> (Attempt<KeepaliveAck>, u64) {
        let (credential, sent_us) = (self.credential, client.now_us());
        let began = client.lab.checkers.lock().reads.began();
        let lab = client.lab.clone();
        let serve = move |node: Node| async move {
            let caller = Caller { credential: Some(credential), ..Caller::default() };
            let _served = ServeGuard::begin(lab, &caller);
            node.keepalive_with_others(&credential).await
        };
        let attempt = client.call(deadline, serve).await;
        if let Attempt::Done(ack) = &attempt {
            client.lab.checkers.lock().answered("a keepalive", began, ack.zxid.0);
        }
        let outcome = match &attempt {
            Attempt::Done(_) => Outcome::Ok,
            Attempt::SessionEnded => Outcome::Refused,
            Attempt::Refused(_) | Attempt::NotExecuted => Outcome::Failed,
            Attempt::Unknown => Outcome::Unknown,
        };
        client.lab.count("keepalive", outcome);
        (attempt, sent_us)
    }

    /// Ends it properly.
    pub(super) async fn close(&self, client: &mut Client) {
        self.stop.cancel();
        let began = client.lab.checkers.lock().reads.began();
        for _ in 0..5 {
            let (credential, checkers) = (self.credential, client.lab.checkers.clone());
            let serve = move |node: Node| async move {
                let closed = node.close_session(&credential).await?;
                session_end_shown(&checkers, credential.session.0, &node);
                Ok(closed)
            };
            match client.call(TRY, serve).await {
                Attempt::Done(closed) => {
                    client.lab.checkers.lock().answered("the end of a session", began, closed.zxid.0);
                    self.report_end(client);
                    return client.lab.count("close", Outcome::Ok);
                }
                Attempt::SessionEnded => {
                    self.report_end(client);
                    return client.lab.count("close", Outcome::Refused);
                }
                Attempt::Refused(_) | Attempt::NotExecuted | Attempt::Unknown => client.pause_between_tries().await,
            }
        }
        client.lab.count("close", Outcome::Unknown);
    }

    /// The client has the answer to this, and no try of it is open.
    pub(super) fn acknowledge(&self, id: RequestId) {
        let mut acknowledged = self.acknowledged.lock();
        acknowledged.push_back(id);
        if acknowledged.len() > ACKNOWLEDGED {
            acknowledged.pop_front();
        }
    }

    /// It is asked again under this id, so a try of it will be open.
    pub(super) fn keep(&self, id: RequestId) {
        self.acknowledged.lock().retain(|other| *other != id);
    }

    /// What to acknowledge with the next request. A few of the latest are kept back, for tries at random.
    pub(super) fn acknowledgements(&self) -> Vec<RequestId> {
        let mut acknowledged = self.acknowledged.lock();
        let ready = acknowledged.len().saturating_sub(2);
        acknowledged.drain(..ready).collect()
    }
}

async fn keep(mut client: Client, session: Session) {
    loop {
        let every = session.lease.lock().timeout / 3;
        client.clock.sleep(every).await;
        let frozen_ms = session.frozen_ms(&client);
        if frozen_ms > 0 {
            client.sleep_ms(frozen_ms).await;
        }
        // As often as it takes, for as long as there is any hope.
        while !session.is_lost(&client) {
            let one_try = every.max(Duration::from_millis(100));
            let (attempt, sent_us) = session.keepalive(&mut client, one_try).await;
            match attempt {
                Attempt::Done(ack) => {
                    session.renewed(&client, sent_us, ack.value.timeout_ms);
                    break;
                }
                Attempt::SessionEnded => return session.report_end(&client),
                Attempt::Refused(_) | Attempt::NotExecuted | Attempt::Unknown => {}
            }
            client.pause_between_tries().await;
        }
        if session.is_lost(&client) {
            return;
        }
    }
}
