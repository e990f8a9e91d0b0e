//! Connections to PostgreSQL, and what its errors mean.
//!
//! Every request has a bound in time: a server that is paused must not stop its callers. A failure before a statement
//! was sent is certain, one after it is not, and an error of the server says that the statement had no effect.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Error, Row, Socket};

use crate::error::EngineError;
use crate::sql::{self, Failure, REQUEST_TIMEOUT};

/// Statements are short, and each waiter looks by one; more connections would only wait for the rows in the server.
const MOST_CONNECTIONS: usize = 16;

type Opening = Pin<Box<dyn Future<Output = Result<Session, Error>> + Send>>;
/// A parameter of a statement and its type.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);
type Notified = Arc<dyn Fn(&str) + Send + Sync>;

/// Opens connections, with or without TLS.
#[derive(Clone)]
pub(super) struct Opener(Arc<dyn Fn(Option<Notified>) -> Opening + Send + Sync>);

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Opener")
    }
}

/// A connection of its own. Dropping it ends its session in the server.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: Client,
    /// The reason, once the connection has ended.
    pub(super) ended: watch::Receiver<Option<String>>,
    /// The task that has the socket.
    driver: AbortHandle,
}

impl Drop for Session {
    /// Closes the socket at once. By itself the driver would stay until all answers have come, and a waiter that has
    /// gone would keep its connection and its place in the server's queue.
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Parses the text that configures a connection. The error does not show it, since it may have a password.
pub(super) fn config(engine: &str, text: &str) -> Result<Config, EngineError> {
    text.parse().map_err(|error| EngineError::Refused(format!("the connection string of the engine {engine}: {error}")))
}

impl Opener {
    pub(super) fn new<T>(config: Config, tls: T) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + 'static,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        Self(Arc::new(move |notified| {
            let (config, tls) = (config.clone(), tls.clone());
            Box::pin(async move {
                let (client, mut connection) = config.connect(tls).await?;
                let (sender, ended) = watch::channel(None);
                let driver = tokio::spawn(async move {
                    let why = loop {
                        match poll_fn(|context| connection.poll_message(context)).await {
                            Some(Ok(AsyncMessage::Notification(notification))) => {
                                if let Some(notified) = &notified {
                                    notified(notification.payload());
                                }
                            }
                            Some(Ok(_)) => {}
                            Some(Err(error)) => break text_of(&error),
                            None => break "it was closed".to_owned(),
                        }
                    };
                    sender.send_replace(Some(why));
                });
                Ok(Session { client, ended, driver: driver.abort_handle() })
            })
        }))
    }

    /// Opens a connection; `notified` gets the payloads of what it listens to.
    pub(super) async fn open(&self, engine: &str, notified: Option<Notified>) -> Result<Session, EngineError> {
        let unreachable = |why: String| EngineError::Unreachable { engine: engine.into(), why };
        match timeout(REQUEST_TIMEOUT, self.0(notified)).await {
            Ok(Ok(session)) => Ok(session),
            // Nothing was sent yet.
            Ok(Err(error)) => match failure_of(engine, &error) {
                Failure::Conflict { why, .. } | Failure::Engine(EngineError::UnknownOutcome(why)) => {
                    Err(unreachable(why))
                }
                Failure::Engine(error) => Err(error),
            },
            Err(_) => Err(unreachable(format!("no connection within {REQUEST_TIMEOUT:?}"))),
        }
    }
}

/// Connections for single statements.
#[derive(Debug)]
pub(super) struct PostgresConnections {
    engine: &'static str,
    opener: Opener,
    idle: Mutex<Vec<Session>>,
    permits: Semaphore,
}

/// A connection in use. It goes back to the idle ones by [`done`](Self::done) alone: one that is dropped before may be
/// in the middle of an answer or of a transaction, and is closed.
#[derive(Debug)]
pub(super) struct Pooled<'a> {
    connections: &'a PostgresConnections,
    session: Session,
    _permit: SemaphorePermit<'a>,
}

impl PostgresConnections {
    pub(super) fn new(engine: &'static str, opener: Opener) -> Self {
        Self { engine, opener, idle: Mutex::default(), permits: Semaphore::new(MOST_CONNECTIONS) }
    }

    pub(super) async fn get(&self) -> Result<Pooled<'_>, EngineError> {
        let unreachable = |why: String| EngineError::Unreachable { engine: self.engine.into(), why };
        let Ok(Ok(permit)) = timeout(REQUEST_TIMEOUT, self.permits.acquire()).await else {
            let why = format!("all {MOST_CONNECTIONS} connections of this engine wait for the server");
            return Err(unreachable(why));
        };
        let idle = {
            let mut idle = self.idle.lock();
            // Those that the server has closed are over.
            idle.retain(|session| !session.client.is_closed());
            idle.pop()
        };
        let session = match idle {
            Some(session) => session,
            None => {
                let session = self.opener.open(self.engine, None).await?;
                // A waiting statement must end before the caller gives up on its answer.
                let settings = "SET default_transaction_isolation = 'read committed'; SET lock_timeout = '2s'; \
                                SET statement_timeout = '4s'";
                let set = answer(self.engine, session.client.batch_execute(settings)).await;
                set.map_err(|failure| unreachable(EngineError::from(failure).to_string()))?;
                session
            }
        };
        Ok(Pooled { connections: self, session, _permit: permit })
    }
}

impl Pooled<'_> {
    pub(super) fn client(&self) -> &Client {
        &self.session.client
    }

    /// The rows of a statement.
    pub(super) async fn query(&self, statement: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Failure> {
        self.answer(self.client().query_typed(statement, parameters)).await
    }

    /// Awaits the answer of a statement.
    pub(super) async fn answer<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
        answer(self.connections.engine, call).await
    }

    /// All its statements are answered, and no transaction is open.
    pub(super) fn done(self) {
        self.connections.idle.lock().push(self.session);
    }
}

/// Awaits the answer of a statement.
pub(super) async fn answer<T>(engine: &str, call: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
    sql::answer("PostgreSQL", call, |error| failure_of(engine, &error)).await
}

pub(super) fn failure_of(engine: &str, error: &Error) -> Failure {
    let said = text_of(error);
    match error.code() {
        Some(code) => failure_of_code(engine, code, said),
        None => Failure::Engine(EngineError::UnknownOutcome(format!("the connection to PostgreSQL failed: {said}"))),
    }
}

fn failure_of_code(engine: &str, code: &SqlState, said: String) -> Failure {
    let unreachable = |why: String| Failure::Engine(EngineError::Unreachable { engine: engine.into(), why });
    if [
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::QUERY_CANCELED,
    ]
    .contains(code)
    {
        return Failure::Conflict { engine: "postgres", why: said };
    }
    if *code == SqlState::TOO_MANY_CONNECTIONS {
        return unreachable(format!(
            "{said}; raise max_connections (or the role's limit), or let fewer processes connect"
        ));
    }
    if *code == SqlState::CANNOT_CONNECT_NOW {
        return unreachable(said);
    }
    if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
        return unreachable(format!("{said}; this server takes no writes: connect to the primary"));
    }
    // The server ends the connection, and a commit may have been under way.
    if [SqlState::ADMIN_SHUTDOWN, SqlState::CRASH_SHUTDOWN, SqlState::IDLE_SESSION_TIMEOUT].contains(code) {
        return Failure::Engine(EngineError::UnknownOutcome(said));
    }
    if *code == SqlState::UNDEFINED_TABLE {
        return Failure::Engine(EngineError::Refused(format!("{said}; create it by create_table()")));
    }
    Failure::Engine(EngineError::Refused(said))
}

fn text_of(error: &Error) -> String {
    match error.as_db_error() {
        Some(error) => format!("PostgreSQL error {}: {}", error.code().code(), error.message()),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(code: SqlState) -> EngineError {
        failure_of_code("postgres", &code, "said so".into()).into()
    }

    #[test]
    fn errors_have_their_classes() {
        let unreachable = |code| match class(code) {
            EngineError::Unreachable { why, .. } => why,
            other => panic!("{other:?}"),
        };
        assert!(unreachable(SqlState::TOO_MANY_CONNECTIONS).contains("max_connections"));
        assert!(unreachable(SqlState::READ_ONLY_SQL_TRANSACTION).contains("primary"));
        assert_eq!(unreachable(SqlState::T_R_DEADLOCK_DETECTED), "said so");
        assert!(matches!(class(SqlState::ADMIN_SHUTDOWN), EngineError::UnknownOutcome(_)));
        assert!(matches!(class(SqlState::UNDEFINED_TABLE), EngineError::Refused(why) if why.contains("create_table")));
        assert!(matches!(class(SqlState::INVALID_PASSWORD), EngineError::Refused(_)));
    }

    #[test]
    fn a_wrong_connection_string_is_refused() {
        let refused = config("postgres", "host=127.0.0.1 password=secret port=x").unwrap_err().to_string();
        assert!(refused.contains("engine postgres") && !refused.contains("secret"), "{refused}");
    }
}
