//! [`Engines`]: several engines as one.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use lockkeeper_client::Moment;
use tokio::sync::{broadcast, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::event::SwitchEvent;
use super::group_task;
use super::inner::{Inner, LeaseRecord, NAME, Part, Substitute, SwitchStatus};
use super::options::{EnginesOptions, IfUnreachable};
use super::promises::together;
use super::state::{SwitchError, SwitchMode, SwitchPhase};
use super::taking::{Begun, Taken, Taking, split};
use super::token::{LAST_GENERATION, compose, of_generation};
use crate::capabilities::Capabilities;
use crate::capability::Capability;
use crate::engine::{FencingEngine, Holder, Lease, LockEngine, LockRequest, Protection};
use crate::error::EngineError;
use crate::wait::Wait;

/// How often a request looks whether a lease without the engines is over.
const SUBSTITUTE_PAUSE: Duration = Duration::from_millis(20);

/// Several engines as one, of which one grants: the first until it is switched.
///
/// Its capabilities are those that hold with any of the engines and across a switch. There are **fencing tokens** only
/// if every engine has them and an [`Agreement`](super::Agreement) is given: a token then carries the agreed number of
/// switches in its high bits, so that tokens of two engines can be compared. Nothing is *fair* across a switch.
///
/// Keep the node `/engines/<group>` for as long as resources remember tokens: with it the number of switches would be
/// lost. After a restore from a backup that is older than the latest switch, switch there and back once.
pub struct Engines {
    inner: Arc<Inner>,
    capabilities: Capabilities,
    tasks: Vec<AbortHandle>,
}

impl Engines {
    /// Uses the engines in this order: the first is the main one, and where a lock is taken from two, it is in this
    /// order. The processes of a group must name the same engines in the same order.
    ///
    /// # Errors
    /// There is no engine, two have one name, the longest lease is below their minimum, or the group's name or first
    /// generation is invalid.
    pub fn new(engines: Vec<Arc<dyn LockEngine>>, options: EnginesOptions) -> Result<Arc<Self>, EngineError> {
        let refused = |why: String| Err(EngineError::Refused(why));
        let mut names: Vec<&str> = engines.iter().map(|engine| engine.name()).collect();
        names.sort_unstable();
        if names.is_empty() {
            return refused("name at least one engine".into());
        }
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return refused(format!("two engines have the name {}: give one of them another", pair[0]));
        }
        if let Some(agreement) = &options.agreement {
            agreement.check().map_err(EngineError::Refused)?;
        }
        if !(1..LAST_GENERATION).contains(&options.first_generation) {
            let why =
                format!("first_generation is from 1 to {}, not {}", LAST_GENERATION - 1, options.first_generation);
            return refused(why);
        }
        let capabilities = together(&engines, &options);
        let (longest, shortest) = (options.longest_lease, capabilities.minimum_lease);
        if longest < shortest {
            return refused(format!("the longest lease is {longest:?}, but the engines take leases from {shortest:?}"));
        }
        let inner = Arc::new(Inner::new(engines, options));
        let mut tasks = vec![tokio::spawn(group_task::run(inner.clone())).abort_handle()];
        if let Some(rule) = inner.options.degrading {
            tasks.push(tokio::spawn(group_task::probe(inner.clone(), rule)).abort_handle());
        }
        Ok(Arc::new(Self { inner, capabilities, tasks }))
    }

    /// The same for work that needs fencing tokens.
    ///
    /// # Errors
    /// [`EngineError::Missing`] if these engines have none together.
    pub fn fenced(self: &Arc<Self>) -> Result<Arc<FencedEngines>, EngineError> {
        self.capabilities.require(NAME, Capability::FencingToken)?;
        Ok(Arc::new(FencedEngines(self.clone())))
    }

    /// Follows the state of the group; `None` until it was first reached.
    pub fn status(&self) -> watch::Receiver<Option<SwitchStatus>> {
        self.inner.status.subscribe()
    }

    /// Follows what happens.
    pub fn events(&self) -> broadcast::Receiver<SwitchEvent> {
        self.inner.events.subscribe()
    }

    /// Switches to the next engine of the list, after the last one to the first.
    ///
    /// # Errors
    /// As [`switch_engine`](Self::switch_engine).
    pub async fn switch_to_next(&self, mode: SwitchMode) -> Result<SwitchStatus, SwitchError> {
        let serving = self.joined_status().await?.phase.from().to_owned();
        let place = self.inner.place(&serving).unwrap_or_default();
        let next = self.inner.engines[(place + 1) % self.inner.engines.len()].name().to_owned();
        self.switch_engine(&next, mode).await
    }

    /// Switches the group to the engine of that name, and waits until it serves; with [`SwitchMode::Both`] that stays,
    /// until every lease includes it. A switch that stayed there is finished by another one to the same engine. A
    /// switch that is under way is cancelled by one to the engine where it came from.
    ///
    /// If this future is dropped, or this process dies, the other members complete the switch.
    ///
    /// # Errors
    /// See [`SwitchError`].
    pub async fn switch_engine(&self, name: &str, mode: SwitchMode) -> Result<SwitchStatus, SwitchError> {
        let mut known = self.joined_status().await?;
        loop {
            let seat = self.inner.core.lock().joined.as_ref().map(|joined| joined.seat.clone());
            let seat = seat.ok_or_else(|| SwitchError::Agreement(self.inner.core.lock().why_not.clone()))?;
            let seen = seat.read().await.map_err(SwitchError::Agreement)?;
            let Some(state) = seen.state.switch(name, mode, false)? else {
                known.epoch = seen.state.epoch;
                break;
            };
            if seat.write(&state, seen.version).await.map_err(SwitchError::Agreement)? {
                known.epoch = state.epoch;
                break;
            }
        }
        self.inner.work.notify_one();
        self.switched(name, known.epoch, mode == SwitchMode::Both { stay: true }).await
    }

    /// Waits until that engine serves, or every lease includes it where that is enough.
    async fn switched(&self, name: &str, epoch: u64, stay: bool) -> Result<SwitchStatus, SwitchError> {
        let mut status = self.status();
        let over = |status: &Option<SwitchStatus>| {
            status.as_ref().filter(|status| status.epoch >= epoch).is_some_and(|status| match &status.phase {
                SwitchPhase::Serving { .. } => true,
                SwitchPhase::Both { to, stay: true, .. } if stay => to != name || status.confirmed == status.members,
                SwitchPhase::Draining { to, .. } | SwitchPhase::Both { to, .. } => to != name,
            })
        };
        let reached = status.wait_for(over).await.ok().and_then(|status| status.clone());
        let Some(reached) = reached else { return Err(SwitchError::Agreement("the group has ended".into())) };
        match reached.phase.to() == name {
            true => Ok(reached),
            false => Err(SwitchError::Cancelled { engine: reached.phase.from().into() }),
        }
    }

    /// The state of the group, once it is reached.
    async fn joined_status(&self) -> Result<SwitchStatus, SwitchError> {
        let mut changes = self.inner.changed.subscribe();
        let until = Instant::now() + self.inner.options.patience;
        loop {
            changes.borrow_and_update();
            if self.inner.core.lock().joined.is_some()
                && let Some(status) = self.inner.status.borrow().clone()
            {
                return Ok(status);
            }
            if !woken(&mut changes, Some(until)).await {
                return Err(SwitchError::Agreement(self.inner.core.lock().why_not.clone()));
            }
        }
    }

    /// Leaves the group in order, so that a switch does not wait for this process. Release all locks before: while
    /// there are leases, this process stays noted until they are certainly over.
    pub async fn close(&self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        let Some(joined) = self.inner.core.lock().joined.take() else { return };
        self.inner.core.lock().why_not = "this process has left the group".into();
        self.inner.wake();
        while joined.member.len() == 0 {
            let Ok(seen) = joined.seat.read().await else { break };
            if !matches!(joined.seat.write(&seen.state.without(joined.seat.id()), seen.version).await, Ok(false)) {
                break;
            }
        }
        joined.seat.close().await;
    }

    async fn acquire_agreed(&self, request: &LockRequest) -> Result<Option<Lease>, EngineError> {
        let mut changes = self.inner.changed.subscribe();
        let began = Instant::now();
        let until = match request.wait {
            Wait::Try => Some(began),
            Wait::AtMost(wait) => began.checked_add(wait),
            Wait::Endless => None,
        };
        let has_tokens = self.capabilities.has(Capability::FencingToken);
        let mut not_joined_since = None;
        loop {
            changes.borrow_and_update();
            let mut taking = match Taking::begin(&self.inner) {
                Begun::Asking(taking) => taking,
                Begun::Held if woken(&mut changes, until).await => continue,
                Begun::Held => return Ok(None),
                Begun::NotJoined(why) => {
                    let patient = *not_joined_since.get_or_insert_with(Instant::now) + self.inner.options.patience;
                    if woken(&mut changes, Some(until.map_or(patient, |until| until.min(patient)))).await {
                        continue;
                    }
                    return Err(EngineError::Unreachable { engine: NAME.into(), why });
                }
            };
            not_joined_since = None;
            let obsolete = taking.obsolete(changes.clone());
            let taken = tokio::select! {
                biased;
                taken = taking.take(request, until) => taken?,
                () = obsolete => continue,
            };
            match taken {
                Taken::All => match taking.count(has_tokens).await? {
                    Some(lease) => return Ok(Some(lease)),
                    // Given back: the switch goes on meanwhile.
                    None if until.is_some_and(|until| until < Instant::now()) => return Ok(None),
                    None => {
                        tokio::task::yield_now().await;
                        self.without_substitutes(request.locks(), until).await;
                    }
                },
                Taken::TimedOut => return Ok(None),
                Taken::Again => {}
            }
        }
    }

    /// Waits until no caller of this process holds one of these locks without the engines, or until the time is over.
    async fn without_substitutes(&self, locks: &[String], until: Option<Instant>) {
        while !self.inner.local.is_free(locks) && until.is_none_or(|until| Instant::now() < until) {
            sleep(SUBSTITUTE_PAUSE).await;
        }
    }

    /// A lease without the engines, if the caller has chosen so.
    async fn substitute(&self, request: &LockRequest, error: EngineError) -> Result<Option<Lease>, EngineError> {
        let (owner, length, locks) = (Uuid::new_v4(), request.lease, request.locks().to_vec());
        let (substitute, ends_at, protection) = match self.inner.options.if_unreachable {
            IfUnreachable::Refuse => return Err(error),
            IfUnreachable::RunAnyway => (Substitute::Nothing { length }, Moment::now() + length, Protection::Nothing),
            IfUnreachable::LocalOnly => {
                let Some(lease) = self.inner.local.acquire(request).await? else { return Ok(None) };
                let ends_at = lease.ends_at;
                (Substitute::Local(lease), ends_at, Protection::ThisProcess)
            }
        };
        let excluded = {
            let mut core = self.inner.core.lock();
            let excluded = protection == Protection::ThisProcess && core.has_lease_of(&locks);
            if !excluded {
                core.substitutes.insert(owner, substitute.clone());
            }
            excluded
        };
        if excluded {
            // Another caller of this process has it from an engine.
            if let Substitute::Local(lease) = substitute {
                self.inner.local.release(&lease).await.ok();
            }
            return Err(error);
        }
        let because = error.to_string();
        self.inner.events.emit(SwitchEvent::Unprotected { locks: locks.clone(), protection, because });
        Ok(Some(Lease { locks, owner, tokens: Vec::new(), length, ends_at }))
    }

    fn substitute_of(&self, lease: &Lease) -> Option<Substitute> {
        self.inner.core.lock().substitutes.get(&lease.owner).cloned()
    }

    /// Renews one part, and returns its new end; `None` if the lease does not need it any more.
    async fn renew_part(&self, owner: Uuid, part: &Part) -> Result<Option<Moment>, EngineError> {
        let renewed = self.inner.engine(&part.engine)?.renew(&part.lease).await;
        self.inner.note_call(&part.engine, "renew", &renewed);
        match renewed {
            Ok(ends_at) => Ok(Some(ends_at)),
            Err(error) => {
                if self.needs(owner, &part.engine) {
                    Err(error)
                } else {
                    Ok(None)
                }
            }
        }
    }

    /// Whether a lease needs its part of that engine. While this process is no member, or another one than that under
    /// which the lease was granted, nothing says that it does not.
    fn needs(&self, owner: Uuid, engine: &str) -> bool {
        let core = self.inner.core.lock();
        let Some(joined) = &core.joined else { return true };
        let of_another = core.leases.get(&owner).is_some_and(|record| record.member != joined.seat.id());
        of_another || joined.member.needs(owner, engine)
    }

    /// Forgets a lease, and returns what is left of it.
    fn take_lease(&self, owner: Uuid) -> Option<LeaseRecord> {
        let mut core = self.inner.core.lock();
        let record = core.leases.remove(&owner)?;
        if core.end(record.member, owner) {
            self.inner.work.notify_one();
        }
        Some(record)
    }

    fn serving(&self) -> Result<(SwitchStatus, &Arc<dyn LockEngine>), EngineError> {
        let why = || EngineError::Unreachable { engine: NAME.into(), why: self.inner.core.lock().why_not.clone() };
        // In a statement of its own: whoever tells a status holds the mutex that `why` waits for.
        let status = self.inner.status.borrow().clone();
        let status = status.ok_or_else(why)?;
        let engine = self.inner.engine(status.phase.from())?;
        Ok((status, engine))
    }
}

/// Waits for a change; false if the time is over first.
async fn woken(changes: &mut watch::Receiver<u64>, until: Option<Instant>) -> bool {
    match until {
        Some(until) => matches!(tokio::time::timeout_at(until, changes.changed()).await, Ok(Ok(()))),
        None => changes.changed().await.is_ok(),
    }
}

/// Completes with the reason when a switch takes the lease away.
async fn revocation(mut revoked: watch::Receiver<Option<String>>) -> String {
    match revoked.wait_for(Option::is_some).await.ok().and_then(|because| because.clone()) {
        Some(because) => because,
        // Released, or over by the clock.
        None => std::future::pending().await,
    }
}

impl fmt::Debug for Engines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.inner.status.borrow().clone();
        f.debug_struct("Engines").field("engines", &self.inner.names()).field("status", &status).finish_non_exhaustive()
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

#[async_trait]
impl LockEngine for Engines {
    fn name(&self) -> &str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn acquire(&self, request: &LockRequest) -> Result<Option<Lease>, EngineError> {
        request.check(NAME, self.capabilities)?;
        let longest = self.inner.options.longest_lease;
        if request.lease > longest {
            let why = format!("the lease is {:?}, and longest_lease of these engines {longest:?}", request.lease);
            return Err(EngineError::Refused(why));
        }
        match self.acquire_agreed(request).await {
            Err(error) if error.is_failure() => self.substitute(request, error).await,
            granted => granted,
        }
    }

    async fn renew(&self, lease: &Lease) -> Result<Moment, EngineError> {
        match self.substitute_of(lease) {
            Some(Substitute::Nothing { length }) => return Ok(Moment::now() + length),
            Some(Substitute::Local(lease)) => return self.inner.local.renew(&lease).await,
            None => {}
        }
        let lost = || EngineError::Lost("its lease is over".into());
        let unsure = |why: &str| EngineError::Unreachable { engine: NAME.into(), why: why.into() };
        let (member, kept, others) = {
            let mut core = self.inner.core.lock();
            let member = core.leases.get(&lease.owner).ok_or_else(lost)?.member;
            let joined =
                core.sure(member).ok_or_else(|| unsure("the membership under which it was granted is over"))?;
            let keep = joined.member.renewal(lease.owner, Moment::now()).map_err(EngineError::Lost)?;
            let record = core.leases.get_mut(&lease.owner).ok_or_else(lost)?;
            let (kept, others) = split(std::mem::take(&mut record.parts), &keep);
            record.parts.clone_from(&kept);
            (member, kept, others)
        };
        self.inner.release_parts(others);
        let mut ends = Vec::new();
        for part in &kept {
            match self.renew_part(lease.owner, part).await {
                Ok(end) => ends.extend(end),
                Err(error) => {
                    if matches!(error, EngineError::Lost(_))
                        && let Some(record) = self.take_lease(lease.owner)
                    {
                        self.inner.release_parts(record.parts);
                    }
                    return Err(error);
                }
            }
        }
        let ends_at = self.inner.end_of(ends.into_iter()).ok_or_else(lost)?;
        let mut core = self.inner.core.lock();
        let joined = core.sure(member).ok_or_else(|| unsure("the membership ended during the renewal"))?;
        if !joined.member.renewed(lease.owner, Moment::now(), ends_at) {
            return Err(lost());
        }
        if let Some(record) = core.leases.get_mut(&lease.owner) {
            record.ends_at = ends_at;
        }
        Ok(ends_at)
    }

    async fn release(&self, lease: &Lease) -> Result<(), EngineError> {
        let substitute = self.inner.core.lock().substitutes.remove(&lease.owner);
        match substitute {
            Some(Substitute::Nothing { .. }) => return Ok(()),
            Some(Substitute::Local(lease)) => return self.inner.local.release(&lease).await,
            None => {}
        }
        let lost = || EngineError::Lost("its lease is over".into());
        let record = self.take_lease(lease.owner).ok_or_else(lost)?;
        let mut first = Ok(());
        for Part { engine, lease } in &record.parts {
            let released = self.inner.engine(engine)?.release(lease).await;
            self.inner.note_call(engine, "release", &released);
            first = first.and(released);
        }
        first
    }

    async fn lost(&self, lease: &Lease) -> String {
        let known = {
            let core = self.inner.core.lock();
            let substituted = core.substitutes.contains_key(&lease.owner);
            core.leases
                .get(&lease.owner)
                .map(|record| (record.parts.clone(), record.revoked.subscribe()))
                .ok_or(substituted)
        };
        let (parts, revoked) = match known {
            Ok(known) => known,
            Err(true) => return std::future::pending().await,
            Err(false) => return "its lease is over".into(),
        };
        let mut losses: FuturesUnordered<_> = parts
            .iter()
            .filter_map(|part| {
                let engine = self.inner.engine(&part.engine).ok()?;
                Some(engine.lost(&part.lease).map(|because| (part.engine.clone(), because)))
            })
            .collect();
        let mut revoked = pin!(revocation(revoked));
        loop {
            tokio::select! {
                because = &mut revoked => return because,
                Some((engine, because)) = losses.next(), if !losses.is_empty() => {
                    if self.needs(lease.owner, &engine) {
                        return because;
                    }
                }
            }
        }
    }

    fn protection(&self, lease: &Lease) -> Protection {
        match self.substitute_of(lease) {
            Some(Substitute::Nothing { .. }) => Protection::Nothing,
            Some(Substitute::Local(_)) => Protection::ThisProcess,
            None => Protection::Engine,
        }
    }

    /// A token from before a switch counts as over, although its holder may go on after a switch by *both*.
    async fn verify(&self, lock: &str, token: u64) -> Result<bool, EngineError> {
        self.capabilities.require(NAME, Capability::FencingToken)?;
        let (status, engine) = self.serving()?;
        match of_generation(status.generation, token) {
            Some(token) => engine.verify(lock, token).await,
            None => Ok(false),
        }
    }

    async fn holder(&self, lock: &str) -> Result<Option<Holder>, EngineError> {
        self.capabilities.require(NAME, Capability::ShowsHolder)?;
        let (status, engine) = self.serving()?;
        let has_tokens = self.capabilities.has(Capability::FencingToken);
        let Some(holder) = engine.holder(lock).await? else { return Ok(None) };
        let token = holder.token.filter(|_| has_tokens);
        let token = token.map(|token| compose(status.generation, token, engine.name())).transpose()?;
        Ok(Some(Holder { token, ..holder }))
    }
}

/// [`Engines`] that have fencing tokens together.
#[derive(Debug)]
pub struct FencedEngines(Arc<Engines>);

impl FencedEngines {
    /// All of them, to be switched.
    pub fn engines(&self) -> &Arc<Engines> {
        &self.0
    }
}

#[async_trait]
impl LockEngine for FencedEngines {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    async fn acquire(&self, request: &LockRequest) -> Result<Option<Lease>, EngineError> {
        self.0.acquire(request).await
    }

    async fn renew(&self, lease: &Lease) -> Result<Moment, EngineError> {
        self.0.renew(lease).await
    }

    async fn release(&self, lease: &Lease) -> Result<(), EngineError> {
        self.0.release(lease).await
    }

    async fn lost(&self, lease: &Lease) -> String {
        self.0.lost(lease).await
    }

    fn protection(&self, lease: &Lease) -> Protection {
        self.0.protection(lease)
    }

    async fn verify(&self, lock: &str, token: u64) -> Result<bool, EngineError> {
        self.0.verify(lock, token).await
    }

    async fn holder(&self, lock: &str) -> Result<Option<Holder>, EngineError> {
        self.0.holder(lock).await
    }
}

impl FencingEngine for FencedEngines {}
