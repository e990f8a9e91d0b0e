//! Fencing in SQL: statements that write if the token is not stale, and report 0 rows if it is.
//!
//! Two ways; [`FencedTable`] builds the statements of the first, the constants are those of the second. They are PostgreSQL's, and SQLite's
//! once each `$1` is written `?1` (there `$1` is a name, and names are numbered as they come).
//!
//! | | a column in the row ([`FencedTable`]) | a row for each lock ([`FENCE_TABLE`]) |
//! |---|---|---|
//! | guards | that row | everything that is written in the same transaction |
//! | costs | one column, no further statement | one statement more in each transaction |
//! | take it for | one row or object for each lock | a lock over several tables or rows |
//!
//! **Always look at the number of rows**: hand it to [`accepted`]. 0 rows is no error to a database, and the work would go on as if
//! it had written.
//!
//! Pitfalls. A row that is deleted forgets its fence: a stale holder's upsert makes it anew; mark it as deleted instead.
//! An [update](FencedTable::update) reports 0 rows for a row that is missing too, an [upsert](FencedTable::upsert) only for a stale token.
//! Values that were *read* before in another transaction may be old even if the token is not: read them under the lock, with the token that
//! writes them. MySQL counts rows that changed, not rows that matched, unless its driver sets `CLIENT_FOUND_ROWS`.
//!
//! ```
//! use lockkeeper_client::fencing::sql::FencedTable;
//!
//! let accounts = FencedTable::new("accounts", "id")?;
//! assert_eq!(accounts.add_column(), r#"ALTER TABLE "accounts" ADD COLUMN "fence" BIGINT NOT NULL DEFAULT 0"#);
//! assert_eq!(
//!     accounts.update(&["balance"])?,
//!     r#"UPDATE "accounts" SET "balance" = $3, "fence" = $1 WHERE "id" = $2 AND "fence" <= $1"#
//! );
//! // With tokio-postgres:
//! //     let rows = db.execute(&accounts.update(&["balance"])?, &[&sql::parameter(guard.token())?, &"ann", &60_i64]).await?;
//! //     sql::accepted(rows, guard.token())?;
//! # Ok::<(), lockkeeper_client::fencing::sql::SqlError>(())
//! ```

use thiserror::Error;

use super::Stale;

/// The table of fences: for each lock the largest token that has been seen. Run it once.
pub const FENCE_TABLE: &str =
    "CREATE TABLE IF NOT EXISTS lockkeeper_fence (lock TEXT PRIMARY KEY, token BIGINT NOT NULL)";

/// The first statement of each transaction that writes under the lock: `$1` is the lock's name, `$2` the token. 1 row: go on, and no other
/// holder of the lock comes between until this transaction ends. 0 rows: the token is stale; roll back.
pub const RAISE_FENCE: &str = "INSERT INTO lockkeeper_fence (lock, token) VALUES ($1, $2) \
    ON CONFLICT (lock) DO UPDATE SET token = EXCLUDED.token WHERE lockkeeper_fence.token <= EXCLUDED.token";

/// Longest name of a table or column: what PostgreSQL does not cut off.
const MAX_NAME_BYTES: usize = 63;

/// Why a statement cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SqlError {
    /// A name that is not taken: only ASCII letters, digits and `_`, so that nothing else can get into a statement this way.
    #[error("{name:?} is no name of a {what}: it takes 1 to 63 ASCII letters, digits and '_', and no digit first")]
    BadName {
        /// Of what.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A statement that would write nothing.
    #[error("name at least one column to write")]
    NoColumns,
    /// The token is not stored.
    #[error("fencing token {0} is larger than a BIGINT; it is none that Lockkeeper gives")]
    TokenTooLarge(u64),
}

/// A token as the parameter of a statement.
///
/// # Errors
/// It is larger than any that the cluster gives.
pub fn parameter(token: u64) -> Result<i64, SqlError> {
    i64::try_from(token).map_err(|_| SqlError::TokenTooLarge(token))
}

/// What the number of rows means that a fenced statement wrote.
///
/// # Errors
/// No row: the token is stale. (For an [update](FencedTable::update) also: there is no such row.)
pub fn accepted(rows: u64, token: u64) -> Result<(), Stale> {
    if rows == 0 { Err(Stale { token, seen: None }) } else { Ok(()) }
}

/// A table whose rows carry the token of their last writer. In all of its statements `$1` is the token, `$2` the key, and the values follow in the
/// order in which the columns are named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedTable {
    table: String,
    key: String,
    fence: String,
}

impl FencedTable {
    /// The table of that name (`table` or `schema.table`), its rows told apart by that column, which must be unique.
    ///
    /// # Errors
    /// A name that is not taken.
    pub fn new(table: &str, key: &str) -> Result<Self, SqlError> {
        let parts: Result<Vec<String>, SqlError> = table.splitn(2, '.').map(|part| quoted("table", part)).collect();
        Ok(Self { table: parts?.join("."), key: quoted("column", key)?, fence: quoted("column", "fence")? })
    }

    /// The token's column, where it is not to be `fence`.
    ///
    /// # Errors
    /// A name that is not taken.
    pub fn fence_column(self, fence: &str) -> Result<Self, SqlError> {
        Ok(Self { fence: quoted("column", fence)?, ..self })
    }

    /// Gives an existing table the token's column. Existing rows start at 0, below every token.
    pub fn add_column(&self) -> String {
        let Self { table, fence, .. } = self;
        format!("ALTER TABLE {table} ADD COLUMN {fence} BIGINT NOT NULL DEFAULT 0")
    }

    /// Writes these columns of the row if the token is not stale.
    ///
    /// # Errors
    /// No column, or a name that is not taken.
    pub fn update(&self, columns: &[&str]) -> Result<String, SqlError> {
        let Self { table, key, fence } = self;
        let set = assignments(columns, |at| format!("${}", at + 3))?;
        Ok(format!("UPDATE {table} SET {set}, {fence} = $1 WHERE {key} = $2 AND {fence} <= $1"))
    }

    /// Writes these columns of the row if the token is not stale, and makes the row if it is missing.
    ///
    /// # Errors
    /// No column, or a name that is not taken.
    pub fn upsert(&self, columns: &[&str]) -> Result<String, SqlError> {
        let Self { table, key, fence } = self;
        let names: Result<Vec<String>, SqlError> = columns.iter().map(|name| quoted("column", name)).collect();
        let values: Vec<String> = (0..columns.len()).map(|at| format!("${}", at + 3)).collect();
        let set = assignments(columns, |at| format!("EXCLUDED.{}", quoted("column", columns[at]).unwrap_or_default()))?;
        let (names, values) = (names?.join(", "), values.join(", "));
        // Behind ON CONFLICT the table is known by its own name, without the schema.
        let row = table.rsplit('.').next().unwrap_or(table);
        Ok(format!(
            "INSERT INTO {table} ({fence}, {key}, {names}) VALUES ($1, $2, {values}) \
             ON CONFLICT ({key}) DO UPDATE SET {set}, {fence} = EXCLUDED.{fence} WHERE {row}.{fence} <= EXCLUDED.{fence}"
        ))
    }
}

fn assignments(columns: &[&str], value: impl Fn(usize) -> String) -> Result<String, SqlError> {
    if columns.is_empty() {
        return Err(SqlError::NoColumns);
    }
    let each = columns.iter().enumerate().map(|(at, name)| Ok(format!("{} = {}", quoted("column", name)?, value(at))));
    Ok(each.collect::<Result<Vec<_>, SqlError>>()?.join(", "))
}

fn quoted(what: &'static str, name: &str) -> Result<String, SqlError> {
    let fits = (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !name.starts_with(|first: char| first.is_ascii_digit());
    if fits { Ok(format!("\"{name}\"")) } else { Err(SqlError::BadName { what, name: name.into() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements() {
        let table = FencedTable::new("shop.orders", "id").unwrap().fence_column("token").unwrap();
        assert_eq!(
            table.upsert(&["state", "total"]).unwrap(),
            r#"INSERT INTO "shop"."orders" ("token", "id", "state", "total") VALUES ($1, $2, $3, $4) ON CONFLICT ("id") DO UPDATE SET "state" = EXCLUDED."state", "total" = EXCLUDED."total", "token" = EXCLUDED."token" WHERE "orders"."token" <= EXCLUDED."token""#
        );
        assert_eq!(
            table.update(&["state", "total"]).unwrap(),
            r#"UPDATE "shop"."orders" SET "state" = $3, "total" = $4, "token" = $1 WHERE "id" = $2 AND "token" <= $1"#
        );
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
