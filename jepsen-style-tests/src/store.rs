//! What holders change: numbers, each by itself, in a real PostgreSQL or in a file, fenced as
//! `lockkeeper_client::fencing` does it, or not at all.
//!
//! Every write that a store took is also kept in a log, in the order in which the store took them (in PostgreSQL by a
//! trigger). The proof reads that log: it is the resource's word, not the worker's.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_client::fencing::sql::{FencedTable, SqlError, accepted, parameter};
use lockkeeper_client::fencing::{FencedFile, FileError};
use tokio_postgres::{Client, NoTls};

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

/// A write that the store took: the value, and the token that came with it.
type StoredWrite = (i64, i64);

/// A connection to it.
pub struct OpenStore {
    inner: Inner,
    /// Whether it checks tokens. Without, it still writes down which came.
    fenced: bool,
    /// Which number.
    row: i32,
}

enum Inner {
    Postgres(Client),
    File(PathBuf),
}

const TABLES: &str = "
    DROP TABLE IF EXISTS number, taken;
    CREATE TABLE number (id int PRIMARY KEY, value bigint NOT NULL);
    CREATE TABLE taken (place bigserial PRIMARY KEY, id int NOT NULL, value bigint NOT NULL, token bigint NOT NULL);
    CREATE OR REPLACE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO taken (id, value, token) VALUES (NEW.id, NEW.value, NEW.fence); RETURN NULL; END $$;
    CREATE TRIGGER note AFTER UPDATE OF value ON number FOR EACH ROW EXECUTE FUNCTION note();
    INSERT INTO number SELECT row, 0 FROM generate_series(1, 16) AS row";

/// The fenced statement without its condition: the negative control.
const BARE: &str = "UPDATE number SET value = $3, fence = $1 WHERE id = $2";

/// A fenced look: from here on no smaller token writes. Without it a late write could still fall between a reading and
/// its writing.
const READ_UNDER: &str = "UPDATE number SET fence = $1 WHERE id = $2 AND fence <= $1 RETURNING value";

const ROW: i32 = 1;

fn table() -> Result<FencedTable, String> {
    FencedTable::new("number", "id").map_err(|error| error.to_string())
}

fn told(error: &tokio_postgres::Error) -> String {
    let cause = error.as_db_error().map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("postgres: {error}{cause}")
}

impl Store {
    /// Which kind it is.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "PostgreSQL",
            Self::File(_) => "a file",
        }
    }

    /// Connects, to change the first number.
    pub async fn open(&self, fenced: bool) -> Result<OpenStore, String> {
        self.open_row(fenced, ROW).await
    }

    /// Connects, to change that number, from 1 to 16.
    pub async fn open_row(&self, fenced: bool, row: i32) -> Result<OpenStore, String> {
        let inner = match self {
            Self::File(path) if row == ROW => Inner::File(path.clone()),
            Self::File(path) => Inner::File(PathBuf::from(format!("{}-{row}", path.display()))),
            Self::Postgres(connection) => {
                let (client, driver) = tokio_postgres::connect(connection, NoTls).await.map_err(|e| told(&e))?;
                tokio::spawn(driver);
                Inner::Postgres(client)
            }
        };
        Ok(OpenStore { inner, fenced, row })
    }
}

impl OpenStore {
    /// Begins anew at 0: the number in a file, all of them in a database.
    pub async fn reset(&self) -> Result<(), String> {
        match &self.inner {
            Inner::Postgres(client) => {
                client.batch_execute(&format!("{TABLES}; {}", table()?.add_column())).await.map_err(|e| told(&e))
            }
            Inner::File(path) => match std::fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.to_string()),
                _ => Ok(()),
            },
        }
    }

    /// The number.
    pub async fn read(&self) -> Result<i64, String> {
        match &self.inner {
            Inner::Postgres(client) => {
                let row = client.query_one("SELECT value FROM number WHERE id = $1", &[&self.row]).await;
                row.map(|row| row.get(0)).map_err(|error| told(&error))
            }
            Inner::File(_) => Ok(self.taken().await?.last().map_or(0, |taken| taken.0)),
        }
    }

    /// The number as a holder reads it: in a fenced store, no smaller token writes from then on. None if a larger one
    /// has been there.
    pub async fn read_under(&self, token: u64) -> Result<Option<i64>, String> {
        if !self.fenced {
            return self.read().await.map(Some);
        }
        match &self.inner {
            Inner::Postgres(client) => {
                let shown = parameter(token).map_err(|error| error.to_string())?;
                let row = client.query_opt(READ_UNDER, &[&shown, &self.row]).await;
                row.map(|row| row.map(|row| row.get(0))).map_err(|error| told(&error))
            }
            Inner::File(path) => {
                let mut seen = Vec::new();
                let same = |old: Option<&[u8]>| {
                    seen = old.unwrap_or_default().to_vec();
                    seen.clone()
                };
                match FencedFile::new(path).update(token, same) {
                    Err(FileError::Stale(_)) => return Ok(None),
                    done => done.map_err(|error| error.to_string())?,
                }
                let lines = lines(&String::from_utf8_lossy(&seen));
                let lines = lines.ok_or_else(|| format!("{}: not lines of two numbers", path.display()))?;
                Ok(Some(lines.last().map_or(0, |taken| taken.0)))
            }
        }
    }

    /// Writes the number with the holder's token; whether the store took it.
    ///
    /// # Errors
    /// The store's; that it refuses a stale token is an answer, not an error.
    pub async fn write(&self, value: i64, token: u64) -> Result<bool, String> {
        match &self.inner {
            Inner::Postgres(client) => {
                let statement =
                    if self.fenced { table()?.update(&["value"]) } else { Ok::<_, SqlError>(BARE.to_owned()) };
                let statement = statement.map_err(|error| error.to_string())?;
                let shown = parameter(token).map_err(|error| error.to_string())?;
                let rows =
                    client.execute(&statement, &[&shown, &self.row, &value]).await.map_err(|error| told(&error))?;
                Ok(accepted(rows, token).is_ok())
            }
            Inner::File(path) => {
                let line = format!("{value} {token}\n");
                if self.fenced {
                    let more = |old: Option<&[u8]>| [old.unwrap_or_default(), line.as_bytes()].concat();
                    return match FencedFile::new(path).update(token, more) {
                        Ok(()) => Ok(true),
                        Err(FileError::Stale(_)) => Ok(false),
                        Err(error) => Err(error.to_string()),
                    };
                }
                replace(path, |old| [old, line.as_bytes()].concat()).map_err(|error| error.to_string())?;
                Ok(true)
            }
        }
    }

    /// Every write that it took, in its own order.
    pub async fn taken(&self) -> Result<Vec<StoredWrite>, String> {
        match &self.inner {
            Inner::Postgres(client) => {
                let rows =
                    client.query("SELECT value, token FROM taken WHERE id = $1 ORDER BY place", &[&self.row]).await;
                Ok(rows.map_err(|error| told(&error))?.iter().map(|row| (row.get(0), row.get(1))).collect())
            }
            Inner::File(path) => {
                let bytes = if self.fenced {
                    let read = FencedFile::new(path).read().map_err(|error| error.to_string())?;
                    read.map(|fenced| fenced.data).unwrap_or_default()
                } else {
                    read(path).map_err(|error| error.to_string())?
                };
                lines(&String::from_utf8_lossy(&bytes))
                    .ok_or_else(|| format!("{}: not lines of two numbers", path.display()))
            }
        }
    }
}

/// What is in a file; nothing where there is none.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    match std::fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read,
    }
}

/// Changes a file whole or not at all, so that a writer that is killed on the way leaves nothing half done. Of two that
/// change it at the same time one is lost: there is no fence here, and that is what the control is to show.
fn replace(path: &Path, change: impl FnOnce(&[u8]) -> Vec<u8>) -> std::io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut name = path.as_os_str().to_owned();
    // Each writer its own: another process may be at it.
    name.push(format!(".{}-{}.new", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    let new = PathBuf::from(name);
    std::fs::write(&new, change(&read(path)?))?;
    std::fs::rename(&new, path)
}

fn lines(text: &str) -> Option<Vec<StoredWrite>> {
    let parsed = text.lines().map(|line| {
        let (value, token) = line.split_once(' ')?;
        Some((value.parse().ok()?, token.parse().ok()?))
    });
    parsed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_checkers::skip::needs;

    async fn refuses_what_is_stale(store: &Store) {
        let fenced = store.open(true).await.unwrap();
        fenced.reset().await.unwrap();
        assert_eq!(fenced.read().await, Ok(0));
        assert_eq!(fenced.write(1, 5).await, Ok(true));
        assert_eq!(fenced.write(2, 5).await, Ok(true), "the same holder writes again");
        assert_eq!(fenced.write(3, 7).await, Ok(true));
        assert_eq!(fenced.write(9, 5).await, Ok(false));
        assert_eq!(fenced.read().await, Ok(3));
        assert_eq!(fenced.taken().await.unwrap(), [(1, 5), (2, 5), (3, 7)]);
        assert_eq!((fenced.read_under(6).await, fenced.read_under(9).await), (Ok(None), Ok(Some(3))));
        assert_eq!(fenced.write(4, 8).await, Ok(false), "who reads with a token keeps smaller ones from writing");
        assert_eq!(fenced.taken().await.unwrap().len(), 3, "reading leaves no trace");
        let other = store.open_row(true, 2).await.unwrap();
        assert_eq!((other.read_under(1).await, other.write(1, 1).await), (Ok(Some(0)), Ok(true)));
        assert_eq!((other.taken().await.unwrap(), fenced.read().await), (vec![(1, 1)], Ok(3)));
        let bare = store.open(false).await.unwrap();
        bare.reset().await.unwrap();
        assert_eq!((bare.write(1, 7).await, bare.write(1, 5).await), (Ok(true), Ok(true)), "nobody checks");
        assert_eq!(bare.taken().await.unwrap(), [(1, 7), (1, 5)]);
    }

    #[tokio::test]
    async fn the_file_refuses_what_is_stale() {
        let dir = tempfile::tempdir().unwrap();
        refuses_what_is_stale(&Store::File(dir.path().join("number"))).await;
    }

    #[test]
    fn an_unfenced_file_is_changed_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("number");
        let add = |line: &'static str| move |old: &[u8]| [old, line.as_bytes()].concat();
        replace(&path, add("1 5\n")).unwrap();
        let died = std::panic::catch_unwind(|| replace(&path, |_| panic!("killed on the way")));
        assert!(died.is_err());
        // Whoever has it open goes on seeing what was there, not the middle of a change.
        let opened = std::fs::File::open(&path).unwrap();
        replace(&path, add("2 6\n")).unwrap();
        assert_eq!(std::io::read_to_string(opened).unwrap(), "1 5\n");
        assert_eq!(lines(&std::fs::read_to_string(&path).unwrap()), Some(vec![(1, 5), (2, 6)]));
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["number"], "nothing else is left behind");
        assert!(read(dir.path()).is_err(), "what cannot be read is not empty");
    }

    #[tokio::test]
    async fn the_database_refuses_what_is_stale() {
        let Some(programs) = needs(crate::postgres::PACKAGES, crate::postgres::installed) else { return };
        let dir = tempfile::tempdir().unwrap();
        let postgres = crate::postgres::Postgres::start(&programs, dir.path()).await.unwrap();
        refuses_what_is_stale(&Store::Postgres(postgres.url())).await;
    }

    #[test]
    fn stores_are_named() {
        for text in ["postgres:host=127.0.0.1 port=5", "file:/tmp/x"] {
            assert_eq!(text.parse::<Store>().unwrap().to_string(), text);
        }
        assert!("redis:x".parse::<Store>().is_err());
    }
}
