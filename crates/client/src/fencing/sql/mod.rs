//! Fencing in SQL: statements that write only if the token is not stale.
//!
//! There are two ways, and a [`Dialect`] has the statements of both: [`FencedTable`] builds those of the first,
//! [`Dialect::fence_table`] and [`Dialect::raise_fence`] are those of the second. The constants are the latter for
//! PostgreSQL.
//!
//! | | a column in the row ([`FencedTable`]) | a row for each lock ([`FENCE_TABLE`]) |
//! |---|---|---|
//! | guards | that row | every write of the same transaction |
//! | costs | one column, no further statement | one further statement in each transaction |
//! | use it for | one row or object for each lock | a lock over several tables or rows |
//!
//! **How a stale token is refused depends on the dialect.** In PostgreSQL and SQLite the statement writes 0 rows, which
//! is no error for a database: always check their number, by [`accepted`]. In MySQL and MariaDB the statement fails
//! with error 1690, which [`refused`] recognizes, and the number of rows says nothing: see [`Dialect::MySql`].
//!
//! Pitfalls. Deleting a row deletes its fence, and a stale holder's upsert can insert it again; mark the row as
//! deleted instead. An [update](FencedTable::update) also writes 0 rows if the row is missing; an
//! [upsert](FencedTable::upsert) inserts it. Values that were *read* in an earlier transaction may be old even if the
//! token is not: read them under the lock, with the token that writes them.
//!
//! ```
//! use lockkeeper_client::fencing::sql::{Dialect, FencedTable};
//!
//! let accounts = FencedTable::new("accounts", "id")?;
//! assert_eq!(accounts.add_column(), r#"ALTER TABLE "accounts" ADD COLUMN "fence" BIGINT NOT NULL DEFAULT 0"#);
//! assert_eq!(
//!     accounts.update(&["balance"])?,
//!     r#"UPDATE "accounts" SET "balance" = $3, "fence" = $1 WHERE "id" = $2 AND "fence" <= $1"#
//! );
//! // With tokio-postgres:
//! //     let token = sql::parameter(guard.token())?;
//! //     let rows = db.execute(&accounts.update(&["balance"])?, &[&token, &"ann", &60_i64]).await?;
//! //     sql::accepted(rows, guard.token())?;
//!
//! let accounts = accounts.dialect(Dialect::MySql);
//! assert_eq!(
//!     accounts.update(&["balance"])?,
//!     "UPDATE `accounts` SET `fence` = IF(`fence` > ?, `fence` + 18446744073709551615, ?), `balance` = ? \
//!      WHERE `id` = ?"
//! );
//! // With mysql_async:
//! //     let written = db.exec_drop(accounts.update(&["balance"])?, (token, token, 60, "ann")).await;
//! //     if let Err(mysql_async::Error::Server(error)) = &written {
//! //         sql::refused(error.code, guard.token())?;
//! //     }
//! # Ok::<(), lockkeeper_client::fencing::sql::SqlError>(())
//! ```

mod dialect;

pub use dialect::{Dialect, STALE_ERROR_MYSQL};

use thiserror::Error;

use super::Stale;

/// Creates the table of fences: for each lock the largest token seen. Run it once.
pub const FENCE_TABLE: &str =
    "CREATE TABLE IF NOT EXISTS lockkeeper_fence (lock TEXT PRIMARY KEY, token BIGINT NOT NULL)";

/// The first statement of each transaction that writes under the lock: `$1` is the lock's name, `$2` the token. 1 row:
/// go on; no other holder of the lock writes until this transaction ends. 0 rows: the token is stale; roll back.
pub const RAISE_FENCE: &str = "INSERT INTO lockkeeper_fence (lock, token) VALUES ($1, $2) \
    ON CONFLICT (lock) DO UPDATE SET token = EXCLUDED.token WHERE lockkeeper_fence.token <= EXCLUDED.token";

/// Longest name of a table or column: PostgreSQL truncates longer ones, and MySQL refuses them.
const MAX_NAME_BYTES: usize = 63;

/// Why a statement cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SqlError {
    /// An invalid name: names have only ASCII letters, digits and `_`, so that no other SQL can get into a statement.
    #[error("{name:?} is not a valid {what} name: it needs 1 to 63 ASCII letters, digits and '_', and no digit first")]
    BadName {
        /// What the name is for: table or column.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The statement would write no column.
    #[error("name at least one column to write")]
    NoColumns,
    /// The token does not fit into a BIGINT.
    #[error("fencing token {0} exceeds i64::MAX and was not issued by Lockkeeper")]
    TokenTooLarge(u64),
}

/// A token as the parameter of a statement.
///
/// # Errors
/// The token is larger than any that the cluster issues.
pub fn parameter(token: u64) -> Result<i64, SqlError> {
    i64::try_from(token).map_err(|_| SqlError::TokenTooLarge(token))
}

/// Checks the number of rows that a fenced statement wrote in PostgreSQL or SQLite. Not for MySQL: there this number
/// depends on a setting of the driver, and [`refused`] is the check.
///
/// # Errors
/// 0 rows: the token is stale. (For an [update](FencedTable::update) also: the row does not exist.)
pub fn accepted(rows: u64, token: u64) -> Result<(), Stale> {
    if rows == 0 { Err(Stale { token, seen: None }) } else { Ok(()) }
}

/// Checks the code of an error that a fenced statement ended with in MySQL or MariaDB. Other errors are the caller's.
///
/// # Errors
/// [`STALE_ERROR_MYSQL`]: the token is stale.
pub fn refused(code: u16, token: u64) -> Result<(), Stale> {
    if code == STALE_ERROR_MYSQL { Err(Stale { token, seen: None }) } else { Ok(()) }
}

/// A table whose rows contain the token of their last writer.
///
/// The parameters of its statements, where the values are those of the named columns in their order:
///
/// | | update | upsert |
/// |---|---|---|
/// | PostgreSQL (`$1`), SQLite (`?1`) | token, key, values | token, key, values |
/// | MySQL, MariaDB (`?`) | token, token again, values, key | token, key, values |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedTable {
    dialect: Dialect,
    /// One name, or a schema and a name. These and the other names are checked, and not quoted.
    table: Vec<String>,
    key: String,
    fence: String,
}

impl FencedTable {
    /// The table of that name (`table` or `schema.table`), with that key column, which must be unique. For PostgreSQL,
    /// if no other [dialect](Self::dialect) is chosen.
    ///
    /// # Errors
    /// An invalid name.
    pub fn new(table: &str, key: &str) -> Result<Self, SqlError> {
        let parts: Result<Vec<String>, SqlError> = table.splitn(2, '.').map(|part| checked("table", part)).collect();
        let (key, fence) = (checked("column", key)?, checked("column", "fence")?);
        Ok(Self { dialect: Dialect::default(), table: parts?, key, fence })
    }

    /// The database that the statements are for. In MySQL the key must be the only unique index of a table that is
    /// [upserted](Self::upsert): a duplicate in any other would update the row that has it.
    #[must_use]
    pub fn dialect(self, dialect: Dialect) -> Self {
        Self { dialect, ..self }
    }

    /// Names the token's column; `fence` by default.
    ///
    /// # Errors
    /// An invalid name.
    pub fn fence_column(self, fence: &str) -> Result<Self, SqlError> {
        Ok(Self { fence: checked("column", fence)?, ..self })
    }

    /// Adds the token's column to an existing table. Existing rows start at 0, below every token.
    pub fn add_column(&self) -> String {
        let (table, fence) = (self.table(), self.dialect.quoted(&self.fence));
        format!("ALTER TABLE {table} ADD COLUMN {fence} BIGINT NOT NULL DEFAULT 0")
    }

    /// Writes these columns of the row if the token is not stale.
    ///
    /// # Errors
    /// No column, or an invalid name.
    pub fn update(&self, columns: &[&str]) -> Result<String, SqlError> {
        let (table, key, fence) = (self.table(), self.dialect.quoted(&self.key), self.dialect.quoted(&self.fence));
        let [token, of_key] = [1, 2].map(|number| self.dialect.parameter(number));
        let set = self.assignments(columns, |at, _| self.dialect.parameter(at + 3))?;
        Ok(match self.dialect {
            Dialect::Postgres | Dialect::Sqlite => {
                format!("UPDATE {table} SET {set}, {fence} = {token} WHERE {key} = {of_key} AND {fence} <= {token}")
            }
            Dialect::MySql => {
                let raised = dialect::raised_mysql(&fence, &token);
                format!("UPDATE {table} SET {fence} = {raised}, {set} WHERE {key} = {of_key}")
            }
        })
    }

    /// Writes these columns of the row if the token is not stale, and inserts the row if it is missing.
    ///
    /// # Errors
    /// No column, or an invalid name.
    pub fn upsert(&self, columns: &[&str]) -> Result<String, SqlError> {
        let (key, fence) = (self.dialect.quoted(&self.key), self.dialect.quoted(&self.fence));
        let names: Result<Vec<String>, SqlError> =
            columns.iter().map(|name| Ok(self.dialect.quoted(&checked("column", name)?))).collect();
        let parameters: Vec<String> = (1..columns.len() + 3).map(|number| self.dialect.parameter(number)).collect();
        let set = self.assignments(columns, |_, name| self.dialect.inserted(name))?;
        let insert = format!(
            "INSERT INTO {} ({fence}, {key}, {}) VALUES ({})",
            self.table(),
            names?.join(", "),
            parameters.join(", ")
        );
        let inserted = self.dialect.inserted(&fence);
        Ok(match self.dialect {
            Dialect::Postgres | Dialect::Sqlite => {
                // Behind ON CONFLICT the table is known by its own name, without the schema.
                let row = self.table.last().map(|name| self.dialect.quoted(name)).unwrap_or_default();
                format!(
                    "{insert} ON CONFLICT ({key}) DO UPDATE SET {set}, {fence} = {inserted} \
                     WHERE {row}.{fence} <= {inserted}"
                )
            }
            Dialect::MySql => {
                let raised = dialect::raised_mysql(&fence, &inserted);
                format!("{insert} ON DUPLICATE KEY UPDATE {fence} = {raised}, {set}")
            }
        })
    }

    fn table(&self) -> String {
        let parts: Vec<String> = self.table.iter().map(|part| self.dialect.quoted(part)).collect();
        parts.join(".")
    }

    /// `value` gets the position of a column and its quoted name.
    fn assignments(&self, columns: &[&str], value: impl Fn(usize, &str) -> String) -> Result<String, SqlError> {
        if columns.is_empty() {
            return Err(SqlError::NoColumns);
        }
        let each = columns.iter().enumerate().map(|(at, name)| {
            let name = self.dialect.quoted(&checked("column", name)?);
            Ok(format!("{name} = {}", value(at, &name)))
        });
        Ok(each.collect::<Result<Vec<_>, SqlError>>()?.join(", "))
    }
}

fn checked(what: &'static str, name: &str) -> Result<String, SqlError> {
    let fits = (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !name.starts_with(|first: char| first.is_ascii_digit());
    if fits { Ok(name.into()) } else { Err(SqlError::BadName { what, name: name.into() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements() {
        let table = FencedTable::new("shop.orders", "id").unwrap().fence_column("token").unwrap();
        assert_eq!(
            table.upsert(&["state", "total"]).unwrap(),
            concat!(
                r#"INSERT INTO "shop"."orders" ("token", "id", "state", "total") VALUES ($1, $2, $3, $4) "#,
                r#"ON CONFLICT ("id") DO UPDATE SET "state" = EXCLUDED."state", "total" = EXCLUDED."total", "#,
                r#""token" = EXCLUDED."token" WHERE "orders"."token" <= EXCLUDED."token""#,
            )
        );
        assert_eq!(
            table.update(&["state", "total"]).unwrap(),
            r#"UPDATE "shop"."orders" SET "state" = $3, "total" = $4, "token" = $1 WHERE "id" = $2 AND "token" <= $1"#
        );
    }

    #[test]
    fn statements_of_the_other_dialects() {
        let table = FencedTable::new("shop.orders", "id").unwrap();
        let sqlite = table.clone().dialect(Dialect::Sqlite);
        assert_eq!(
            sqlite.update(&["state"]).unwrap(),
            r#"UPDATE "shop"."orders" SET "state" = ?3, "fence" = ?1 WHERE "id" = ?2 AND "fence" <= ?1"#
        );
        let mysql = table.dialect(Dialect::MySql);
        assert_eq!(mysql.add_column(), "ALTER TABLE `shop`.`orders` ADD COLUMN `fence` BIGINT NOT NULL DEFAULT 0");
        assert_eq!(
            mysql.upsert(&["state", "total"]).unwrap(),
            "INSERT INTO `shop`.`orders` (`fence`, `id`, `state`, `total`) VALUES (?, ?, ?, ?) \
             ON DUPLICATE KEY UPDATE `fence` = \
             IF(`fence` > VALUES(`fence`), `fence` + 18446744073709551615, VALUES(`fence`)), \
             `state` = VALUES(`state`), `total` = VALUES(`total`)"
        );
        assert_eq!(refused(1_062, 7), Ok(()));
        assert_eq!(refused(STALE_ERROR_MYSQL, 7), Err(Stale { token: 7, seen: None }));
    }

    #[test]
    fn nothing_but_names_gets_into_a_statement() {
        let table = FencedTable::new("t", "k").unwrap();
        for bad in ["", "a b", "a\"b", "a;drop", "1a", "ü", &"x".repeat(64)] {
            assert!(matches!(table.update(&[bad]), Err(SqlError::BadName { .. })), "{bad:?}");
            assert!(matches!(table.upsert(&["a", bad]), Err(SqlError::BadName { .. })), "{bad:?}");
            assert!(FencedTable::new("t", bad).is_err() && FencedTable::new(bad, "k").is_err());
            assert!(table.clone().fence_column(bad).is_err());
        }
        assert!(FencedTable::new("a.b.c", "k").is_err() && FencedTable::new(".a", "k").is_err());
        assert_eq!(table.update(&[]), Err(SqlError::NoColumns));
        assert_eq!(table.upsert(&[]), Err(SqlError::NoColumns));
    }

    #[test]
    fn rows_and_tokens() {
        assert_eq!(accepted(1, 7), Ok(()));
        let stale = accepted(0, 7).unwrap_err();
        assert_eq!(stale, Stale { token: 7, seen: None });
        assert!(stale.to_string().contains("token 7 is stale"), "{stale}");
        assert_eq!(parameter(7), Ok(7));
        assert_eq!(parameter(u64::MAX), Err(SqlError::TokenTooLarge(u64::MAX)));
    }
}
