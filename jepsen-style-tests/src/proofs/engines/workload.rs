//! The work of one trial: clients that increment numbers under the lock, and a slow holder beside them.

use std::sync::atomic::AtomicUsize;

use lockkeeper_engines::{EngineError, Guard, LockEngine, LockRequest, Wait, lock};
use tokio::time::{Instant, sleep};

use super::fault::{Fault, System};
use super::{LEASE, LOCK, SLOW_LEASE};
use crate::proofs::prelude::*;

const CLIENTS: usize = 8;
/// Between the reading and the writing of a number, as a call to another machine would take.
const WORK: Duration = Duration::from_millis(1);
/// After the fault is over, the trial goes on until so many more grants, or this long.
const GRANTS_AFTER: usize = 20;
const RECOVERED_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What a trial has seen.
#[derive(Clone, Debug, Default)]
pub(super) struct TrialResult {
    /// How often a client entered while the guard of another said that it holds.
    pub(super) two_held: u64,
    /// How often a client entered with a token that is not larger than all before: no resource can tell such holders
    /// apart.
    pub(super) tokens_not_rising: u64,
    pub(super) writes_unfenced: u64,
    pub(super) lost_unfenced: u64,
    pub(super) lost_fenced: u64,
    pub(super) refused: u64,
    /// How long nobody was inside.
    pub(super) standstill: Duration,
    pub(super) hand_overs_per_s: f64,
    pub(super) cpu_us_per_hand_over: u64,
}

/// A number in a store.
#[derive(Debug, Default)]
struct CountedNumber {
    value: u64,
    writes: u64,
    /// The largest token seen.
    fence: u64,
    refused: u64,
}

impl CountedNumber {
    /// The value, for a holder with that token: from here on no smaller one writes.
    fn read(&mut self, token: Option<u64>) -> Option<u64> {
        self.admits(token).then_some(self.value)
    }

    fn write(&mut self, token: Option<u64>, value: u64) {
        if self.admits(token) {
            self.value = value;
            self.writes += 1;
        }
    }

    fn admits(&mut self, token: Option<u64>) -> bool {
        let Some(token) = token else { return true };
        if token < self.fence {
            self.refused += 1;
            return false;
        }
        self.fence = token;
        true
    }

    fn lost(&self) -> u64 {
        self.writes - self.value
    }
}

/// When nobody is inside.
#[derive(Debug, Default)]
struct Idle {
    since: Option<Instant>,
    longest: Duration,
}

/// What the clients of a trial share.
#[derive(Debug, Default)]
struct SharedWorkload {
    unfenced: Mutex<CountedNumber>,
    fenced: Mutex<CountedNumber>,
    fencing: bool,
    inside: Mutex<Vec<Arc<Guard>>>,
    idle: Mutex<Idle>,
    two_held: Mutex<u64>,
    last_token: Mutex<Option<u64>>,
    tokens_not_rising: AtomicU64,
    grants: AtomicUsize,
}

impl SharedWorkload {
    fn enter(&self, guard: &Arc<Guard>) {
        let mut inside = self.inside.lock();
        // A guard that is lost already makes no claim.
        if !guard.is_lost() {
            if inside.iter().any(|other| !other.is_lost()) {
                *self.two_held.lock() += 1;
            }
            let (token, mut last) = (self.token(guard), self.last_token.lock());
            if token.is_some() && token <= *last {
                self.tokens_not_rising.fetch_add(1, Ordering::Relaxed);
            }
            *last = token.max(*last);
        }
        let mut idle = self.idle.lock();
        if let Some(since) = idle.since.take() {
            idle.longest = idle.longest.max(since.elapsed());
        }
        inside.push(guard.clone());
        self.grants.fetch_add(1, Ordering::SeqCst);
    }

    /// Before the release, so that nobody can enter in between.
    fn leave(&self, guard: &Arc<Guard>) {
        let mut inside = self.inside.lock();
        inside.retain(|other| !Arc::ptr_eq(other, guard));
        if inside.is_empty() {
            self.idle.lock().since = Some(Instant::now());
        }
    }

    fn token(&self, guard: &Guard) -> Option<u64> {
        if self.fencing { guard.token().ok() } else { None }
    }

    /// The values as a holder reads them; `None` where its token is refused, or where there are no tokens.
    fn read(&self, token: Option<u64>) -> (Option<u64>, Option<u64>) {
        (self.unfenced.lock().read(None), token.and_then(|token| self.fenced.lock().read(Some(token))))
    }

    fn write(&self, token: Option<u64>, (unfenced, fenced): (Option<u64>, Option<u64>)) {
        if let Some(value) = unfenced {
            self.unfenced.lock().write(None, value + 1);
        }
        if let Some(value) = fenced {
            self.fenced.lock().write(token, value + 1);
        }
    }

    fn granted(&self) -> usize {
        self.grants.load(Ordering::SeqCst)
    }
}

/// A trial under way.
pub(super) struct EngineTrial {
    shared: Arc<SharedWorkload>,
    clients: Tasks<()>,
}

fn request(wait: Wait) -> LockRequest {
    LockRequest::new(LOCK).with_wait(wait).with_lease(LEASE)
}

impl EngineTrial {
    /// Starts the clients, each with an engine of its own.
    pub(super) fn start(system: &dyn System, fencing: bool) -> Self {
        let shared = Arc::new(SharedWorkload { fencing, ..SharedWorkload::default() });
        let mut clients = Tasks::default();
        for _ in 0..CLIENTS {
            clients.start(|stop| work(system.subject().engine(), shared.clone(), stop));
        }
        Self { shared, clients }
    }

    /// A calm phase, then the fault while a slow holder holds, then the recovery.
    pub(super) async fn run(
        self,
        system: &mut dyn System,
        fault: Fault,
        calm: Duration,
    ) -> Result<TrialResult, Failed> {
        let mut result = TrialResult::default();
        self.more_grants(1).await?;
        self.calm(system, calm, &mut result).await?;
        match fault {
            Fault::Calm => {}
            Fault::PausedHolder => self.paused_holder(system.subject().engine()).await?,
            _ => self.slow_holder(system, fault).await?,
        }
        self.more_grants(GRANTS_AFTER).await?;
        self.clients.end_within(RECOVERED_WITHIN).await?;
        let (unfenced, fenced) = (self.shared.unfenced.lock(), self.shared.fenced.lock());
        result.two_held = *self.shared.two_held.lock();
        result.tokens_not_rising = self.shared.tokens_not_rising.load(Ordering::Relaxed);
        (result.writes_unfenced, result.lost_unfenced) = (unfenced.writes, unfenced.lost());
        (result.lost_fenced, result.refused) = (fenced.lost(), fenced.refused);
        result.standstill = self.shared.idle.lock().longest;
        Ok(result)
    }

    async fn calm(&self, system: &mut dyn System, calm: Duration, result: &mut TrialResult) -> Result<(), Failed> {
        let (begun, grants, cpu) = (Instant::now(), self.shared.granted(), system.cpu_us()?);
        sleep(calm).await;
        let count = (self.shared.granted() - grants).max(1);
        result.hand_overs_per_s = f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / begun.elapsed().as_secs_f64();
        result.cpu_us_per_hand_over = system.cpu_us()?.saturating_sub(cpu) / u64::try_from(count).unwrap_or(u64::MAX);
        Ok(())
    }

    async fn more_grants(&self, count: usize) -> Result<(), Failed> {
        let (wait, before) = (Polling::within(RECOVERED_WITHIN).every(LOOK_EVERY), self.shared.granted());
        while self.shared.granted() < before + count {
            wait.or_broken(|| format!("no {count} grants within {RECOVERED_WITHIN:?}")).await?;
        }
        Ok(())
    }

    /// Holds by a guard, reads, and writes after the fault, unless the guard says that the lock is lost.
    async fn slow_holder(&self, system: &mut dyn System, fault: Fault) -> Result<(), Failed> {
        system.prepare(fault).await?;
        let (slow, begun) = (request(Wait::Endless).with_lease(SLOW_LEASE), Instant::now());
        let guard = loop {
            match lock(system.subject().engine(), &slow).await {
                Ok(Some(guard)) => break Arc::new(guard),
                Ok(None) => {}
                // The fault has not come yet. A client asks again, as the others do; their grants are awaited later.
                Err(error) if error.is_failure() && begun.elapsed() < RECOVERED_WITHIN => {
                    back_off_after_failure(Err(error)).await;
                }
                Err(error) => return broken(format!("the slow holder gets no lock: {error}")),
            }
        };
        self.shared.enter(&guard);
        let (token, grants) = (self.shared.token(&guard), self.shared.granted());
        let read = self.shared.read(token);
        system.inject(fault).await?;
        let begun = Instant::now();
        // Until others have had the lock, or it is lost, or nothing of the kind happens.
        while self.shared.granted() < grants + 3 && !guard.is_lost() && begun.elapsed() < SLOW_LEASE.mul_f32(1.2) {
            sleep(LOOK_EVERY).await;
        }
        // A lost guard drops the work.
        let _ = guard.run(async { self.shared.write(token, read) }).await;
        self.shared.leave(&guard);
        system.heal(fault).await?;
        drop(guard);
        Ok(())
    }

    /// Holds a lease that it does not renew, and writes long after its end, as a process does that was paused between
    /// its check and its write.
    async fn paused_holder(&self, engine: Arc<dyn LockEngine>) -> Result<(), Failed> {
        let begun = Instant::now();
        let lease = loop {
            match engine.acquire(&request(Wait::Endless)).await {
                Ok(Some(lease)) => break lease,
                Err(error) if error.is_failure() && begun.elapsed() < RECOVERED_WITHIN => {
                    back_off_after_failure(Err(error)).await;
                }
                other => return broken(format!("the paused holder gets no lock: {other:?}")),
            }
        };
        let token = if self.shared.fencing { lease.token() } else { None };
        let read = self.shared.read(token);
        self.more_grants(3).await?;
        self.shared.write(token, read);
        Ok(())
    }
}

/// One client: until the trial is over.
async fn work(engine: Arc<dyn LockEngine>, shared: Arc<SharedWorkload>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        match lock(engine.clone(), &request(Wait::AtMost(LEASE * 5))).await {
            Ok(Some(guard)) => {
                let guard = Arc::new(guard);
                shared.enter(&guard);
                let token = shared.token(&guard);
                let increment = async {
                    let read = shared.read(token);
                    sleep(WORK).await;
                    shared.write(token, read);
                };
                let _ = guard.run(increment).await;
                shared.leave(&guard);
                if let Some(guard) = Arc::into_inner(guard) {
                    back_off_after_failure(guard.release().await).await;
                }
            }
            Ok(None) => {}
            Err(error) => back_off_after_failure(Err(error)).await,
        }
    }
}

/// A client whose engine fails waits a moment before it goes on.
async fn back_off_after_failure(outcome: Result<(), EngineError>) {
    if outcome.is_err_and(|error| error.is_failure()) {
        sleep(Duration::from_millis(20)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_refuses_stale_tokens_and_counts_what_it_lost() {
        let mut fenced = CountedNumber::default();
        let early = fenced.read(Some(3)).unwrap();
        let late = fenced.read(Some(5)).unwrap();
        fenced.write(Some(5), late + 1);
        fenced.write(Some(3), early + 1);
        assert_eq!((fenced.value, fenced.lost(), fenced.refused), (1, 0, 1));
        let mut unfenced = CountedNumber::default();
        let (one, two) = (unfenced.read(None).unwrap(), unfenced.read(None).unwrap());
        unfenced.write(None, one + 1);
        unfenced.write(None, two + 1);
        assert_eq!((unfenced.value, unfenced.lost()), (1, 1));
    }
}
