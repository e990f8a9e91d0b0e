//! One Redis, which may be several servers of which one takes writes: connections, scripts, and the classes of errors.
//!
//! It must never report as "did not take place" what may have taken place.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, FromRedisValue, RedisError, ServerErrorKind};
use tokio::sync::Mutex;

use super::scripts::Script;
use super::{RedisOptions, unreachable};
use crate::error::EngineError;

/// Why a call to a server gave no answer that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallError {
    /// It certainly did not take effect: no connection, or a server that does not serve now.
    NotServed(String),
    /// It may have taken effect, or may still do so.
    Unknown(String),
    /// The server refuses such calls, for example for lack of a right.
    Refused(String),
}

impl CallError {
    pub(super) fn into_engine_error(self, engine: &str) -> EngineError {
        match self {
            Self::NotServed(why) => unreachable(engine, why),
            Self::Unknown(why) => EngineError::UnknownOutcome(why),
            Self::Refused(why) => EngineError::Refused(why),
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotServed(why) | Self::Unknown(why) | Self::Refused(why) => f.write_str(why),
        }
    }
}

/// See the module's text.
pub(super) struct Server {
    addresses: Vec<Client>,
    /// The address that is asked first.
    preferred: AtomicUsize,
    connection: Mutex<Option<MultiplexedConnection>>,
    options: RedisOptions,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl Server {
    /// One Redis at these addresses, such as `redis://127.0.0.1:6379`. It connects when first used.
    pub(super) fn new(
        addresses: impl IntoIterator<Item = impl AsRef<str>>,
        options: RedisOptions,
    ) -> Result<Self, EngineError> {
        let open = |address: &str| {
            Client::open(address).map_err(|why| EngineError::Refused(format!("the address of a Redis: {why}")))
        };
        let addresses: Vec<Client> =
            addresses.into_iter().map(|address| open(address.as_ref())).collect::<Result<_, _>>()?;
        if addresses.is_empty() {
            return Err(EngineError::Refused("name at least one address of a Redis".into()));
        }
        Ok(Self { addresses, preferred: AtomicUsize::new(0), connection: Mutex::new(None), options })
    }

    /// The client of the address that is asked first.
    pub(super) fn client(&self) -> Option<&Client> {
        self.addresses.get(self.preferred.load(Ordering::Relaxed)).or_else(|| self.addresses.first())
    }

    /// The address that is asked first, without a password.
    pub(super) fn address(&self) -> String {
        self.client().map(|client| client.get_connection_info().addr().to_string()).unwrap_or_default()
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        self.options.connect_timeout
    }

    /// Runs a script. Tries the other addresses if the preferred one certainly did not carry it out.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[String],
    ) -> Result<T, CallError> {
        let evaluate = |command: &str, script: &str| {
            let mut evaluate = redis::cmd(command);
            evaluate.arg(script).arg(keys.len()).arg(keys).arg(arguments);
            evaluate
        };
        self.at_each_address(&evaluate("EVALSHA", &script.sha), Some(&evaluate("EVAL", script.text))).await
    }

    /// The value of a key.
    pub(super) async fn get(&self, key: &str) -> Result<Option<String>, CallError> {
        self.at_each_address(redis::cmd("GET").arg(key), None).await
    }

    /// The answer to a command of the first address that serves. `whole` is the same command for a server that does
    /// not remember the script: after a restart, a failover or SCRIPT FLUSH. It makes the server remember it.
    async fn at_each_address<T: FromRedisValue>(&self, command: &Cmd, whole: Option<&Cmd>) -> Result<T, CallError> {
        let mut last = CallError::NotServed("no address is known".into());
        for _ in 0..self.addresses.len() {
            let outcome = match self.connection().await {
                Ok(mut connection) => ask(&mut connection, command, whole).await.map_err(|error| classify(&error)),
                Err(why) => Err(CallError::NotServed(why)),
            };
            match outcome {
                Err(CallError::NotServed(why)) => {
                    last = CallError::NotServed(format!("{}: {why}", self.address()));
                    self.forget_connection().await;
                    let next = (self.preferred.load(Ordering::Relaxed) + 1) % self.addresses.len();
                    self.preferred.store(next, Ordering::Relaxed);
                }
                Err(CallError::Unknown(why)) => {
                    let error = CallError::Unknown(format!("{}: {why}", self.address()));
                    self.forget_connection().await;
                    return Err(error);
                }
                other => return other,
            }
        }
        Err(last)
    }

    async fn connection(&self) -> Result<MultiplexedConnection, String> {
        let mut present = self.connection.lock().await;
        if let Some(connection) = &*present {
            return Ok(connection.clone());
        }
        let Some(client) = self.client() else { return Err("no address is known".into()) };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.options.connect_timeout))
            .set_response_timeout(Some(self.options.response_timeout));
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        let connection = connection.map_err(|error| error.to_string())?;
        Ok(present.insert(connection).clone())
    }

    async fn forget_connection(&self) {
        *self.connection.lock().await = None;
    }
}

async fn ask<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    command: &Cmd,
    whole: Option<&Cmd>,
) -> Result<T, RedisError> {
    match (command.query_async(connection).await, whole) {
        (Err(error), Some(whole)) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            whole.query_async(connection).await
        }
        (answer, _) => answer,
    }
}

/// Codes of errors with which Redis refuses to serve at present. Nothing took place.
const NOT_SERVING: [&str; 8] =
    ["LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "OOM", "MISCONF", "NOREPLICAS"];

fn classify(error: &RedisError) -> CallError {
    let text = error.to_string();
    // Before Redis 7, the error of a command in a script comes as text within another error.
    let not_serving = error.code().is_some_and(|code| NOT_SERVING.contains(&code))
        || text.contains("READONLY")
        || text.contains("max number of clients reached");
    if not_serving {
        return CallError::NotServed(text);
    }
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::InvalidClientConfig | ErrorKind::Client => {
            CallError::Refused(text)
        }
        ErrorKind::AuthenticationFailed => CallError::Refused(text),
        _ if error.is_connection_refusal() => CallError::NotServed(text),
        _ => CallError::Unknown(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_classes() {
        let class = |code: &'static str, kind: ErrorKind| {
            classify(&RedisError::from((kind, code, "max number of clients reached".to_owned())))
        };
        assert!(matches!(class("ERR", ErrorKind::Server(ServerErrorKind::ResponseError)), CallError::NotServed(_)));
        let of = |kind: ErrorKind, text: &'static str| classify(&RedisError::from((kind, text)));
        let loading = ErrorKind::Server(ServerErrorKind::BusyLoading);
        assert!(matches!(of(loading, "loading"), CallError::NotServed(_)));
        let replica = ErrorKind::Server(ServerErrorKind::ReadOnly);
        assert!(matches!(of(replica, "a replica"), CallError::NotServed(_)));
        let right = ErrorKind::Server(ServerErrorKind::NoPerm);
        assert!(matches!(of(right, "no right"), CallError::Refused(_)));
        assert!(matches!(of(ErrorKind::Io, "broken"), CallError::Unknown(_)));
    }

    #[test]
    fn an_address_is_checked_at_once() {
        assert!(matches!(Server::new(["http://x"], RedisOptions::default()), Err(EngineError::Refused(_))));
        assert!(matches!(Server::new(Vec::<String>::new(), RedisOptions::default()), Err(EngineError::Refused(_))));
    }
}
