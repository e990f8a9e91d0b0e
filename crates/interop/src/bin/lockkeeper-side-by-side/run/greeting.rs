//! Connect requests, valid and invalid.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};
use lockkeeper_zookeeper::{ConnectRequest, ConnectResponse};

use super::{Line, Run, StepFailure};
use crate::connection::{Connection, Heard};

/// A session timeout that both systems grant and that a busy machine can keep.
const TIMEOUT_MS: i32 = 20_000;

type Settings = BTreeMap<String, String>;

impl Run<'_> {
    /// Opens a connection and records the connect response. Settings: `timeout`; `session`, a connection's name or a
    /// number; `password`, `wrong`, `short` or `none`; `seen`, a zxid or a mark; `readonly`, `none`, `0` or `1`;
    /// `protocol`; `at`, the server from 0 on; `none` as a timeout sends no first frame.
    pub(super) fn connect(&mut self, name: &str, settings: &Settings) -> Result<String, StepFailure> {
        let get = |key: &str| settings.get(key).map(String::as_str);
        let at: usize = get("at").and_then(|text| text.parse().ok()).unwrap_or(0);
        let mut connection = self.open(at)?;
        if get("timeout") == Some("none") {
            self.keep(name, connection);
            return Ok("silent so far".into());
        }
        let request = self.greeting(settings)?;
        let mut bytes = BytesMut::new();
        request.encode(&mut bytes);
        connection.send(&bytes);
        let told = match connection.hear() {
            Heard::Frame(frame) => match ConnectResponse::decode(frame) {
                Ok(response) => self.greeted(name, &request, &response),
                Err(error) => format!("a first frame that cannot be read: {error}"),
            },
            Heard::End => "closed without an answer".into(),
            Heard::Silence => "no answer".into(),
        };
        if told.starts_with("refused") {
            let end = super::until_end(&mut connection, &mut VecDeque::new());
            return Ok(format!("{told}; {end}"));
        }
        if !connection.has_ended() {
            self.keep(name, connection);
        }
        Ok(told)
    }

    fn keep(&mut self, name: &str, connection: Connection) {
        let line = Line { connection, events: VecDeque::new(), end_told: false };
        self.connections.insert(name.to_owned(), line);
    }

    fn greeting(&self, settings: &Settings) -> Result<ConnectRequest, String> {
        let get = |key: &str| settings.get(key).map(String::as_str);
        let number = |key: &str, otherwise: i32| {
            get(key).map_or(Ok(otherwise), |text| text.parse().map_err(|_| format!("`{key}={text}` is no number")))
        };
        let (session_id, password) = match get("session") {
            None => (0, Bytes::from_static(&[0; 16])),
            Some(name) => match (self.credentials.get(name), name.parse()) {
                (Some((id, password)), _) => (*id, password.clone()),
                (None, Ok(id)) => (id, Bytes::from_static(&[0; 16])),
                (None, Err(_)) => return Err(format!("no session `{name}` was opened")),
            },
        };
        let password = match get("password") {
            None => password,
            Some("wrong") => Bytes::from_static(b"a wrong password"),
            Some("short") => password.slice(..8),
            Some("none") => Bytes::new(),
            Some(other) => return Err(format!("no such password: `{other}`")),
        };
        Ok(ConnectRequest {
            protocol_version: number("protocol", 0)?,
            last_zxid_seen: get("seen").map_or(Ok(0), |mark| self.marks.get(mark))?,
            timeout_ms: number("timeout", TIMEOUT_MS)?,
            session_id,
            password,
            read_only: match get("readonly") {
                Some("none") => None,
                flag => Some(flag == Some("1")),
            },
        })
    }

    fn greeted(&mut self, name: &str, request: &ConnectRequest, response: &ConnectResponse) -> String {
        let password = match &response.password {
            zero if zero.iter().all(|byte| *byte == 0) => format!("no password ({} bytes)", zero.len()),
            password => format!("a password of {} bytes", password.len()),
        };
        let read_only = response.read_only.map_or("not told", |flag| if flag { "yes" } else { "no" });
        let rest = format!(
            "protocol {}, timeout {}, {password}, read only: {read_only}",
            response.protocol_version, response.timeout_ms
        );
        if response.session_id == 0 {
            return format!("refused: {rest}");
        }
        let session = if response.session_id == request.session_id {
            format!("session {} goes on", self.names.session(response.session_id))
        } else {
            self.names.open(response.session_id, name);
            self.credentials.insert(name.to_owned(), (response.session_id, response.password.clone()));
            "a new session".into()
        };
        format!("{session}: {rest}")
    }
}
