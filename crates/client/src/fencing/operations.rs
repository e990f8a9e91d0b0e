//! Operations done once in a database: the gate's token is stored in the same transaction as the work.
//!
//! A [gate](crate::recipes::Gate) lets one worker at a time begin an operation. A worker that dies after its
//! transaction has committed, and before it has finished the gate, leaves the gate open; the next worker would do the
//! work a second time. These statements close that hole: the transaction of the work also inserts a row for the gate's
//! key, so the database itself refuses a second transaction for the same key, whether it comes from the next worker or
//! from an earlier one that was paused.
//!
//! In the transaction of the work:
//!
//! 1. [`RECORD_OPERATION`] with the key and the token. [`recorded`] says whether to go on. 0 rows: another worker's
//!    transaction has committed. Roll back, read its result with [`FIND_OPERATION`], and finish the gate with it.
//! 2. The work.
//! 3. [`STORE_RESULT`], if later workers need the result; then commit, and finish the gate.
//!
//! A second transaction that records the same key waits until the first has ended. If the first rolls back, the second
//! goes on.
//!
//! The row counts until it is deleted. Delete it later than the gate forgets its result ([`FORGET_OLD_OPERATIONS`]),
//! because a row that is gone lets the operation be done again. An operator who resets a gate so that its operation is
//! done again deletes the row as well ([`FORGET_OPERATION`]).
//!
//! The constants are for PostgreSQL at its default isolation, READ COMMITTED. At REPEATABLE READ and above, the
//! statement fails with a serialization error (SQLSTATE 40001) instead of reporting 0 rows: roll back and run the
//! transaction again. [`mysql`] has the statements for MySQL and MariaDB.
//!
//! ```
//! use lockkeeper_client::fencing::operations::recorded;
//!
//! // With tokio-postgres:
//! //     let work = db.transaction().await?;
//! //     let rows = work.execute(RECORD_OPERATION, &[&ticket.key(), &parameter(ticket.token())?]).await?;
//! //     recorded(rows, ticket.key())?;
//! //     work.execute("UPDATE accounts SET cents = cents - 1000 WHERE name = 'ann'", &[]).await?;
//! //     work.execute(STORE_RESULT, &[&ticket.key(), &parameter(ticket.token())?, &receipt]).await?;
//! //     work.commit().await?;
//! //     ticket.finish(receipt, Keep::Forever).await?;
//! assert!(recorded(1, "payments/42").is_ok());
//! let done = recorded(0, "payments/42").unwrap_err();
//! assert!(done.to_string().contains("payments/42"));
//! ```

use thiserror::Error;

/// Creates the table of operations: for each gate's key the token under which its work was committed. Run it once.
pub const OPERATION_TABLE: &str = "CREATE TABLE IF NOT EXISTS lockkeeper_operation (\
    gate TEXT PRIMARY KEY, token BIGINT NOT NULL, result BYTEA, done_at TIMESTAMPTZ NOT NULL DEFAULT now())";

/// Records the operation: `$1` is the gate's key, `$2` the token. 1 row: go on. 0 rows: the operation is done; roll
/// back. See [`recorded`].
pub const RECORD_OPERATION: &str =
    "INSERT INTO lockkeeper_operation (gate, token) VALUES ($1, $2) ON CONFLICT (gate) DO NOTHING";

/// Stores the result beside the operation that the same transaction recorded: `$1` is the key, `$2` the token, `$3` the
/// result (bytes).
pub const STORE_RESULT: &str = "UPDATE lockkeeper_operation SET result = $3 WHERE gate = $1 AND token = $2";

/// Reads what is recorded for the key `$1`: the token of the worker that did the operation, and the result if one was
/// stored.
pub const FIND_OPERATION: &str = "SELECT token, result FROM lockkeeper_operation WHERE gate = $1";

/// Deletes the record of the key `$1`, so that the operation can be done again.
pub const FORGET_OPERATION: &str = "DELETE FROM lockkeeper_operation WHERE gate = $1";

/// Deletes records that are older than `$1` seconds (DOUBLE PRECISION). Must be longer than gates keep results.
pub const FORGET_OLD_OPERATIONS: &str =
    "DELETE FROM lockkeeper_operation WHERE done_at < now() - make_interval(secs => $1)";

/// The same statements for MySQL and MariaDB, with InnoDB tables.
///
/// Here [`RECORD_OPERATION`](mysql::RECORD_OPERATION) does not report 0 rows if the operation is done: it fails with
/// error [`DUPLICATE`](mysql::DUPLICATE). So the outcome does not depend on `CLIENT_FOUND_ROWS`. The transaction is
/// still open then; roll it back. A lock wait that timed out (error 1205) or a deadlock (1213) says nothing about the
/// operation: roll back and run the transaction again.
pub mod mysql {
    /// As [`OPERATION_TABLE`](super::OPERATION_TABLE). The key is compared byte by byte: a text column would take
    /// `Orders/1` and `orders/1` for the same key.
    pub const OPERATION_TABLE: &str = "CREATE TABLE IF NOT EXISTS lockkeeper_operation (\
        gate VARBINARY(1024) PRIMARY KEY, token BIGINT NOT NULL, result MEDIUMBLOB, \
        done_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, INDEX (done_at)) ENGINE = InnoDB";

    /// As [`RECORD_OPERATION`](super::RECORD_OPERATION), with the parameters key, token.
    pub const RECORD_OPERATION: &str = "INSERT INTO lockkeeper_operation (gate, token) VALUES (?, ?)";

    /// The error of [`RECORD_OPERATION`] if the operation is done (`ER_DUP_ENTRY`, SQLSTATE 23000).
    pub const DUPLICATE: u16 = 1062;

    /// As [`STORE_RESULT`](super::STORE_RESULT), with the parameters **result**, key, token.
    pub const STORE_RESULT: &str = "UPDATE lockkeeper_operation SET result = ? WHERE gate = ? AND token = ?";

    /// As [`FIND_OPERATION`](super::FIND_OPERATION), with the key as parameter. After an error
    /// [`DUPLICATE`] roll back first: the transaction may read from before the other worker's commit.
    pub const FIND_OPERATION: &str = "SELECT token, result FROM lockkeeper_operation WHERE gate = ?";

    /// As [`FORGET_OPERATION`](super::FORGET_OPERATION), with the key as parameter.
    pub const FORGET_OPERATION: &str = "DELETE FROM lockkeeper_operation WHERE gate = ?";

    /// As [`FORGET_OLD_OPERATIONS`](super::FORGET_OLD_OPERATIONS), with whole seconds as parameter.
    pub const FORGET_OLD_OPERATIONS: &str =
        "DELETE FROM lockkeeper_operation WHERE done_at < CURRENT_TIMESTAMP - INTERVAL ? SECOND";
}

/// The operation is done: another worker's transaction has committed. Roll back; nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "the operation of gate {gate} is recorded as done in this database; roll back, and finish the gate with the \
     recorded result"
)]
pub struct AlreadyDone {
    /// The gate's key.
    pub gate: String,
}

/// Checks the number of rows that [`RECORD_OPERATION`] has inserted. Always do: 0 rows is no error for a database, and
/// the work would go on.
///
/// # Errors
/// 0 rows: the operation is done.
pub fn recorded(rows: u64, gate: &str) -> Result<(), AlreadyDone> {
    if rows == 0 { Err(AlreadyDone { gate: gate.into() }) } else { Ok(()) }
}
