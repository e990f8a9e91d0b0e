//! Fencing in SQL: statements that write if the token is not stale, and report 0 rows if it is.
//!
//! There are two ways: [`FencedTable`] builds the statements of the first; the constants are the statements of the
//! second. They are for PostgreSQL, and for SQLite if you replace each `$1` by `?1` (in SQLite `$1` is a name, and
//! names are numbered in order of appearance).
//!
//! | | a column in the row ([`FencedTable`]) | a row for each lock ([`FENCE_TABLE`]) |
//! |---|---|---|
//! | guards | that row | every write of the same transaction |
//! | costs | one column, no further statement | one further statement in each transaction |
//! | use it for | one row or object for each lock | a lock over several tables or rows |
//!
//! **Always check the number of rows**, by [`accepted`]. 0 rows is no error for a database, and the work would go on
//! as if it had written.
//!
//! Pitfalls. Deleting a row deletes its fence, and a stale holder's upsert can insert it again; mark the row as
//! deleted instead. An [update](FencedTable::update) also reports 0 rows for a missing row, an
//! [upsert](FencedTable::upsert) only for a stale token. Values that were *read* in an earlier transaction may be old
//! even if the token is not: read them under the lock, with the token that writes them. MySQL counts rows that
//! changed, not rows that matched, unless its driver sets `CLIENT_FOUND_ROWS`.
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
//! //     let token = sql::parameter(guard.token())?;
//! //     let rows = db.execute(&accounts.update(&["balance"])?, &[&token, &"ann", &60_i64]).await?;
//! //     sql::accepted(rows, guard.token())?;
//! # Ok::<(), lockkeeper_client::fencing::sql::SqlError>(())
//! ```

use thiserror::Error;

use super::Stale;

/// Creates the table of fences: for each lock the largest token seen. Run it once.
pub const FENCE_TABLE: &str =
    "CREATE TABLE IF NOT EXISTS lockkeeper_fence (lock TEXT PRIMARY KEY, token BIGINT NOT NULL)";

/// The first statement of each transaction that writes under the lock: `$1` is the lock's name, `$2` the token. 1 row:
/// go on; no other holder of the lock writes until this transaction ends. 0 rows: the token is stale; roll back.
pub const RAISE_FENCE: &str = "INSERT INTO lockkeeper_fence (lock, token) VALUES ($1, $2) \
    ON CONFLICT (lock) DO UPDATE SET token = EXCLUDED.token WHERE lockkeeper_fence.token <= EXCLUDED.token";

/// Longest name of a table or column: PostgreSQL truncates longer ones.
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

/// Checks the number of rows that a fenced statement wrote.
///
/// # Errors
/// 0 rows: the token is stale. (For an [update](FencedTable::update) also: the row does not exist.)
pub fn accepted(rows: u64, token: u64) -> Result<(), Stale> {
    if rows == 0 { Err(Stale { token, seen: None }) } else { Ok(()) }
}

/// A table whose rows contain the token of their last writer. In all its statements `$1` is the token, `$2` the key,
/// and the values follow in the order of the named columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedTable {
    table: String,
    key: String,
    fence: String,
}

impl FencedTable {
    /// The table of that name (`table` or `schema.table`), with that key column, which must be unique.
    ///
    /// # Errors
    /// An invalid name.
    pub fn new(table: &str, key: &str) -> Result<Self, SqlError> {
        let parts: Result<Vec<String>, SqlError> = table.splitn(2, '.').map(|part| quoted("table", part)).collect();
        Ok(Self { table: parts?.join("."), key: quoted("column", key)?, fence: quoted("column", "fence")? })
    }

    /// Names the token's column; `fence` by default.
    ///
    /// # Errors
    /// An invalid name.
    pub fn fence_column(self, fence: &str) -> Result<Self, SqlError> {
        Ok(Self { fence: quoted("column", fence)?, ..self })
    }

    /// Adds the token's column to an existing table. Existing rows start at 0, below every token.
    pub fn add_column(&self) -> String {
        let Self { table, fence, .. } = self;
        format!("ALTER TABLE {table} ADD COLUMN {fence} BIGINT NOT NULL DEFAULT 0")
    }

    /// Writes these columns of the row if the token is not stale.
    ///
    /// # Errors
    /// No column, or an invalid name.
    pub fn update(&self, columns: &[&str]) -> Result<String, SqlError> {
        let Self { table, key, fence } = self;
        let set = assignments(columns, |at| format!("${}", at + 3))?;
        Ok(format!("UPDATE {table} SET {set}, {fence} = $1 WHERE {key} = $2 AND {fence} <= $1"))
    }

    /// Writes these columns of the row if the token is not stale, and inserts the row if it is missing.
    ///
    /// # Errors
    /// No column, or an invalid name.
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
             ON CONFLICT ({key}) DO UPDATE SET {set}, {fence} = EXCLUDED.{fence} \
             WHERE {row}.{fence} <= EXCLUDED.{fence}"
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
