//! The task that keeps this process a member of its group, follows the state and takes the steps of a switch, one
//! compare-and-set after the other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use lockkeeper_client::Moment;
use tokio::time::{interval, sleep};
use uuid::Uuid;

use super::agreement::{self, LocalSeat, Seat, Seen};
use super::event::SwitchEvent;
use super::health::{Degrading, Health};
use super::inner::{Inner, Joined};
use super::member::MemberState;
use super::state::GroupState;
use crate::engine::LockRequest;
use crate::wait::Wait;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Pause after a call to the agreed state that failed while the membership may still live.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);
/// Timers do not count the time that a machine sleeps, so the clock is read at least this often while one runs.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// Runs until it is aborted.
pub(super) async fn run(inner: Arc<Inner>) {
    let mut pause = FIRST_PAUSE;
    let (names, first) = (inner.names(), inner.options.first_generation);
    loop {
        let opened = match &inner.options.agreement {
            Some(agreement) => agreement::open(agreement, &names, first).await,
            None => Ok(Arc::new(LocalSeat::new(&names, first)) as Arc<dyn Seat>),
        };
        let because = match opened {
            Ok(seat) => {
                let because = match join(&inner, &seat).await {
                    Ok(()) => {
                        pause = FIRST_PAUSE;
                        follow(&inner, &seat).await
                    }
                    Err(because) => because,
                };
                leave(&inner, &because);
                // The cluster may not be reached for a while, and a new membership does not depend on it.
                tokio::spawn(async move { seat.close().await });
                because
            }
            Err(because) => because,
        };
        inner.core.lock().why_not = because;
        inner.wake();
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn join(inner: &Arc<Inner>, seat: &Arc<dyn Seat>) -> Result<(), String> {
    loop {
        let seen = seat.read().await?;
        let options = &inner.options;
        let state = seen.state.join(seat.id(), &inner.names(), options.first_generation, options.longest_lease)?;
        if !seat.write(&state, seen.version).await? {
            continue;
        }
        let epoch = state.epoch;
        inner.tell_status(&state);
        let member = MemberState::new(seat.id(), state, Moment::now());
        inner.core.lock().joined = Some(Joined { seat: seat.clone(), member, version: seen.version });
        inner.events.emit(SwitchEvent::Joined { epoch });
        inner.wake();
        return Ok(());
    }
}

fn leave(inner: &Arc<Inner>, because: &str) {
    if inner.core.lock().joined.take().is_some() {
        inner.events.emit(SwitchEvent::AgreementLost { because: because.into() });
        inner.wake();
    }
}

/// A step to take.
struct Write {
    state: GroupState,
    event: Option<SwitchEvent>,
}

/// Follows the state while the membership lasts, and returns why it ended.
async fn follow(inner: &Arc<Inner>, seat: &Arc<dyn Seat>) -> String {
    let mut absent = BTreeMap::new();
    loop {
        let step = async {
            let seen = seat.read().await?;
            if !seen.state.members.contains_key(&seat.id()) {
                return Ok(Err("the group has removed this process: its session was over".to_owned()));
            }
            inner.observe(seat.id(), &seen);
            let Some(Write { state, event }) = next_write(inner, seat.id(), &seen, &mut absent) else {
                return Ok(Ok(Some(seen.as_of)));
            };
            if seat.write(&state, seen.version).await?
                && let Some(event) = event
            {
                inner.events.emit(event);
            }
            Ok::<_, String>(Ok(None))
        };
        let step = tokio::select! {
            biased;
            because = seat.lost() => return because,
            step = step => step,
        };
        let as_of = match step {
            Ok(Ok(Some(as_of))) => as_of,
            Ok(Ok(None)) => continue,
            Ok(Err(over)) => return over,
            Err(why) => {
                tracing::debug!(why, "the state of the group was not read or written");
                sleep(PAUSE_AFTER_FAILURE).await;
                continue;
            }
        };
        let nap = next_time(inner, seat.id(), &absent);
        tokio::select! {
            because = seat.lost() => return because,
            () = seat.changed(as_of) => {}
            () = inner.work.notified() => {}
            () = sleep(nap.unwrap_or_default().clamp(Duration::from_millis(1), LONGEST_NAP)), if nap.is_some() => {}
        }
    }
}

/// The step that this process takes next, by the state as read.
fn next_write(
    inner: &Arc<Inner>,
    own: Uuid,
    seen: &Seen,
    absent: &mut BTreeMap<Uuid, (Moment, Duration)>,
) -> Option<Write> {
    let (state, now) = (&seen.state, Moment::now());
    let confirms = match inner.core.lock().sure(own) {
        Some(joined) => joined.member.state().epoch == state.epoch && joined.member.is_to_confirm(now),
        None => false,
    };
    if confirms {
        let event = Some(SwitchEvent::Confirmed { epoch: state.epoch });
        return Some(Write { state: state.confirm(own), event });
    }
    absent.retain(|id, _| state.members.contains_key(id));
    for (id, wait) in state.absent(&seen.alive) {
        if let std::collections::btree_map::Entry::Vacant(place) = absent.entry(id) {
            place.insert((now, wait));
            inner.events.emit(SwitchEvent::MemberAbsent { member: id, wait });
        }
    }
    if let Some(id) = absent.iter().find(|(_, (since, wait))| since.until(now) >= *wait).map(|(id, _)| *id) {
        return Some(Write { state: state.without(id), event: Some(SwitchEvent::MemberRemoved { member: id }) });
    }
    if let Some(state) = state.advance() {
        return Some(Write { state, event: None });
    }
    let rule = inner.options.degrading.as_ref()?;
    let opinion = inner.opinion(state, rule);
    if state.members.get(&own).is_some_and(|member| member.wants != opinion) {
        return Some(Write { state: state.want(own, opinion), event: None });
    }
    let state = state.switch(state.wanted(&seen.alive)?, rule.mode, true).ok()??;
    Some(Write { state, event: None })
}

/// How long until a step is due without a change of the state.
fn next_time(inner: &Arc<Inner>, own: Uuid, absent: &BTreeMap<Uuid, (Moment, Duration)>) -> Option<Duration> {
    let now = Moment::now();
    let lease = inner.core.lock().sure(own).and_then(|joined| joined.member.next_end());
    let removals = absent.values().map(|(since, wait)| *since + *wait);
    removals.chain(lease).min().map(|at| now.until(at))
}

/// Probes the main engine while another one serves in its place, and each engine that counts as failing: calls alone
/// would not show that it is well again where none are made.
pub(super) async fn probe(inner: Arc<Inner>, rule: Degrading) {
    let mut ticks = interval(rule.probe_interval.max(Duration::from_millis(10)));
    loop {
        ticks.tick().await;
        let main = inner.status.borrow().as_ref().and_then(|status| status.return_to.clone());
        let probed: Vec<usize> = {
            let mut core = inner.core.lock();
            let is_probed = |place: usize, health: &Health| {
                health.is_failing() || main.as_deref() == Some(inner.engines[place].name())
            };
            core.health.iter_mut().enumerate().filter(|(place, health)| !is_probed(*place, health)).for_each(
                // What was probed before says nothing now.
                |(_, health)| health.forget_probes(),
            );
            let probed = core.health.iter().enumerate().filter(|(place, health)| is_probed(*place, health));
            probed.map(|(place, _)| place).collect()
        };
        join_all(probed.into_iter().map(|place| probe_once(&inner, &rule, place))).await;
    }
}

async fn probe_once(inner: &Inner, rule: &Degrading, place: usize) {
    let engine = &inner.engines[place];
    let lease = engine.capabilities().minimum_lease.max(Duration::from_secs(1));
    let name = format!("lockkeeper-engines-probe/{}", Uuid::new_v4());
    let request = LockRequest::new(name).with_wait(Wait::Try).with_lease(lease);
    // One that hangs is not well.
    let within = rule.probe_interval.max(Duration::from_secs(1));
    let probe = async {
        match engine.acquire(&request).await? {
            Some(lease) => engine.release(&lease).await,
            None => Ok(()),
        }
    };
    let failed = match tokio::time::timeout(within, probe).await {
        Ok(outcome) => outcome.is_err_and(|error: crate::EngineError| error.is_failure()),
        Err(_) => true,
    };
    let well = inner.core.lock().health[place].probe(rule, Moment::now(), failed);
    if well {
        inner.events.emit(SwitchEvent::EngineWell { engine: engine.name().into() });
    }
    inner.work.notify_one();
}
