//! The engines on databases. Each has one server, which is started again at once when it was killed or stopped: so
//! others can take the lock while the slow holder still believes in its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_engines::LockEngine;
use lockkeeper_engines_contract::Subject;
use nix::sys::signal::Signal;

use super::systems::{Fault, System, cannot, spent};
use crate::postgres::{self, Postgres};
use crate::servers::mariadb::MariaDb;
use crate::servers::subjects::{MARIADB_OPTIONS, MySqlGetLock, MySqlTable, PostgresAdvisory, PostgresTable};
use crate::verdict::Failed;

type Started = Result<Box<dyn System>, Failed>;

/// A database server that suffers.
#[async_trait]
trait Database: Send + Sync {
    async fn kill(&mut self) -> Result<(), Failed>;
    async fn stop(&mut self) -> Result<(), Failed>;
    async fn start_again(&mut self) -> Result<(), Failed>;
    fn signal_all(&self, signal: Signal);
    /// The process that listens.
    fn pid(&self) -> i32;
}

#[async_trait]
impl Database for MariaDb {
    async fn kill(&mut self) -> Result<(), Failed> {
        self.signal(Signal::SIGKILL);
        // It has ended, in whichever way.
        Self::stop(self).await
    }

    async fn stop(&mut self) -> Result<(), Failed> {
        Self::stop(self).await
    }

    async fn start_again(&mut self) -> Result<(), Failed> {
        Self::start_again(self).await
    }

    fn signal_all(&self, signal: Signal) {
        self.signal(signal);
    }

    fn pid(&self) -> i32 {
        Self::pid(self)
    }
}

#[async_trait]
impl Database for Postgres {
    async fn kill(&mut self) -> Result<(), Failed> {
        Self::kill(self).await
    }

    async fn stop(&mut self) -> Result<(), Failed> {
        Self::stop(self).await
    }

    async fn start_again(&mut self) -> Result<(), Failed> {
        Self::start_again(self).await
    }

    fn signal_all(&self, signal: Signal) {
        Self::signal_all(self, signal);
    }

    fn pid(&self) -> i32 {
        Self::pid(self)
    }
}

/// A subject whose server is known.
trait OnDatabase: Subject {
    fn database(&self) -> &dyn Database;
    fn database_mut(&mut self) -> &mut dyn Database;
}

macro_rules! on_database {
    ($($subject:ty),*) => {$(
        impl OnDatabase for $subject {
            fn database(&self) -> &dyn Database {
                &self.0
            }

            fn database_mut(&mut self) -> &mut dyn Database {
                &mut self.0
            }
        }
    )*};
}

on_database!(MySqlTable, MySqlGetLock, PostgresTable, PostgresAdvisory);

struct DatabaseSystem<S>(S);

#[async_trait]
impl<S: OnDatabase> Subject for DatabaseSystem<S> {
    fn engine(&self) -> Arc<dyn LockEngine> {
        self.0.engine()
    }

    fn lease(&self) -> Duration {
        self.0.lease()
    }

    fn names_holders_itself(&self) -> bool {
        self.0.names_holders_itself()
    }

    async fn break_lock(&self, lock: &str) {
        self.0.break_lock(lock).await;
    }

    async fn waiting(&self, lock: &str) -> usize {
        self.0.waiting(lock).await
    }
}

#[async_trait]
impl<S: OnDatabase> System for DatabaseSystem<S> {
    fn cpu_us(&mut self) -> Result<u64, Failed> {
        spent(&u32::try_from(self.0.database().pid()).into_iter().collect::<Vec<_>>())
    }

    async fn inject(&mut self, fault: Fault) -> Result<(), Failed> {
        let database = self.0.database_mut();
        match fault {
            Fault::Kill => database.kill().await?,
            Fault::Restart => database.stop().await?,
            Fault::Pause => {
                database.signal_all(Signal::SIGSTOP);
                return Ok(());
            }
            other => return cannot(other),
        }
        database.start_again().await
    }

    async fn heal(&mut self, fault: Fault) -> Result<(), Failed> {
        if fault == Fault::Pause {
            self.0.database().signal_all(Signal::SIGCONT);
        }
        Ok(())
    }
}

async fn started_postgres(dir: &Path) -> Result<Postgres, Failed> {
    let missing = || Failed::CannotRun(format!("PostgreSQL is not installed; install {}", postgres::PACKAGES));
    Postgres::start(&postgres::installed().ok_or_else(missing)?, dir).await
}

pub(super) async fn mysql_table(dir: PathBuf) -> Started {
    let server = MariaDb::start(&dir, MARIADB_OPTIONS).await?;
    Ok(Box::new(DatabaseSystem(MySqlTable::new(server).await?)))
}

pub(super) async fn mysql_get_lock(dir: PathBuf) -> Started {
    Ok(Box::new(DatabaseSystem(MySqlGetLock(MariaDb::start(&dir, MARIADB_OPTIONS).await?))))
}

pub(super) async fn postgres_table(dir: PathBuf) -> Started {
    Ok(Box::new(DatabaseSystem(PostgresTable::new(started_postgres(&dir).await?).await?)))
}

pub(super) async fn postgres_advisory(dir: PathBuf) -> Started {
    Ok(Box::new(DatabaseSystem(PostgresAdvisory(started_postgres(&dir).await?))))
}
