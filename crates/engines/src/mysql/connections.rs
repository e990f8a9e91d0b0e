//! Connections to MySQL, and what its errors mean.
//!
//! Every request has a bound in time: a server that is paused must not stop its callers. A failure before a statement
//! was sent is certain, one after it is not, and an error of the server says that the statement had no effect.

use mysql_async::prelude::{FromRow, Queryable as _};
use mysql_async::{Conn, Error, Opts, OptsBuilder, Pool, PoolConstraints, PoolOpts, Row, from_row_opt};
use tokio::time::timeout;

use crate::error::EngineError;
use crate::sql::{self, Failure, REQUEST_TIMEOUT};

/// Statements are short, and each waiter looks by one; more connections would only wait for the rows in the server.
const MOST_CONNECTIONS: usize = 16;

/// Sets what the statements rely on. A waiting statement must end before the caller gives up on its answer.
const SESSION: &str = "SET SESSION sql_mode = 'STRICT_ALL_TABLES', SESSION innodb_lock_wait_timeout = 2, \
    SESSION autocommit = 1";
/// Locks no gaps, so that the rows of two new locks do not get into each other's way.
const ISOLATION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

/// The options of a URL such as `mysql://shop:secret@127.0.0.1:3306/shop`.
pub(super) fn options(engine: &str, url: &str) -> Result<Opts, EngineError> {
    // The error must not show the password of the URL.
    Opts::from_url(url).map_err(|error| EngineError::Refused(format!("the URL of the engine {engine}: {error}")))
}

/// The options, with what the statements rely on.
pub(super) fn prepared(options: Opts) -> OptsBuilder {
    let mut setup = options.setup().to_vec();
    setup.extend([SESSION.to_owned(), ISOLATION.to_owned()]);
    // By the number of rows that changed, the statements tell what took place.
    OptsBuilder::from_opts(options).client_found_rows(false).setup(setup)
}

#[derive(Clone, Debug)]
pub(super) struct MySqlConnections {
    engine: &'static str,
    pool: Pool,
}

impl MySqlConnections {
    pub(super) fn new(engine: &'static str, options: Opts) -> Self {
        let constraints = PoolConstraints::new(1, MOST_CONNECTIONS).unwrap_or_default();
        // Without a reset: no statement changes the session, and transactions are rolled back in any case.
        let pool = PoolOpts::new().with_constraints(constraints).with_reset_connection(false);
        Self { engine, pool: Pool::new(Opts::from(prepared(options).pool_opts(pool))) }
    }

    pub(super) async fn get(&self) -> Result<Conn, EngineError> {
        opened(self.engine, self.pool.get_conn()).await
    }

    /// Awaits the answer of a statement.
    pub(super) async fn answer<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
        answer(self.engine, call).await
    }

    /// Awaits the first row of a statement. A table of other columns is an error here, not a panic as in the driver.
    pub(super) async fn row<T: FromRow>(
        &self,
        call: impl Future<Output = Result<Option<Row>, Error>>,
    ) -> Result<Option<T>, Failure> {
        let other = |_| {
            let why = "the table of locks has other columns than create_table() makes".to_owned();
            Failure::Engine(EngineError::Refused(why))
        };
        self.answer(call).await?.map(|row| from_row_opt(row).map_err(other)).transpose()
    }

    /// Executes a statement without parameters, such as one that makes a table.
    pub(super) async fn execute(&self, statement: &str) -> Result<(), EngineError> {
        let mut connection = self.get().await?;
        Ok(self.answer(connection.query_drop(statement)).await?)
    }
}

/// Awaits a new connection.
pub(super) async fn opened(
    engine: &str,
    opening: impl Future<Output = Result<Conn, Error>>,
) -> Result<Conn, EngineError> {
    let unreachable = |why: String| EngineError::Unreachable { engine: engine.into(), why };
    match timeout(REQUEST_TIMEOUT, opening).await {
        Ok(Ok(connection)) => Ok(connection),
        // Nothing was sent yet.
        Ok(Err(error)) => match failure_of(engine, error) {
            Failure::Conflict { why, .. } => Err(unreachable(why)),
            Failure::Engine(EngineError::UnknownOutcome(why)) => Err(unreachable(why)),
            Failure::Engine(error) => Err(error),
        },
        Err(_) => Err(unreachable(format!(
            "no connection within {REQUEST_TIMEOUT:?}: the server does not answer, or all {MOST_CONNECTIONS} \
             connections of this engine wait for it"
        ))),
    }
}

pub(super) async fn answer<T>(engine: &str, call: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
    sql::answer("MySQL", call, |error| failure_of(engine, error)).await
}

fn failure_of(engine: &str, error: Error) -> Failure {
    let Error::Server(server) = &error else {
        return Failure::Engine(EngineError::UnknownOutcome(format!("the connection to MySQL failed: {error}")));
    };
    let said = format!("MySQL error {}: {}", server.code, server.message);
    let unreachable = |why: String| Failure::Engine(EngineError::Unreachable { engine: engine.into(), why });
    match server.code {
        // Lock wait timeout, deadlock, a row that changed since the snapshot.
        1_205 | 1_213 | 1_020 => Failure::Conflict { engine: "mysql", why: said },
        1_040 | 1_203 | 1_226 => {
            unreachable(format!("{said}; raise max_connections (or the user's limit), or let fewer processes connect"))
        }
        // Shutdown, KILL of the statement, KILL of the connection: the statement was undone.
        1_053 | 1_317 | 1_927 => unreachable(said),
        1_290 | 1_792 | 1_836 | 3_032 => {
            unreachable(format!("{said}; this server takes no writes: connect to the primary"))
        }
        1_146 => Failure::Engine(EngineError::Refused(format!("{said}; create it by create_table()"))),
        _ => Failure::Engine(EngineError::Refused(said)),
    }
}

#[cfg(test)]
mod tests {
    use mysql_async::ServerError;

    use super::*;

    fn class(code: u16) -> EngineError {
        let (message, state) = ("said so".to_owned(), "HY000".to_owned());
        failure_of("mysql", Error::Server(ServerError { code, message, state })).into()
    }

    #[test]
    fn errors_have_their_classes() {
        for code in [1_205, 1_213, 1_040, 1_203, 1_053, 1_927, 1_290] {
            assert!(matches!(class(code), EngineError::Unreachable { why, .. } if why.contains("said so")), "{code}");
        }
        assert!(matches!(class(1_040), EngineError::Unreachable { why, .. } if why.contains("max_connections")));
        assert!(matches!(class(1_146), EngineError::Refused(why) if why.contains("create_table")));
        assert!(matches!(class(1_045), EngineError::Refused(_)));
        let broken = Error::Io(std::io::Error::other("reset").into());
        assert!(matches!(EngineError::from(failure_of("mysql", broken)), EngineError::UnknownOutcome(_)));
    }

    #[test]
    fn a_wrong_url_is_refused() {
        let refused = options("mysql", "mysql://root:secret@host:x/y").unwrap_err().to_string();
        assert!(refused.contains("engine mysql") && !refused.contains("secret"), "{refused}");
    }
}
