//! Taking permits of a rate limit: from what this node has leased, or with a command for all who wait together.

use std::sync::Arc;

use lockkeeper_core::{Op, RateName, RateOp, Refusal};

use crate::engine::Engine;
use crate::error::NodeError;
use crate::rates::{PermitsTaken, TakePermits, Taken};
use crate::request::{At, Caller};

impl Engine {
    /// Takes permits, or says when they will be there.
    pub(crate) async fn take_permits(
        self: &Arc<Self>,
        caller: Caller,
        taking: TakePermits,
    ) -> Result<At<PermitsTaken>, NodeError> {
        self.refuse_when_closing()?;
        check(&taking)?;
        self.rights_are_current().await?;
        let who = &caller.principals;
        self.refuse_early(|engine| engine.replica.state().check_taking(who, &taking.name)).await?;
        let name = taking.name.clone();
        let (receiver, is_first) = match self.rates.enqueue(taking, caller, self.replica.clock.now())? {
            Taken::Answered(answer) => return Ok(answer),
            Taken::Later(receiver, is_first) => (receiver, is_first),
        };
        if is_first {
            // In a task of its own: others wait for it even if this caller goes.
            let engine = self.clone();
            self.replica.tasks.spawn(async move { engine.send_takes(&name).await });
        }
        receiver.await.unwrap_or_else(|_| Err(NodeError::UnknownOutcome("this node has stopped".into())))
    }

    /// Sends commands for those who wait for permits of this name, one after the other, until nobody does.
    async fn send_takes(self: Arc<Self>, name: &RateName) {
        loop {
            let now = self.replica.clock.now();
            let taken = self.rates.with(name, |known| {
                let batch = known.next_batch();
                known.is_in_flight = !batch.is_empty();
                let rate = batch.first()?.taking.rate;
                let ahead = known.ahead(rate, now).min(rate.longest_lease());
                Some((batch, ahead))
            });
            let Some((batch, ahead)) = taken else { return };
            let Some(first) = batch.first() else { return };
            let (rate, reconfigure) = (first.taking.rate, first.taking.reconfigure);
            let permits = batch.iter().map(|waiting| waiting.taking.permits).collect();
            let op = RateOp::Take { name: name.clone(), rate, permits, ahead, reconfigure };
            let caller = Caller { principals: first.principals.clone(), trace: first.trace, ..Caller::default() };
            let done = self.execute(caller, Op::from(op)).await;
            self.rates.with(name, |known| known.settle(rate, now, batch, done));
        }
    }
}

fn check(taking: &TakePermits) -> Result<(), Refusal> {
    taking.rate.check().map_err(|why| Refusal::BadArguments(why.into()))?;
    if !(1..=taking.rate.limit).contains(&taking.permits) {
        let (limit, permits) = (taking.rate.limit, taking.permits);
        let why = format!("a request takes from 1 to {limit} permits, the limit, not {permits}");
        return Err(Refusal::BadArguments(why.into()));
    }
    Ok(())
}
