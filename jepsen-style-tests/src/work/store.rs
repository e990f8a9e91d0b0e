//! What holders change: one number, in a real PostgreSQL or in a file, with or without the check of the token.
//!
//! In PostgreSQL the check is part of the statement that writes, and every write that was taken is also kept in a log, in the order in
//! which the database took them. The proof reads that log: it is the resource's word, not the worker's.

use std::path::PathBuf;
use std::str::FromStr;

use tokio_postgres::NoTls;

/// Where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// A PostgreSQL that is reached so.
    Postgres(String),
    /// A file.
    File(PathBuf),
}

impl FromStr for Store {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("postgres", connection)) => Ok(Self::Postgres(connection.to_owned())),
            Some(("file", path)) => Ok(Self::File(path.into())),
            _ => Err("a store is postgres:CONNECTION or file:PATH".into()),
        }
    }
}

impl std::fmt::Display for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Postgres(connection) => write!(f, "postgres:{connection}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

/// A write that the store took: the value and the token that came with it.
pub(super) type Taken = (i64, i64);

/// A connection to it.
pub enum Open {
    /// With a connection.
    Postgres(tokio_postgres::Client),
    /// With a path.
    File(PathBuf),
}

impl Store {
    /// Connects.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn open(&self) -> Result<Open, String> {
        match self {
            Self::File(path) => Ok(Open::File(path.clone())),
            Self::Postgres(connection) => {
                let told = |error: tokio_postgres::Error| format!("postgres: {error}");
                let (client, driver) = tokio_postgres::connect(connection, NoTls).await.map_err(told)?;
                tokio::spawn(driver);
                Ok(Open::Postgres(client))
            }
        }
    }
}

const FRESH: &str = "
    CREATE TABLE IF NOT EXISTS number (id int PRIMARY KEY, value bigint NOT NULL, token bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS taken (place bigserial PRIMARY KEY, value bigint NOT NULL, token bigint NOT NULL);
    TRUNCATE number, taken RESTART IDENTITY;
    INSERT INTO number VALUES (1, 0, 0);";

/// Compares, writes and remembers the token in one statement: nothing can come between.
const FENCED: &str = "
    WITH written AS (UPDATE number SET value = $1, token = $2 WHERE id = 1 AND token <= $2 RETURNING value)
    INSERT INTO taken (value, token) SELECT value, $2 FROM written";

/// The same without the check: the negative control.
const BARE: &str = "
    WITH written AS (UPDATE number SET value = $1, token = $2 WHERE id = 1 RETURNING value)
    INSERT INTO taken (value, token) SELECT value, $2 FROM written";

impl Open {
    /// Begins anew at 0.
    ///
    /// # Errors
    /// The store's.
    pub async fn reset(&self) -> Result<(), String> {
        match self {
            Self::Postgres(client) => client.batch_execute(FRESH).await.map_err(|error| format!("postgres: {error}")),
            Self::File(path) => file::reset(path),
        }
    }

    /// The number.
    ///
    /// # Errors
    /// The store's.
    pub async fn read(&self) -> Result<i64, String> {
        match self {
            Self::Postgres(client) => {
                let row = client.query_one("SELECT value FROM number WHERE id = 1", &[]).await;
                row.map(|row| row.get(0)).map_err(|error| format!("postgres: {error}"))
            }
            Self::File(path) => Ok(file::read(path)?.0),
        }
    }

    /// Writes the number with the holder's token; whether the store took it. `fenced` says whether it is to check.
    ///
    /// # Errors
    /// The store's; that it refuses a stale token is an answer, not an error.
    pub async fn write(&self, value: i64, token: u64, fenced: bool) -> Result<bool, String> {
        let token = i64::try_from(token).map_err(|error| error.to_string())?;
        match self {
            Self::Postgres(client) => {
                let statement = if fenced { FENCED } else { BARE };
                let taken = client.execute(statement, &[&value, &token]).await;
                taken.map(|rows| rows == 1).map_err(|error| format!("postgres: {error}"))
            }
            Self::File(path) => file::write(path, value, token, fenced),
        }
    }

    /// Every write that it took, in its own order.
    ///
    /// # Errors
    /// The store's.
    pub async fn taken(&self) -> Result<Vec<(i64, i64)>, String> {
        match self {
            Self::Postgres(client) => {
                let rows = client.query("SELECT value, token FROM taken ORDER BY place", &[]).await;
                let rows = rows.map_err(|error| format!("postgres: {error}"))?;
                Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
            }
            Self::File(path) => file::taken(path),
        }
    }
}

/// The file: a line per write that was taken, the last one says how things stand. An exclusive flock makes comparing and writing one step.
mod file {
    use std::fs::File;
    use std::io::{Read as _, Write as _};
    use std::path::Path;

    use nix::fcntl::{Flock, FlockArg};

    use super::Taken;

    pub(super) fn reset(path: &Path) -> Result<(), String> {
        std::fs::write(path, "").map_err(|error| format!("{}: {error}", path.display()))
    }

    fn locked(path: &Path) -> Result<Flock<File>, String> {
        let open = File::options().read(true).append(true).open(path);
        let open = open.map_err(|error| format!("{}: {error}", path.display()))?;
        Flock::lock(open, FlockArg::LockExclusive).map_err(|(_, error)| format!("{}: {error}", path.display()))
    }

    fn lines(path: &Path, file: &mut File) -> Result<Vec<Taken>, String> {
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|error| format!("{}: {error}", path.display()))?;
        let parsed = text.lines().map(|line| {
            let (value, token) = line.split_once(' ')?;
            Some((value.parse().ok()?, token.parse().ok()?))
        });
        parsed.collect::<Option<Vec<Taken>>>().ok_or_else(|| format!("{}: not lines of two numbers", path.display()))
    }

    pub(super) fn taken(path: &Path) -> Result<Vec<Taken>, String> {
        lines(path, &mut *locked(path)?)
    }

    pub(super) fn read(path: &Path) -> Result<Taken, String> {
        Ok(taken(path)?.last().copied().unwrap_or((0, 0)))
    }

    pub(super) fn write(path: &Path, value: i64, token: i64, fenced: bool) -> Result<bool, String> {
        let mut file = locked(path)?;
        let last = lines(path, &mut *file)?.last().map_or(0, |taken| taken.1);
        if fenced && token < last {
            return Ok(false);
        }
        writeln!(file, "{value} {token}").map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refuses_what_is_stale(store: &Open) {
        store.reset().await.unwrap();
        assert_eq!(store.read().await, Ok(0));
        assert_eq!(store.write(1, 5, true).await, Ok(true));
        assert_eq!(store.write(2, 5, true).await, Ok(true), "the same holder writes again");
        assert_eq!(store.write(3, 7, true).await, Ok(true));
        assert_eq!(store.write(9, 5, true).await, Ok(false));
        assert_eq!(store.read().await, Ok(3));
        assert_eq!(store.write(9, 5, false).await, Ok(true), "nobody checks");
        assert_eq!(store.taken().await.unwrap(), [(1, 5), (2, 5), (3, 7), (9, 5)]);
    }

    #[tokio::test]
    async fn the_file_refuses_what_is_stale() {
        let dir = tempfile::tempdir().unwrap();
        let store: Store = format!("file:{}", dir.path().join("number").display()).parse().unwrap();
        refuses_what_is_stale(&store.open().await.unwrap()).await;
    }

    #[tokio::test]
    async fn the_database_refuses_what_is_stale() {
        // Where there is none, `prove paused-holder` says which store it used.
        let Some(programs) = crate::postgres::installed() else { return };
        let dir = tempfile::tempdir().unwrap();
        let postgres = crate::postgres::Postgres::start(&programs, dir.path()).await.unwrap();
        refuses_what_is_stale(&Store::Postgres(postgres.url()).open().await.unwrap()).await;
    }

    #[test]
    fn stores_are_named() {
        for text in ["postgres:host=127.0.0.1 port=5", "file:/tmp/x"] {
            assert_eq!(text.parse::<Store>().unwrap().to_string(), text);
        }
        assert!("redis:x".parse::<Store>().is_err());
    }
}
