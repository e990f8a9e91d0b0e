//! Checks every invariant of the state every few minutes, on a copy and at a low priority: what an entry has broken
//! unseen must not go on into decisions and snapshots. A broken one is damaged data, so the process ends.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_consensus::{Blocking, blocking_in_background};
use lockkeeper_core::State;

use crate::replica::Replica;

/// The pause between two checks.
const EVERY: Duration = Duration::from_secs(300);

/// Starts the task.
pub(crate) fn start(replica: Arc<Replica>, place: Arc<dyn Blocking>) {
    start_with(replica, place, State::validate);
}

fn start_with<V>(replica: Arc<Replica>, place: Arc<dyn Blocking>, validate: V)
where
    V: Fn(&State) -> Result<(), String> + Clone + Send + Sync + 'static,
{
    let tasks = replica.tasks.clone();
    tasks.spawn_vital("validation of the state", async move {
        let clock = replica.clock.clone();
        loop {
            clock.sleep_until(clock.now() + EVERY).await;
            let (began, validate) = (clock.now(), validate.clone());
            let (state, position) = replica.state_and_position();
            match blocking_in_background(&*place, move || Ok(validate(&state))).await {
                Ok(Ok(())) => {}
                Ok(Err(why)) => {
                    let report = "start again, and report this";
                    return replica.tasks.fail(format!("the state at {position} is damaged: {why}; {report}"));
                }
                Err(error) => tracing::warn!(%error, "the state was not validated"),
            }
            let took = clock.now() - began;
            metrics::histogram!("lockkeeper_state_validation_seconds").record(took.as_secs_f64());
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use lockkeeper_consensus::BlockingPool;

    use super::*;
    use crate::replica::tests::replica_with;
    use crate::time::clock::{ManualClock, whole_ms};

    #[tokio::test]
    async fn a_state_that_breaks_an_invariant_ends_the_node_and_a_sound_one_does_not() {
        let clock = Arc::new(ManualClock::default());
        let (replica, mut reported) = replica_with(clock.clone());
        let rounds = Arc::new(AtomicU32::new(0));
        let counted = rounds.clone();
        start_with(replica, Arc::new(BlockingPool), move |state| {
            let is_first = counted.fetch_add(1, Ordering::SeqCst) == 0;
            state.validate().and(if is_first { Ok(()) } else { Err("a root without a reason".into()) })
        });
        let why = loop {
            clock.advance(whole_ms(EVERY));
            tokio::task::yield_now().await;
            if let Ok(why) = reported.try_recv() {
                break why;
            }
        };
        assert!(why.contains("is damaged: a root without a reason"), "{why}");
        assert_eq!(rounds.load(Ordering::SeqCst), 2, "the first found a sound state");
    }
}
