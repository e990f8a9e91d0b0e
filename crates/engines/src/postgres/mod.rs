//! Locks in PostgreSQL: in a table ([`PostgresEngine`]), or as advisory locks ([`PostgresAdvisoryEngine`]).

mod advisory;
mod connections;
mod table;

pub use advisory::PostgresAdvisoryEngine;
pub use table::PostgresEngine;
pub use tokio_postgres;
