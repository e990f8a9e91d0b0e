//! Clients that increment a counter under one lock of several engines, which are switched while they work; or one that
//! does nothing but switch them.
//!
//! Client 0 of each process holds for longer than a lease, so that there is always a holder that lives by renewals.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use lockkeeper_client::{Client, Options};
use lockkeeper_engines::{
    Agreement, Degrading, Engines, EnginesOptions, Guard, LockEngine, LockRequest, LockkeeperEngine, Renamed,
    SwitchEvent, SwitchMode, SwitchPhase, Wait, lock,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::broadcast::error::RecvError;

use super::{Common, client_at, join};
use crate::record::{WorkerEvent, tell};
use crate::store::{OpenStore, Store};

/// How long one request waits; the next follows.
const ONE_WAIT: Duration = Duration::from_secs(1);
/// How long an attempt at the old engine goes on while it does not answer.
const OLD_PATIENCE: Duration = Duration::from_millis(500);
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);

/// See the module's text.
#[derive(Args, Clone)]
pub(super) struct EnginesWork {
    /// The lock.
    #[arg(long)]
    lock: String,
    /// How many clients.
    #[arg(long, default_value_t = 1)]
    clients: u32,
    /// The engines in their order: `lockkeeper`, which keeps the agreement too, and `old:ENDPOINT`, another Lockkeeper.
    #[arg(long = "engine", required = true)]
    engines: Vec<EngineChoice>,
    /// The group that switches together.
    #[arg(long)]
    group: String,
    /// The lease of each lock, in milliseconds.
    #[arg(long)]
    lease_ms: u64,
    /// The counter: `postgres:CONNECTION` or `file:PATH`.
    #[arg(long)]
    store: Store,
    /// Whether the store is shown the token and refuses a stale one.
    #[arg(long)]
    fence: bool,
    /// Switch in this mode when too many calls fail.
    #[arg(long, value_enum)]
    degrade: Option<ModeChoice>,
    /// Do no increments: join the group, switch to this engine when SIGUSR1 comes, and end.
    #[arg(long)]
    switch_to: Option<String>,
    /// How to switch.
    #[arg(long, value_enum, default_value_t = ModeChoice::Drain)]
    mode: ModeChoice,
}

/// An engine of the command line.
#[derive(Clone, Debug)]
enum EngineChoice {
    Lockkeeper,
    Old(String),
}

impl FromStr for EngineChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "lockkeeper" => Ok(Self::Lockkeeper),
            Some(("old", endpoint)) => Ok(Self::Old(endpoint.into())),
            _ => Err("an engine is lockkeeper or old:ENDPOINT".into()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModeChoice {
    Drain,
    Both,
    AtOnce,
}

impl From<ModeChoice> for SwitchMode {
    fn from(mode: ModeChoice) -> Self {
        match mode {
            ModeChoice::Drain => Self::Drain { patience: None },
            ModeChoice::Both => Self::Both { stay: false },
            ModeChoice::AtOnce => Self::AtOnce { accept_two_holders: true },
        }
    }
}

impl EnginesWork {
    async fn engines(&self, common: &Common) -> Result<Arc<Engines>, String> {
        let client = client_at(&common.endpoints, std::process::id())?;
        let mut all: Vec<Arc<dyn LockEngine>> = Vec::new();
        for choice in &self.engines {
            all.push(match choice {
                EngineChoice::Lockkeeper => Arc::new(LockkeeperEngine::new(client.clone())),
                EngineChoice::Old(endpoint) => {
                    let options = Options { patience: OLD_PATIENCE, ..Options::default() };
                    let client = Client::new([endpoint], options).map_err(|error| error.to_string())?;
                    Arc::new(Renamed::new("old", LockkeeperEngine::new(client)))
                }
            });
        }
        let degrading = self.degrade.map(|mode| Degrading {
            window: Duration::from_secs(3),
            hold_off: Duration::from_secs(3_600),
            mode: mode.into(),
            ..Degrading::default()
        });
        let session_timeout = Duration::from_millis(common.ttl_ms);
        let options = EnginesOptions {
            agreement: Some(Agreement { session_timeout, ..Agreement::new(client, &*self.group) }),
            longest_lease: Duration::from_millis(self.lease_ms),
            degrading,
            ..EnginesOptions::default()
        };
        Engines::new(all, options).map_err(|error| error.to_string())
    }
}

pub(super) async fn run(common: &Common, work: EnginesWork) -> Result<(), String> {
    let engines = work.engines(common).await?;
    tell_phases(&engines);
    if let Some(name) = &work.switch_to {
        let mut now = signal(SignalKind::user_defined1()).map_err(|error| error.to_string())?;
        let joined = engines.status().wait_for(Option::is_some).await.map(drop);
        joined.map_err(|error| error.to_string())?;
        tell(0, WorkerEvent::Idle);
        now.recv().await;
        let switched = engines.switch_engine(name, work.mode.into()).await;
        engines.close().await;
        return switched.map(drop).map_err(|error| error.to_string());
    }
    let done = Arc::new(AtomicBool::new(false));
    let clients = (0..work.clients).map(|client| {
        let (engines, work, done) = (engines.clone(), work.clone(), done.clone());
        tokio::spawn(async move {
            let store = work.store.open(work.fence).await?;
            while !done.load(Ordering::Relaxed) {
                one(client, &engines, &work, &store).await?;
            }
            Ok::<(), String>(())
        })
    });
    let clients = clients.collect();
    let mut stop = signal(SignalKind::user_defined1()).map_err(|error| error.to_string())?;
    stop.recv().await;
    done.store(true, Ordering::Relaxed);
    join::<()>(clients).await?;
    let mut told_to_end = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    tell(0, WorkerEvent::Idle);
    told_to_end.recv().await;
    engines.close().await;
    tell(0, WorkerEvent::End);
    Ok(())
}

/// Records each phase that this process sees.
fn tell_phases(engines: &Arc<Engines>) {
    let mut events = engines.events();
    tokio::spawn(async move {
        loop {
            match events.recv().await {
                Ok(SwitchEvent::Joined { epoch }) => {
                    tell(0, WorkerEvent::Phase { phase: "joined".into(), engine: String::new(), epoch });
                }
                Ok(SwitchEvent::Phase { phase, epoch, .. }) => {
                    let name = match phase {
                        SwitchPhase::Serving { .. } => "serving",
                        SwitchPhase::Draining { .. } => "draining",
                        SwitchPhase::Both { .. } => "both",
                    };
                    tell(0, WorkerEvent::Phase { phase: name.into(), engine: phase.to().into(), epoch });
                }
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    });
}

/// One turn.
async fn one(client: u32, engines: &Arc<Engines>, work: &EnginesWork, store: &OpenStore) -> Result<(), String> {
    let lease = Duration::from_millis(work.lease_ms);
    let request = LockRequest::new(&*work.lock).with_lease(lease).with_wait(Wait::AtMost(ONE_WAIT));
    let guard = match lock(engines.clone(), &request).await {
        Ok(Some(guard)) => guard,
        Ok(None) => return Ok(()),
        Err(error) => {
            tell(client, WorkerEvent::Failed { doing: "lock".into(), why: error.to_string() });
            tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
            return Ok(());
        }
    };
    let token = guard.token().unwrap_or_default();
    tell(client, WorkerEvent::Granted { locks: vec![work.lock.clone()], token });
    let Some(value) = store.read_under(token).await? else {
        tell(client, WorkerEvent::Wrote { token, value: 0, accepted: false });
        return end(client, guard, token).await;
    };
    let hold = if client == 0 { lease + lease / 2 } else { Duration::from_millis(1) };
    if let Err(error) = guard.run(tokio::time::sleep(hold)).await {
        tell(client, WorkerEvent::Lost { token, why: error.to_string() });
        return Ok(());
    }
    let accepted = store.write(value + 1, token).await?;
    tell(client, WorkerEvent::Wrote { token, value: value + 1, accepted });
    end(client, guard, token).await
}

async fn end(client: u32, guard: Guard, token: u64) -> Result<(), String> {
    tell(client, WorkerEvent::Letting { token });
    if let Err(error) = guard.release().await {
        tell(client, WorkerEvent::Failed { doing: "release".into(), why: error.to_string() });
    }
    Ok(())
}
