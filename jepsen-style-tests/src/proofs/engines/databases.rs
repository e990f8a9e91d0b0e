//! The engines on databases. Each has one server, which is started again at once when it was killed or stopped: so
//! others can take the lock while the slow holder still believes in its own.

use std::path::PathBuf;

use async_trait::async_trait;
use lockkeeper_engines_contract::Subject;

use super::fault::{Fault, System, cannot, spent};
use crate::postgres::{self, Postgres};
use crate::proofs::prelude::*;
use crate::servers::mariadb::MariaDb;
use crate::servers::subjects::{MARIADB_OPTIONS, MySqlGetLock, MySqlTable, PostgresAdvisory, PostgresTable};

type Started = Result<Box<dyn System>, Failed>;

/// Whatever the engine, its server suffers the same.
macro_rules! on_a_database {
    ($($subject:ty),*) => {$(
        #[async_trait]
        impl System for $subject {
            fn subject(&self) -> &dyn Subject {
                self
            }

            fn cpu_us(&mut self) -> Result<u64, Failed> {
                spent(&u32::try_from(self.0.pid()).into_iter().collect::<Vec<_>>())
            }

            async fn inject(&mut self, fault: Fault) -> Result<(), Failed> {
                match fault {
                    Fault::Kill => self.0.kill().await?,
                    Fault::Restart => self.0.stop().await?,
                    Fault::Pause => {
                        self.0.signal_all(Signal::SIGSTOP);
                        return Ok(());
                    }
                    other => return cannot(other),
                }
                self.0.start_again().await
            }

            async fn heal(&mut self, fault: Fault) -> Result<(), Failed> {
                if fault == Fault::Pause {
                    self.0.signal_all(Signal::SIGCONT);
                }
                Ok(())
            }
        }
    )*};
}

on_a_database!(MySqlTable, MySqlGetLock, PostgresTable, PostgresAdvisory);

async fn started_postgres(dir: &Path) -> Result<Postgres, Failed> {
    let missing = || Failed::CannotRun(format!("PostgreSQL is not installed; install {}", postgres::PACKAGES));
    Postgres::start(&postgres::installed().ok_or_else(missing)?, dir).await
}

pub(super) async fn mysql_table(dir: PathBuf) -> Started {
    let server = MariaDb::start(&dir, MARIADB_OPTIONS).await?;
    Ok(Box::new(MySqlTable::new(server).await?))
}

pub(super) async fn mysql_get_lock(dir: PathBuf) -> Started {
    Ok(Box::new(MySqlGetLock(MariaDb::start(&dir, MARIADB_OPTIONS).await?)))
}

pub(super) async fn postgres_table(dir: PathBuf) -> Started {
    Ok(Box::new(PostgresTable::new(started_postgres(&dir).await?).await?))
}

pub(super) async fn postgres_advisory(dir: PathBuf) -> Started {
    Ok(Box::new(PostgresAdvisory(started_postgres(&dir).await?)))
}
