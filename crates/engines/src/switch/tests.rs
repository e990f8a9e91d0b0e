//! Switches of real handles over engines in memory: within one process, and of several handles that agree through a
//! real cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lockkeeper_client::{Client, Moment, Options};
use lockkeeper_server::local::Cluster;
use tokio::time::timeout;

use super::*;
use crate::{
    Capabilities, Capability, EngineError, Guard, Holder, Lease, LockEngine, LockRequest, MemoryEngine, Protection,
    Wait, lock, lock_fenced,
};

const PATIENCE: Duration = Duration::from_secs(30);
const DRAIN: SwitchMode = SwitchMode::Drain { patience: None };
const AT_ONCE: SwitchMode = SwitchMode::AtOnce { accept_two_holders: true };

/// An engine in memory under a name, which can be cut off.
#[derive(Debug)]
struct Named {
    name: &'static str,
    memory: MemoryEngine,
    cut_off: AtomicBool,
    granted: AtomicU64,
}

impl Named {
    fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self {
            name,
            memory: MemoryEngine::default(),
            cut_off: AtomicBool::new(false),
            granted: AtomicU64::new(0),
        })
    }

    fn reach(&self) -> Result<&MemoryEngine, EngineError> {
        match self.cut_off.load(Ordering::SeqCst) {
            true => Err(EngineError::Unreachable { engine: self.name.into(), why: "cut off".into() }),
            false => Ok(&self.memory),
        }
    }
}

#[async_trait]
impl LockEngine for Named {
    fn name(&self) -> &str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    async fn acquire(&self, request: &LockRequest) -> Result<Option<Lease>, EngineError> {
        let granted = self.reach()?.acquire(request).await?;
        self.granted.fetch_add(u64::from(granted.is_some()), Ordering::SeqCst);
        Ok(granted)
    }

    async fn renew(&self, lease: &Lease) -> Result<Moment, EngineError> {
        self.reach()?.renew(lease).await
    }

    async fn release(&self, lease: &Lease) -> Result<(), EngineError> {
        self.reach()?.release(lease).await
    }

    async fn verify(&self, lock: &str, token: u64) -> Result<bool, EngineError> {
        self.reach()?.verify(lock, token).await
    }

    async fn holder(&self, lock: &str) -> Result<Option<Holder>, EngineError> {
        self.reach()?.holder(lock).await
    }
}

/// A handle over the engines `a` and `b`.
fn handle(engines: &[&Arc<Named>], options: EnginesOptions) -> Arc<Engines> {
    Engines::new(engines.iter().map(|engine| Arc::clone(engine) as Arc<dyn LockEngine>).collect(), options).unwrap()
}

async fn held(engines: &Arc<Engines>, request: &LockRequest) -> Guard {
    lock(engines.clone(), request).await.unwrap().unwrap()
}

/// Waits for a status that fits.
async fn until(engines: &Engines, fits: impl Fn(&SwitchStatus) -> bool) -> SwitchStatus {
    let mut status = engines.status();
    let found = status.wait_for(|status| status.as_ref().is_some_and(&fits));
    timeout(PATIENCE, found).await.expect("the group gets there").unwrap().clone().unwrap()
}

fn serves(status: &SwitchStatus, name: &str) -> bool {
    matches!(&status.phase, SwitchPhase::Serving { engine } if engine == name)
}

fn request() -> LockRequest {
    LockRequest::new("orders/42").with_lease(Duration::from_secs(5))
}

fn trying() -> LockRequest {
    request().with_wait(Wait::Try)
}

#[tokio::test]
async fn promises_are_those_that_hold_across_a_switch() {
    let (a, b) = (Named::new("a"), Named::new("b"));
    let engines = handle(&[&a, &b], EnginesOptions::default());
    let missing = EngineError::Missing { engine: "engines".into(), capability: Capability::FencingToken };
    assert_eq!(engines.fenced().unwrap_err(), missing, "processes do not agree on a generation");
    assert_eq!(held(&engines, &request()).await.token(), Err(missing));
    assert!(engines.capabilities().has(Capability::Shared) && !engines.capabilities().has(Capability::Fair));
    let twice = Engines::new(vec![a.clone(), a], EnginesOptions::default()).unwrap_err();
    assert!(twice.to_string().contains("two engines have the name a"), "{twice}");
    let long = request().with_lease(Duration::from_secs(11));
    assert!(matches!(engines.acquire(&long).await, Err(EngineError::Refused(why)) if why.contains("longest_lease")));
}

#[tokio::test]
async fn a_drain_lets_holders_finish_and_moves_waiters() {
    let (a, b) = (Named::new("a"), Named::new("b"));
    let engines = handle(&[&a, &b], EnginesOptions::default());
    let holder = held(&engines, &request()).await;
    let other = held(&engines, &LockRequest::new("other")).await;
    let waiter = tokio::spawn({
        let engines = engines.clone();
        async move { held(&engines, &request()).await }
    });
    let switch = tokio::spawn({
        let engines = engines.clone();
        async move { engines.switch_to_next(DRAIN).await }
    });
    until(&engines, |status| matches!(status.phase, SwitchPhase::Draining { .. })).await;
    assert!(engines.acquire(&trying()).await.unwrap().is_none(), "nothing is granted meanwhile");
    holder.release().await.unwrap();
    assert!(!switch.is_finished() && !waiter.is_finished(), "another lock is still held");
    assert!(!other.is_lost());
    other.release().await.unwrap();
    assert!(serves(&switch.await.unwrap().unwrap(), "b"));
    let moved = waiter.await.unwrap();
    assert_eq!(b.granted.load(Ordering::SeqCst), 1);
    assert!(engines.acquire(&trying()).await.unwrap().is_none());
    moved.release().await.unwrap();
    assert!(engines.acquire(&trying()).await.unwrap().is_some());
}

#[tokio::test]
async fn a_drain_has_patience_and_can_be_cancelled() {
    let (a, b) = (Named::new("a"), Named::new("b"));
    let engines = handle(&[&a, &b], EnginesOptions::default());
    let holder = held(&engines, &request()).await;
    let switch = tokio::spawn({
        let engines = engines.clone();
        async move { engines.switch_engine("b", DRAIN).await }
    });
    until(&engines, |status| matches!(status.phase, SwitchPhase::Draining { .. })).await;
    assert!(serves(&engines.switch_engine("a", DRAIN).await.unwrap(), "a"));
    assert_eq!(switch.await.unwrap(), Err(SwitchError::Cancelled { engine: "a".into() }));
    assert!(!holder.is_lost());
    let impatient = SwitchMode::Drain { patience: Some(Duration::ZERO) };
    let switched = timeout(PATIENCE, engines.switch_engine("b", impatient)).await.unwrap().unwrap();
    assert!(serves(&switched, "b") && holder.is_lost());
    assert!(matches!(engines.switch_engine("c", DRAIN).await, Err(SwitchError::UnknownEngine { .. })));
}

#[tokio::test]
async fn both_engines_are_taken_until_one_is_enough() {
    let (a, b) = (Named::new("a"), Named::new("b"));
    let engines = handle(&[&a, &b], EnginesOptions::default());
    let old = held(&engines, &request()).await;
    let switch = tokio::spawn({
        let engines = engines.clone();
        async move { engines.switch_engine("b", SwitchMode::Both { stay: true }).await }
    });
    until(&engines, |status| matches!(status.phase, SwitchPhase::Both { .. })).await;
    assert!(engines.acquire(&trying()).await.unwrap().is_none(), "the lease of one excludes those of both");
    let next = LockRequest::new("next").with_lease(Duration::from_secs(5));
    let of_both = held(&engines, &next).await;
    assert_eq!((a.granted.load(Ordering::SeqCst), b.granted.load(Ordering::SeqCst)), (2, 1));
    assert!(!switch.is_finished());
    old.release().await.unwrap();
    let there = switch.await.unwrap().unwrap();
    assert_eq!((there.confirmed, there.generation), (1, 1));
    // Nothing stands still, and a lease of both needs the new engine only.
    assert!(serves(&engines.switch_engine("b", SwitchMode::Both { stay: false }).await.unwrap(), "b"));
    a.cut_off.store(true, Ordering::SeqCst);
    assert!(engines.renew(of_both.lease()).await.is_ok());
    assert!(engines.acquire(&next.with_wait(Wait::Try)).await.unwrap().is_none());
    of_both.release().await.unwrap();
}

#[tokio::test]
async fn at_once_the_holder_is_told() {
    let (a, b) = (Named::new("a"), Named::new("b"));
    let engines = handle(&[&a, &b], EnginesOptions::default());
    let mut events = engines.events();
    let holder = held(&engines, &request()).await;
    let refused = engines.switch_engine("b", SwitchMode::AtOnce { accept_two_holders: false }).await;
    assert_eq!(refused, Err(SwitchError::TwoHoldersNotAccepted));
    assert!(serves(&engines.switch_engine("b", AT_ONCE).await.unwrap(), "b"));
    let because = timeout(PATIENCE, holder.lost()).await.unwrap();
    assert!(because.contains("at once"), "{because}");
    assert!(matches!(holder.release().await, Err(EngineError::Lost(_))));
    while !matches!(events.recv().await.unwrap(), SwitchEvent::Revoked { .. }) {}
}

#[tokio::test]
async fn what_to_do_when_nothing_is_reached_is_declared() {
    let a = Named::new("a");
    a.cut_off.store(true, Ordering::SeqCst);
    let with = |if_unreachable| handle(&[&a], EnginesOptions { if_unreachable, ..EnginesOptions::default() });
    let refused = lock(with(IfUnreachable::Refuse), &request()).await.unwrap_err();
    assert!(matches!(refused, EngineError::Unreachable { .. }));

    let engines = with(IfUnreachable::RunAnyway);
    let (one, two) = (held(&engines, &request()).await, held(&engines, &request()).await);
    assert_eq!((one.protection(), two.protection()), (Protection::Nothing, Protection::Nothing));
    assert!(engines.renew(one.lease()).await.is_ok() && one.token().is_err());
    one.release().await.unwrap();

    let engines = with(IfUnreachable::LocalOnly);
    let local = held(&engines, &request()).await;
    assert_eq!(local.protection(), Protection::ThisProcess);
    assert!(lock(engines.clone(), &trying()).await.unwrap().is_none(), "one holder within this process");
    assert!(engines.renew(local.lease()).await.is_ok());
    local.release().await.unwrap();
    a.cut_off.store(false, Ordering::SeqCst);
    assert_eq!(held(&engines, &request()).await.protection(), Protection::Engine);
}

#[tokio::test]
async fn a_local_guard_and_one_of_an_engine_exclude_each_other() {
    let a = Named::new("a");
    let if_unreachable = IfUnreachable::LocalOnly;
    let engines = handle(&[&a], EnginesOptions { if_unreachable, ..EnginesOptions::default() });
    let of_engine = held(&engines, &request()).await;
    a.cut_off.store(true, Ordering::SeqCst);
    let refused = lock(engines.clone(), &trying()).await.unwrap_err();
    assert!(matches!(refused, EngineError::Unreachable { .. }), "{refused}");
    a.cut_off.store(false, Ordering::SeqCst);
    of_engine.release().await.unwrap();

    a.cut_off.store(true, Ordering::SeqCst);
    let local = held(&engines, &request()).await;
    assert_eq!(local.protection(), Protection::ThisProcess);
    a.cut_off.store(false, Ordering::SeqCst);
    assert!(lock(engines.clone(), &trying()).await.unwrap().is_none(), "held without the engine");
    local.release().await.unwrap();
    assert_eq!(held(&engines, &request()).await.protection(), Protection::Engine);
}

#[tokio::test]
async fn a_failing_engine_is_left_and_taken_again_when_it_is_well() {
    let (a, b) = (Named::new("a"), Named::new("b"));
    let rule = Degrading {
        minimum_calls: 4,
        hold_off: Duration::from_millis(100),
        probe_interval: Duration::from_millis(20),
        ..Degrading::default()
    };
    let engines = handle(&[&a, &b], EnginesOptions { degrading: Some(rule), ..EnginesOptions::default() });
    held(&engines, &request()).await.release().await.unwrap();
    a.cut_off.store(true, Ordering::SeqCst);
    let work = async {
        while lock(engines.clone(), &request()).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, work).await.unwrap();
    let status = until(&engines, |status| serves(status, "b")).await;
    assert_eq!(status.return_to.as_deref(), Some("a"));
    a.cut_off.store(false, Ordering::SeqCst);
    until(&engines, |status| serves(status, "a") && status.return_to.is_none()).await;
}

#[tokio::test]
async fn calls_or_probes_show_that_an_engine_is_well_again() {
    let a = Named::new("a");
    let hour = Duration::from_secs(3_600);
    let rule = Degrading { minimum_calls: 4, window: Duration::from_millis(300), ..Degrading::default() };
    for (hold_off, calls) in [(hour, true), (Duration::from_millis(100), false)] {
        let rule = Degrading { hold_off, probe_interval: Duration::from_millis(20), ..rule };
        let engines = handle(&[&a], EnginesOptions { degrading: Some(rule), ..EnginesOptions::default() });
        let mut events = engines.events();
        a.cut_off.store(true, Ordering::SeqCst);
        for _ in 0..4 {
            assert!(lock(engines.clone(), &trying()).await.is_err());
        }
        while !matches!(events.recv().await.unwrap(), SwitchEvent::EngineFailing { .. }) {}
        a.cut_off.store(false, Ordering::SeqCst);
        let works = async {
            if !calls {
                return std::future::pending::<()>().await;
            }
            loop {
                held(&engines, &request()).await.release().await.unwrap();
                // An engine in memory never waits.
                tokio::task::yield_now().await;
            }
        };
        let well = async { while !matches!(events.recv().await.unwrap(), SwitchEvent::EngineWell { .. }) {} };
        tokio::select! {
            () = works => {}
            done = timeout(PATIENCE, well) => done.expect("it is well again"),
        }
    }
}

struct Fleet {
    cluster: Cluster,
    a: Arc<Named>,
    b: Arc<Named>,
}

impl Fleet {
    async fn start() -> Self {
        Self { cluster: Cluster::start(1).await.unwrap(), a: Named::new("a"), b: Named::new("b") }
    }

    fn options(&self) -> EnginesOptions {
        let client = Client::new(self.cluster.endpoints(), Options::default()).unwrap();
        let agreement = Agreement { session_timeout: Duration::from_secs(2), ..Agreement::new(client, "shop") };
        EnginesOptions { agreement: Some(agreement), ..EnginesOptions::default() }
    }

    /// What a process of the fleet has.
    fn process(&self) -> Arc<Engines> {
        handle(&[&self.a, &self.b], self.options())
    }
}

/// A resource that remembers the largest token and the number of accepted writes.
#[derive(Default)]
struct Fenced {
    largest: AtomicU64,
    value: AtomicU64,
    refused: AtomicU64,
}

impl Fenced {
    async fn increment(&self, token: u64) {
        if self.largest.fetch_max(token, Ordering::SeqCst) > token {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return;
        }
        // Two holders at once would lose an increment here.
        let value = self.value.load(Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.value.store(value + 1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_switches_together_and_tokens_go_on_rising() {
    let fleet = Fleet::start().await;
    // No session ends on a busy machine, and with it a membership.
    let options = || {
        let mut options = fleet.options();
        options.agreement = options.agreement.map(|group| Agreement { session_timeout: PATIENCE, ..group });
        EnginesOptions { patience: PATIENCE, ..options }
    };
    let processes: Vec<_> = (0..3).map(|_| handle(&[&fleet.a, &fleet.b], options())).collect();
    let (resource, done) = (Arc::new(Fenced::default()), Arc::new(AtomicBool::new(false)));
    let worker = |engines: Arc<FencedEngines>| {
        let (resource, done) = (resource.clone(), done.clone());
        tokio::spawn(async move {
            let mut count = 0;
            while !done.load(Ordering::SeqCst) {
                let guard = lock_fenced(engines.clone(), &request()).await.unwrap().unwrap();
                resource.increment(guard.token()).await;
                count += 1;
                guard.release().await.unwrap();
            }
            count
        })
    };
    let workers: Vec<_> = processes.iter().flat_map(|p| (0..4).map(|_| worker(p.fenced().unwrap()))).collect();
    for (process, name, mode) in
        [(0, "b", DRAIN), (1, "a", SwitchMode::Both { stay: false }), (2, "b", SwitchMode::Both { stay: true })]
    {
        let at = resource.value.load(Ordering::SeqCst);
        let status = timeout(PATIENCE, processes[process].switch_engine(name, mode)).await.unwrap().unwrap();
        let more = async {
            while resource.value.load(Ordering::SeqCst) < at + 100 {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, more).await.expect("work goes on");
        for other in &processes {
            until(other, |seen| seen.epoch >= status.epoch).await;
        }
    }
    let last = processes[0].switch_engine("b", SwitchMode::Both { stay: false }).await.unwrap();
    assert_eq!((last.generation, last.members), (4, 3), "{last:?}");
    done.store(true, Ordering::SeqCst);
    let mut count = 0;
    for worker in workers {
        count += worker.await.unwrap();
    }
    assert_eq!(resource.refused.load(Ordering::SeqCst), 0, "no holder was taken for a stale one");
    assert_eq!(resource.value.load(Ordering::SeqCst), count, "no update was lost");
    for process in processes {
        process.close().await;
    }
    let late = fleet.process();
    let status = until(&late, |status| status.members == 1).await;
    assert!(serves(&status, "b"), "who comes later finds the engine that serves");
}

#[tokio::test]
async fn the_tokens_of_a_new_group_can_begin_above_those_of_an_old_one() {
    let fleet = Fleet::start().await;
    let old = fleet.process();
    old.switch_engine("b", DRAIN).await.unwrap();
    let latest = old.switch_engine("a", DRAIN).await.unwrap().generation;
    let token = async |engines: &Arc<Engines>| {
        let guard = lock_fenced(engines.fenced().unwrap(), &request()).await.unwrap().unwrap();
        let token = guard.token();
        guard.release().await.unwrap();
        token
    };
    let of_old = token(&old).await;
    let group = |name: &str, first_generation| {
        let mut options = EnginesOptions { first_generation, ..fleet.options() };
        options.agreement.as_mut().unwrap().group = name.into();
        Engines::new(vec![fleet.a.clone(), fleet.b.clone()], options)
    };
    assert!(token(&group("careless", 1).unwrap()).await < of_old);
    assert!(token(&group("careful", latest + 1).unwrap()).await > of_old);
    let late = group("careless", latest + 1).unwrap();
    let refused = late.acquire(&trying().with_wait(Wait::Endless)).await.unwrap_err().to_string();
    assert!(refused.contains("first_generation"), "{refused}");
    for wrong in [0, i16::MAX as u16] {
        assert!(matches!(group("wrong", wrong), Err(EngineError::Refused(why)) if why.contains("first_generation")));
    }
}

#[tokio::test]
async fn a_switch_waits_for_the_leases_of_a_process_that_has_gone() {
    let fleet = Fleet::start().await;
    let (one, two) = (fleet.process(), fleet.process());
    until(&two, |status| status.members == 2).await;
    // The lease of a process that is cut off: nothing renews it, and nobody can ask whether it is still relied on.
    let long = request().with_lease(Duration::from_secs(4));
    let lease = one.acquire(&long).await.unwrap().unwrap();
    drop(one);
    let begun = Instant::now();
    let status = timeout(PATIENCE, two.switch_engine("b", DRAIN)).await.unwrap().unwrap();
    assert!(serves(&status, "b") && status.members == 1, "{status:?}");
    assert!(begun.elapsed() >= Duration::from_secs(11), "its longest lease and a tenth: {:?}", begun.elapsed());
    assert!(lease.ends_at < Moment::now());
}

#[tokio::test]
async fn without_the_agreed_state_nothing_is_granted_or_renewed() {
    let mut fleet = Fleet::start().await;
    let engines =
        handle(&[&fleet.a, &fleet.b], EnginesOptions { patience: Duration::from_millis(200), ..fleet.options() });
    let held = engines.acquire(&request()).await.unwrap().unwrap();
    let mut events = engines.events();
    fleet.cluster.stop(1).await.unwrap();
    let lost = async { while !matches!(events.recv().await.unwrap(), SwitchEvent::AgreementLost { .. }) {} };
    timeout(PATIENCE, lost).await.unwrap();
    assert!(matches!(engines.renew(&held).await, Err(EngineError::Unreachable { .. })));
    assert!(matches!(engines.acquire(&trying()).await, Err(EngineError::Unreachable { .. })));
    assert!(matches!(engines.switch_engine("b", DRAIN).await, Err(SwitchError::Agreement(_))));
    engines.release(&held).await.unwrap();
    fleet.cluster.restart(1).await.unwrap();
    let again = async { while !matches!(events.recv().await.unwrap(), SwitchEvent::Joined { .. }) {} };
    timeout(PATIENCE, again).await.unwrap();
    assert!(engines.acquire(&trying()).await.unwrap().is_some());
}

#[tokio::test]
async fn the_switch_of_a_caller_that_died_is_completed() {
    let fleet = Fleet::start().await;
    let (one, two) = (fleet.process(), fleet.process());
    let holder = held(&two, &request()).await;
    let switch = tokio::spawn({
        let one = one.clone();
        async move { one.switch_engine("b", DRAIN).await }
    });
    until(&two, |status| matches!(status.phase, SwitchPhase::Draining { .. })).await;
    switch.abort();
    one.close().await;
    holder.release().await.unwrap();
    let status = until(&two, |status| serves(status, "b")).await;
    assert_eq!(status.generation, 2);
}
