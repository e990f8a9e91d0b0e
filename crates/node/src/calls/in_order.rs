//! For callers whose requests follow each other on one connection, and whose answers must too: operations enter the
//! log in the order in which they are submitted, and are answered in the order of the log (the FIFO order of
//! ZooKeeper's clients).

use std::time::Duration;

use lockkeeper_core::{Actor, Command, Op, Refusal, Reply, SessionId, State, Zxid};

use crate::engine::{Engine, reply_of, unexpected};
use crate::error::NodeError;
use crate::locks::entry_delay::entry_delay;
use crate::replica::inflight::Done;
use crate::request::{At, Attached, Credential};

/// The state's answer, refusals included, and the zxid at which it is true; or why there is none.
pub type OrderedReply = Result<At<Result<Reply, Refusal>>, NodeError>;

impl Engine {
    pub(crate) fn submit(
        &self,
        actor: Actor,
        op: Op,
        on_reply: impl FnOnce(OrderedReply) + Send + 'static,
    ) -> Result<(), NodeError> {
        let delay = entry_delay(&actor, &op, || self.replica.state());
        self.submit_command(Command::Do { actor, op }, delay, on_reply)
    }

    pub(crate) fn submit_close(
        &self,
        session: SessionId,
        on_reply: impl FnOnce(OrderedReply) + Send + 'static,
    ) -> Result<(), NodeError> {
        self.submit_command(Command::CloseSession { session }, None, on_reply)
    }

    fn submit_command(
        &self,
        command: Command,
        delay: Option<Duration>,
        on_reply: impl FnOnce(OrderedReply) + Send + 'static,
    ) -> Result<(), NodeError> {
        self.refuse_when_closing()?;
        let answer = |done: Done| At { zxid: done.outcome.zxid, value: done.outcome.reply };
        self.proposer.submit_in_order(command, delay, move |completion| on_reply(completion.map(answer))).map(drop)
    }

    /// Attaches a session to the caller, who has its secret: operations over an earlier attachment are refused from
    /// then on.
    pub(crate) async fn attach(&self, credential: &Credential) -> Result<At<Attached>, NodeError> {
        self.refuse_when_closing()?;
        self.authorise(credential).await?;
        let attached = reply_of(self.proposer.propose(Command::AttachSession { session: credential.session }).await?)?;
        let Reply::SessionAttached { attachment, timeout_ms } = attached.value else {
            return Err(unexpected(&attached.value));
        };
        Ok(At { value: Attached { attachment, timeout_ms }, zxid: attached.zxid })
    }

    /// Reads this replica as it is. What `look` sends comes between the deliveries before and after it.
    pub(crate) fn peek<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.replica.state())
    }

    /// Waits until this replica has applied what a client says it has seen.
    pub(crate) async fn catch_up(&self, zxid: Zxid) -> Result<(), NodeError> {
        self.refuse_when_closing()?;
        self.reach(zxid).await
    }
}
