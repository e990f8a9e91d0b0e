//! The engines with their servers, and what each server suffers. A further engine is a line of [`SYSTEMS`].

use std::path::PathBuf;
use std::pin::Pin;

use async_trait::async_trait;
use lockkeeper_client::Client;
use lockkeeper_engines::{LockEngine, LockkeeperEngine};
use lockkeeper_engines_contract::Subject;
use tokio::time::sleep;

use super::fault::{Fault, System, cannot, spent};
use super::{LEASE, LOCK, SLOW_LEASE, databases};
use crate::postgres;
use crate::proofs::prelude::*;
use crate::servers::mariadb;
use crate::servers::redis::{self, Redis};
use crate::servers::subjects::{RedisServers, RedlockServers, ZooKeeperServers};
use crate::servers::zookeeper::{self, ZooKeeper};

/// Of ZooKeeper, whose sessions have 2 to 20 ticks.
const TICK: Duration = Duration::from_millis(300);
const STOPPED_WITHIN: Duration = Duration::from_secs(20);

pub(super) type Starting<'a> = Pin<Box<dyn Future<Output = Result<Box<dyn System>, Failed>> + 'a>>;

/// A line of the table of engines.
pub(super) struct SystemKind {
    pub(super) name: &'static str,
    pub(super) installed: fn() -> bool,
    /// Where its server comes from.
    pub(super) packages: &'static str,
    pub(super) faults: &'static [Fault],
    pub(super) start: Start,
}

type Start = for<'a> fn(&'a Context, PathBuf) -> Starting<'a>;
/// Whether a server is installed, and where it comes from.
type RequiredProgram = (fn() -> bool, &'static str);

const fn kind(
    name: &'static str,
    (installed, packages): RequiredProgram,
    faults: &'static [Fault],
    start: Start,
) -> SystemKind {
    SystemKind { name, installed, packages, faults, start }
}

const ORDINARY: &[Fault] = &[Fault::Calm, Fault::PausedHolder, Fault::Kill, Fault::Restart, Fault::Pause];

const ZOOKEEPER: RequiredProgram = (zookeeper::installed, zookeeper::PACKAGES);
const REDIS: RequiredProgram = (redis::installed, redis::PACKAGES);
const MARIADB: RequiredProgram = (mariadb::installed, mariadb::PACKAGES);
const POSTGRES: RequiredProgram = (|| postgres::installed().is_some(), postgres::PACKAGES);
const OF_REDIS: &[Fault] =
    &[Fault::Calm, Fault::PausedHolder, Fault::Kill, Fault::Pause, Fault::RestartEmpty, Fault::FailoverBehind];
const OF_REDLOCK: &[Fault] =
    &[Fault::Calm, Fault::PausedHolder, Fault::Kill, Fault::Pause, Fault::RestartEmpty, Fault::ClockJump];

/// All engines.
pub(super) const SYSTEMS: &[SystemKind] = &[
    kind("lockkeeper", (|| true, ""), ORDINARY, |context, dir| Box::pin(LockkeeperSystem::start(context, dir))),
    kind("zookeeper", ZOOKEEPER, ORDINARY, |_, dir| Box::pin(ZooKeeperSystem::start(dir))),
    kind("redis", REDIS, OF_REDIS, |_, dir| Box::pin(start_redis(dir))),
    kind("redlock", REDIS, OF_REDLOCK, |_, dir| Box::pin(start_redlock(dir))),
    kind("mysql", MARIADB, ORDINARY, |_, dir| Box::pin(databases::mysql_table(dir))),
    kind("mysql-get-lock", MARIADB, ORDINARY, |_, dir| Box::pin(databases::mysql_get_lock(dir))),
    kind("postgres", POSTGRES, ORDINARY, |_, dir| Box::pin(databases::postgres_table(dir))),
    kind("postgres-advisory", POSTGRES, ORDINARY, |_, dir| Box::pin(databases::postgres_advisory(dir))),
];

struct LockkeeperSystem {
    cluster: Cluster,
    /// The node that the fault hit.
    hit: u64,
}

impl LockkeeperSystem {
    async fn start(context: &Context, dir: PathBuf) -> Result<Box<dyn System>, Failed> {
        let cluster = Cluster::start(&context.binary, &dir, Options::default()).await?;
        Ok(Box::new(Self { cluster, hit: 0 }))
    }

    fn client(&self) -> Client {
        // The endpoints are addresses that the harness has made.
        Client::new(self.cluster.endpoints(), lockkeeper_client::Options::default())
            .unwrap_or_else(|error| panic!("an endpoint of the harness: {error}"))
    }
}

#[async_trait]
impl Subject for LockkeeperSystem {
    fn engine(&self) -> Arc<dyn LockEngine> {
        Arc::new(LockkeeperEngine::new(self.client()))
    }

    fn lease(&self) -> Duration {
        LEASE
    }

    async fn break_lock(&self, lock: &str) {
        let client = self.client();
        for held in client.lock(lock).await.map(|lock| lock.holders).unwrap_or_default() {
            let _ = client.force_release(lock, held.token).await;
        }
    }

    async fn waiting(&self, lock: &str) -> usize {
        self.client().lock(lock).await.map_or(0, |lock| usize::try_from(lock.waiting).unwrap_or_default())
    }
}

#[async_trait]
impl System for LockkeeperSystem {
    fn subject(&self) -> &dyn Subject {
        self
    }

    fn cpu_us(&mut self) -> Result<u64, Failed> {
        let ids = self.cluster.ids();
        let pids = ids.into_iter().filter_map(|id| u32::try_from(self.cluster.process(id)?.pid()).ok());
        spent(&pids.collect::<Vec<_>>())
    }

    async fn inject(&mut self, fault: Fault) -> Result<(), Failed> {
        self.hit = self.cluster.leader().await?.0;
        match fault {
            Fault::Kill => self.cluster.kill(self.hit).await,
            Fault::Restart => {
                self.cluster.signal(self.hit, Signal::SIGTERM);
                self.cluster.ended(self.hit, STOPPED_WITHIN).await?;
                self.cluster.spawn(self.hit)
            }
            Fault::Pause => {
                self.cluster.signal(self.hit, Signal::SIGSTOP);
                Ok(())
            }
            other => cannot(other),
        }
    }

    async fn heal(&mut self, fault: Fault) -> Result<(), Failed> {
        match fault {
            Fault::Kill => self.cluster.spawn(self.hit),
            _ => {
                self.cluster.signal(self.hit, Signal::SIGCONT);
                Ok(())
            }
        }
    }
}

struct ZooKeeperSystem {
    subject: ZooKeeperServers,
    hit: usize,
}

impl ZooKeeperSystem {
    async fn start(dir: PathBuf) -> Result<Box<dyn System>, Failed> {
        let servers = ZooKeeper::start(&dir, 3, TICK).await?;
        Ok(Box::new(Self { subject: ZooKeeperServers { servers, minimum_lease: TICK * 2 }, hit: 0 }))
    }
}

#[async_trait]
impl System for ZooKeeperSystem {
    fn subject(&self) -> &dyn Subject {
        &self.subject
    }

    fn cpu_us(&mut self) -> Result<u64, Failed> {
        spent(&self.subject.servers.pids())
    }

    async fn inject(&mut self, fault: Fault) -> Result<(), Failed> {
        let servers = &mut self.subject.servers;
        let Some(leader) = servers.leader().await else {
            return cannot_run("the ensemble has no leader");
        };
        self.hit = leader;
        match fault {
            Fault::Kill => servers.kill(leader),
            Fault::Restart => {
                servers.stop(leader).await?;
                servers.restart(leader).await?;
            }
            Fault::Pause => servers.pause(leader),
            other => return cannot(other),
        }
        Ok(())
    }

    async fn heal(&mut self, fault: Fault) -> Result<(), Failed> {
        match fault {
            Fault::Kill => self.subject.servers.restart(self.hit).await,
            _ => {
                self.subject.servers.resume(self.hit);
                Ok(())
            }
        }
    }
}

fn spent_by(servers: &[Redis]) -> Result<u64, Failed> {
    spent(&servers.iter().filter_map(Redis::pid).collect::<Vec<_>>())
}

async fn start_redis(dir: PathBuf) -> Result<Box<dyn System>, Failed> {
    let (primary, replica) = (Redis::start(&dir, "primary").await?, Redis::start(&dir, "replica").await?);
    replica.replicate(&primary).await?;
    Ok(Box::new(RedisServers(vec![primary, replica])))
}

/// A primary and one replica.
#[async_trait]
impl System for RedisServers {
    fn subject(&self) -> &dyn Subject {
        self
    }

    fn cpu_us(&mut self) -> Result<u64, Failed> {
        spent_by(&self.0)
    }

    async fn prepare(&mut self, fault: Fault) -> Result<(), Failed> {
        if fault == Fault::FailoverBehind {
            let replica = &self.0[1];
            replica.cut_off().await?;
            // What the replica still has of an earlier holder ends with its lease.
            while replica.command(&["EXISTS", &format!("lock:{LOCK}")]).await != Ok("int(0)".into()) {
                sleep(Duration::from_millis(10)).await;
            }
        }
        Ok(())
    }

    async fn inject(&mut self, fault: Fault) -> Result<(), Failed> {
        match fault {
            Fault::Kill | Fault::FailoverBehind => {
                self.0[0].kill();
                self.0[1].promote().await?;
            }
            Fault::Pause => self.0[0].pause(),
            Fault::RestartEmpty => {
                self.0[0].kill();
                self.0[0].restart().await?;
            }
            other => return cannot(other),
        }
        Ok(())
    }

    async fn heal(&mut self, fault: Fault) -> Result<(), Failed> {
        if fault == Fault::Pause {
            self.0[0].resume();
        }
        Ok(())
    }
}

async fn start_redlock(dir: PathBuf) -> Result<Box<dyn System>, Failed> {
    let mut servers = Vec::new();
    for number in 1..=5 {
        servers.push(Redis::start_with_clock(&dir, &format!("redis{number}")).await?);
    }
    Ok(Box::new(RedlockServers(servers)))
}

#[async_trait]
impl System for RedlockServers {
    fn subject(&self) -> &dyn Subject {
        self
    }

    fn cpu_us(&mut self) -> Result<u64, Failed> {
        spent_by(&self.0)
    }

    async fn inject(&mut self, fault: Fault) -> Result<(), Failed> {
        let majority = self.0.len() / 2 + 1;
        match fault {
            Fault::Kill => self.0[0].kill(),
            Fault::Pause => self.0[0].pause(),
            Fault::RestartEmpty => {
                for server in &mut self.0[..majority] {
                    server.kill();
                    server.restart().await?;
                }
            }
            Fault::ClockJump => {
                let past_a_lease = u32::try_from(SLOW_LEASE.as_secs()).unwrap_or(u32::MAX).saturating_mul(2);
                self.0[..majority].iter().try_for_each(|server| server.jump(past_a_lease))?;
            }
            other => return cannot(other),
        }
        Ok(())
    }

    async fn heal(&mut self, fault: Fault) -> Result<(), Failed> {
        match fault {
            Fault::Kill => self.0[0].restart().await,
            Fault::Pause => {
                self.0[0].resume();
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
