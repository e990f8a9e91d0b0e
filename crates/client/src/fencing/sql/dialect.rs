//! The databases that the fenced statements are for, and how their SQL differs.
//!
//! Each statement must check the token and write in one step, with any driver and under any setting of it.

use super::{FENCE_TABLE, RAISE_FENCE};

/// The code of the error by which MySQL and MariaDB refuse a stale token: `ER_DATA_OUT_OF_RANGE`.
pub const STALE_ERROR_MYSQL: u16 = 1_690;

/// A database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// PostgreSQL: `$1` and `"name"`. A stale token writes 0 rows.
    #[default]
    Postgres,
    /// SQLite from 3.24 on: `?1` and `"name"`. A stale token writes 0 rows.
    Sqlite,
    /// MySQL and MariaDB: `?` and backquotes. A stale token **is an error**, [`STALE_ERROR_MYSQL`], and nothing is
    /// written.
    ///
    /// Rows could not say it. By default MySQL counts the rows that *changed*: 1 for an inserted row, 2 for an updated
    /// one, and 0 both for a refused write and for an accepted one that happens to write what is there. With
    /// `CLIENT_FOUND_ROWS`, which many drivers set, it reports 1 both for an inserted row and for a refused write. So
    /// the statements compute a number that overflows. That is an error in every SQL mode, with every driver, and no
    /// caller can overlook it. It undoes the statement, not the transaction: roll that back.
    MySql,
}

impl Dialect {
    /// Creates the table of fences: for each lock the largest token seen. Run it once.
    pub fn fence_table(self) -> &'static str {
        match self {
            Self::Postgres | Self::Sqlite => FENCE_TABLE,
            // Binary, because a text comparison ignores case and trailing spaces, and two locks would share a row.
            Self::MySql => {
                "CREATE TABLE IF NOT EXISTS lockkeeper_fence \
                 (`lock` VARBINARY(512) NOT NULL PRIMARY KEY, token BIGINT NOT NULL) ENGINE = InnoDB"
            }
        }
    }

    /// The first statement of each transaction that writes under the lock. Its parameters are the lock's name and the
    /// token. If it is accepted, no other holder of the lock writes until this transaction ends.
    pub fn raise_fence(self) -> &'static str {
        match self {
            Self::Postgres => RAISE_FENCE,
            Self::Sqlite => {
                "INSERT INTO lockkeeper_fence (lock, token) VALUES (?1, ?2) \
                 ON CONFLICT (lock) DO UPDATE SET token = EXCLUDED.token \
                 WHERE lockkeeper_fence.token <= EXCLUDED.token"
            }
            Self::MySql => {
                "INSERT INTO lockkeeper_fence (`lock`, token) VALUES (?, ?) ON DUPLICATE KEY UPDATE \
                 token = IF(token > VALUES(token), token + 18446744073709551615, VALUES(token))"
            }
        }
    }

    pub(super) fn quoted(self, name: &str) -> String {
        match self {
            Self::Postgres | Self::Sqlite => format!("\"{name}\""),
            Self::MySql => format!("`{name}`"),
        }
    }

    /// The parameter of that number, from 1.
    pub(super) fn parameter(self, number: usize) -> String {
        match self {
            Self::Postgres => format!("${number}"),
            Self::Sqlite => format!("?{number}"),
            Self::MySql => "?".into(),
        }
    }

    /// The value that an upsert would have inserted into a column.
    pub(super) fn inserted(self, quoted: &str) -> String {
        match self {
            Self::Postgres | Self::Sqlite => format!("EXCLUDED.{quoted}"),
            // Deprecated in MySQL 8.0.20 and later, where it works; its successor is unknown to MariaDB.
            Self::MySql => format!("VALUES({quoted})"),
        }
    }
}

/// The new token, or an error if the row has a larger one. Unsigned, so that it overflows in a column of either
/// signedness; the row of a stale writer has at least 1. The first assignment of a statement, since MySQL evaluates
/// them from left to right.
pub(super) fn raised_mysql(fence: &str, token: &str) -> String {
    format!("IF({fence} > {token}, {fence} + 18446744073709551615, {token})")
}
