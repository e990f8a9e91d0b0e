//! Links between hosts. (Being built.)

use std::time::Duration;

use lockkeeper_node::Node;

use crate::settings::HostId;

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Nothing listens there: the call was surely not acted on.
    #[error("connection refused")]
    Refused,
    /// The connection broke: it may have been acted on.
    #[error("connection lost")]
    Reset,
    /// No answer in time: it may have been acted on, or be yet.
    #[error("timed out")]
    TimedOut,
}

/// What a client task has of the world: calls to nodes over the network, the true time, a line in the trace.
#[derive(Clone)]
pub struct ClientNet {}

impl ClientNet {
    /// Has `serve` run on `node`, and brings back its answer. Dropped or past its deadline, the serving future is dropped on the node
    /// too, a little later, as a front door does when its caller's connection closes.
    pub async fn call<T, F, Fut>(&self, _node: HostId, _deadline: Duration, _serve: F) -> Result<T, CallError>
    where
        F: FnOnce(Node) -> Fut + Send + 'static,
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        unimplemented!()
    }

    /// Like [`call`](Self::call), for something that goes on: each item of the stream that `open` gives crosses the network, in order.
    pub async fn listen<T, E, S, F, Fut>(
        &self,
        _node: HostId,
        _deadline: Duration,
        _open: F,
    ) -> Result<Result<Incoming<T>, E>, CallError>
    where
        F: FnOnce(Node) -> Fut + Send + 'static,
        Fut: Future<Output = Result<S, E>> + Send + 'static,
        S: futures::Stream<Item = T> + Send + Unpin + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        unimplemented!()
    }

    /// The true time since the world began, wherever the clocks of its hosts stand.
    pub fn now(&self) -> Duration {
        unimplemented!()
    }

    /// A line in the trace.
    pub fn note(&self, _line: &str) {}
}

/// What a [`ClientNet::listen`] hears. Dropping it ends the stream at the node, a little later.
pub struct Incoming<T>(std::marker::PhantomData<T>);

impl<T> Incoming<T> {
    /// The next item; `None` when the node ended the stream, an error when the connection broke.
    pub async fn next(&mut self) -> Option<Result<T, CallError>> {
        unimplemented!()
    }
}
