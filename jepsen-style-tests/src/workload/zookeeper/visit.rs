//! One session of a ZooKeeper client, from its opening to its end.
//!
//! ZooKeeper's clients do not say until when their session certainly lives. Here that follows from what the cluster
//! acknowledged: a write sent at *t* is a sign of life, and the session does not end before *t* + timeout.

use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_client::safety_margin;
use zookeeper_client::{
    Acls, Client, CreateMode, CreateOptions, Error, MultiWriteError, MultiWriteResult, SessionInfo, SessionState,
};

use crate::history::ops::SessionEnded;
use crate::workload::client_kit::Certainty;
use crate::workload::prelude::*;

pub(in crate::workload) const PERSISTENT: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());
pub(in crate::workload) const CONTAINER: CreateOptions<'static> = CreateMode::Container.with_acls(Acls::anyone_all());
pub(in crate::workload) const EPHEMERAL: CreateOptions<'static> = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
pub(in crate::workload) const SEQUENTIAL: CreateOptions<'static> =
    CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());

/// A leader's clock may be so much too fast (the nemesis `clock-rate`), and a timeout on it shorter by as much.
const TOO_FAST: u64 = 20;
/// How long a session may take to end once nobody has a part of it.
const END_WITHIN: Duration = Duration::from_secs(6);

/// How a client means to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::workload) enum Leave {
    /// It closes its session.
    Closes,
    /// It ends its connection and says nothing, like a process that dies.
    Dies,
}

/// What became of a session that was to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::workload) enum SessionOver {
    /// The cluster said that it is closed.
    Closed,
    /// It is over; whether by this is not known.
    Expired,
    /// Nobody knows.
    Unknown,
}

/// See the module's text.
#[derive(Debug)]
pub(in crate::workload) struct Visit {
    pub(in crate::workload) client: Client,
    pub(in crate::workload) session: u64,
    leave: Leave,
    recorder: Recorder,
    /// When the last write was sent that has been acknowledged.
    sent_us: AtomicU64,
}

impl Visit {
    /// A session, as soon as one of these nodes gives one; none if the client is to end before.
    pub(in crate::workload) async fn begin(kit: &mut ClientKit, nodes: &[String], leave: Leave) -> Option<Self> {
        while !kit.context.stop.is_cancelled() {
            if let Ok(client) = connect(nodes, kit.context.ttl, leave, None).await {
                return Some(Self::of(client, leave, &kit.context.recorder));
            }
            kit.think(50..100).await;
        }
        None
    }

    /// Goes on with a session elsewhere, by its id and password.
    ///
    /// # Errors
    /// It is not let in: [`Error::SessionExpired`] where a node says that the session is over.
    pub(in crate::workload) async fn resume(
        kit: &ClientKit,
        nodes: &[String],
        leave: Leave,
        session: SessionInfo,
    ) -> Result<Self, Error> {
        let client = connect(nodes, kit.context.ttl, leave, Some(session)).await?;
        Ok(Self::of(client, leave, &kit.context.recorder))
    }

    fn of(client: Client, leave: Leave, recorder: &Recorder) -> Self {
        let session = client.session_id().0.cast_unsigned();
        recorder.note(ops::OPENED, &SessionRef { session }, None);
        let (mut states, watching) = (client.state_watcher(), recorder.clone());
        tokio::spawn(async move {
            loop {
                match states.changed().await {
                    SessionState::Expired => {
                        let why = "the library says that it expired".to_owned();
                        return watching.note(ops::SESSION_LOST, &SessionEnded { session, why }, None);
                    }
                    state if state.is_terminated() => return,
                    _ => {}
                }
            }
        });
        Self { client, session, leave, recorder: recorder.clone(), sent_us: AtomicU64::new(0) }
    }

    /// A write that was sent at that moment has been acknowledged.
    pub(in crate::workload) fn acknowledged(&self, sent_us: u64) {
        self.sent_us.fetch_max(sent_us, Ordering::Relaxed);
        let timeout_ms = u64::try_from(self.client.session_timeout().as_millis()).unwrap_or(0);
        let until_ms = sent_us / 1_000 + timeout_ms - timeout_ms / TOO_FAST;
        self.recorder.note(ops::SURE, &ops::AliveUntil { session: self.session, until_ms }, None);
    }

    /// Whether its client must take it for lost: what was acknowledged last was sent too long ago, or the library says
    /// so.
    pub(in crate::workload) fn is_lost(&self) -> bool {
        let timeout = self.client.session_timeout();
        let left = timeout.saturating_sub(safety_margin(timeout));
        let left_us = u64::try_from(left.as_micros()).unwrap_or(0);
        self.is_over() || boot_us() >= self.sent_us.load(Ordering::Relaxed) + left_us
    }

    /// Whether the library says that it is over.
    pub(in crate::workload) fn is_over(&self) -> bool {
        self.client.state().is_terminated()
    }

    /// Ends it in the way that was meant when it began. Nobody else may have a part of it.
    pub(in crate::workload) async fn end(self) -> SessionOver {
        let of = SessionRef { session: self.session };
        if self.leave == Leave::Dies {
            self.recorder.note(ops::ABANDONED, &of, None);
            return SessionOver::Unknown;
        }
        self.recorder.note(ops::CLOSING, &of, None);
        let (recorder, over) = (self.recorder.clone(), self.close().await);
        if over == SessionOver::Closed {
            recorder.note(ops::CLOSED, &of, None);
        }
        over
    }

    /// Lets the library close it, and says nothing.
    pub(in crate::workload) async fn close(self) -> SessionOver {
        let mut states = self.client.state_watcher();
        let was = states.state();
        if was.is_terminated() {
            return SessionOver::Expired;
        }
        // The library closes it when the last part of it has gone.
        drop(self);
        let ended = async {
            loop {
                match states.changed().await {
                    SessionState::Closed => return SessionOver::Closed,
                    state if state.is_terminated() => return SessionOver::Expired,
                    _ => {}
                }
            }
        };
        tokio::time::timeout(END_WITHIN, ended).await.unwrap_or(SessionOver::Unknown)
    }
}

async fn connect(nodes: &[String], ttl: Duration, leave: Leave, session: Option<SessionInfo>) -> Result<Client, Error> {
    let mut connector = Client::connector().with_session_timeout(ttl);
    if leave == Leave::Dies {
        connector = connector.with_detached();
    }
    if let Some(session) = session {
        connector = connector.with_session(session);
    }
    connector.connect(&nodes.join(",")).await
}

/// What an error of that library makes certain. What the session or the connection ended under may have been carried
/// out.
pub(in crate::workload) fn sure(error: &Error) -> Certainty {
    match error {
        Error::NoNode
        | Error::NodeExists
        | Error::NotEmpty
        | Error::BadVersion
        | Error::NoAuth
        | Error::NoChildrenForEphemerals
        | Error::InvalidAcl
        | Error::BadArguments(_)
        | Error::SessionMoved
        | Error::Throttled
        | Error::Unimplemented => Certainty::NotDone,
        _ => Certainty::Unknown,
    }
}

/// The same of several changes at once: what one of them was refused for, none was done for.
pub(in crate::workload) fn sure_multi(error: &MultiWriteError) -> Certainty {
    match error {
        MultiWriteError::RequestFailed { source } => sure(source),
        MultiWriteError::OperationFailed { .. } => Certainty::NotDone,
    }
}

/// The zxid of several changes, the last of which set the data of a node.
pub(in crate::workload) fn set_at(mut results: Vec<MultiWriteResult>) -> Result<u64, MultiWriteError> {
    match results.pop() {
        Some(MultiWriteResult::SetData { stat }) => Ok(zxid(stat.mzxid)),
        other => {
            let why = format!("the answer to a write is {other:?}");
            Err(MultiWriteError::RequestFailed { source: Error::UnexpectedError(why) })
        }
    }
}

/// A zxid as the suite has them.
pub(in crate::workload) fn zxid(of: i64) -> u64 {
    u64::try_from(of).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_certain_that_may_have_happened() {
        for open in [Error::ConnectionLoss, Error::SessionExpired, Error::Timeout, Error::ClientClosed] {
            assert_eq!(sure(&open), Certainty::Unknown, "{open}");
            assert_eq!(sure_multi(&MultiWriteError::RequestFailed { source: open }), Certainty::Unknown);
        }
        for refused in [Error::NoNode, Error::NodeExists, Error::SessionMoved, Error::Throttled] {
            assert_eq!(sure(&refused), Certainty::NotDone, "{refused}");
        }
        let second = MultiWriteError::OperationFailed { index: 1, source: Error::NoNode };
        assert_eq!(sure_multi(&second), Certainty::NotDone);
    }
}
