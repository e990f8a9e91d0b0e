//! The audit log: who changed rights or members, took locks from others or a backup, or failed to prove who it is.
//!
//! [`Audit::record`] writes each record to the log, under the target `audit`, and, if `audit.file` names one, to a file
//! of JSON lines. The log is written before the caller goes on, the file soon after. A record never holds up or fails
//! the operation that it is about.

mod file;
mod record;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use lockkeeper_node::Clock;
use parking_lot::Mutex;
use serde_json::Value;
use tracing::field::display;

pub use file::AuditFile;
use file::AuditWriter;
use record::AuditLine;
pub use record::{AuditEvent, AuditOutcome, AuditRecord, AuthenticationMethod, Requester};

use crate::hangup::Hangups;

/// Most records of failed authentication in a window, for each method. Anybody can cause them.
const FAILURES_RECORDED: u32 = 10;
const WINDOW: Duration = Duration::from_secs(1);
/// The last millisecond that RFC 3339 can write, at the end of the year 9999.
const LAST_MS: u64 = 253_402_300_799_999;

/// See the module's text.
pub struct Audit {
    /// The cluster node that writes the records.
    node: u64,
    clock: Arc<dyn Clock>,
    writer: Option<AuditWriter>,
    failures: Mutex<BTreeMap<AuthenticationMethod, FailureLimit>>,
}

impl Audit {
    /// Begins to write the audit log of this node, with a file if there is one.
    ///
    /// # Errors
    /// The thread that writes the file cannot be started.
    pub fn start(node: u64, clock: Arc<dyn Clock>, file: Option<AuditFile>) -> io::Result<Arc<Self>> {
        let writer = file.map(AuditWriter::start).transpose()?;
        Ok(Arc::new(Self { node, clock, writer, failures: Mutex::default() }))
    }

    /// Writes a record. It does not wait for the file.
    pub fn record(&self, record: &AuditRecord) {
        log(record);
        let Some(writer) = &self.writer else { return };
        // Names, numbers and texts: writing them as JSON does not fail.
        if let Ok(mut line) = serde_json::to_vec(&AuditLine::new(rfc3339(self.clock.wall_ms()), self.node, record)) {
            line.push(b'\n');
            writer.append(line);
        }
    }

    /// Writes a record of a failed authentication, unless there are too many of them.
    pub fn authentication_failed(&self, requester: Requester, method: AuthenticationMethod) {
        let admitted = self.failures.lock().entry(method).or_default().admit(self.clock.now());
        if let Some(left_out) = admitted {
            let event = AuditEvent::AuthenticationFailed { method, left_out };
            self.record(&AuditRecord { event, requester, outcome: AuditOutcome::NotDone(None) });
        }
    }

    /// Opens the file again at each SIGHUP; it never ends. Without a file it does nothing, and leaves SIGHUP alone.
    pub async fn reopen_on_hangup(self: Arc<Self>) {
        let Some(writer) = &self.writer else { return std::future::pending().await };
        let mut hangups = Hangups::new("the audit file is opened again only when it has been renamed or removed");
        loop {
            hangups.next().await;
            writer.reopen();
        }
    }

    /// Waits until the records of before are in the file.
    pub async fn flush(&self) {
        if let Some(writer) = &self.writer {
            writer.flush().await;
        }
    }
}

fn log(record: &AuditRecord) {
    let AuditRecord { event, requester, outcome } = record;
    let fields = serde_json::to_value(event).unwrap_or_default();
    let field = |name: &str| {
        fields.get(name).map(|value| match value {
            Value::String(text) => display(text.clone()),
            other => display(other.to_string()),
        })
    };
    tracing::info!(
        target: "audit",
        lock = field("lock"), path = field("path"), token = field("token"),
        member = field("member"), role = field("role"), peer_address = field("peer_address"), to = field("to"),
        change = field("change"), token_id = field("token_id"),
        bytes = field("bytes"), how = field("how"), from_zxid = field("from_zxid"), first_zxid = field("first_zxid"),
        method = field("method"), left_out = field("left_out"),
        by = requester.to_string(), request_id = requester.request_id.map(display),
        outcome = outcome.as_str(), zxid = outcome.zxid(), error = outcome.error(),
        "{}", event.message()
    );
}

fn rfc3339(unix_ms: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_millis(unix_ms.min(LAST_MS));
    humantime::format_rfc3339_millis(time).to_string()
}

/// Leaves out records of failed authentication beyond a number in each window.
#[derive(Debug, Default)]
struct FailureLimit {
    window_began: Option<Duration>,
    recorded: u32,
    left_out: u64,
}

impl FailureLimit {
    /// Whether a failure is recorded, and then how many before it were left out.
    fn admit(&mut self, now: Duration) -> Option<u64> {
        if self.window_began.is_none_or(|began| now.saturating_sub(began) >= WINDOW) {
            self.window_began = Some(now);
            self.recorded = 0;
        }
        if self.recorded == FAILURES_RECORDED {
            self.left_out += 1;
            return None;
        }
        self.recorded += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use async_trait::async_trait;
    use lockkeeper_api::access::AccessChange;
    use lockkeeper_core::acl::Principals;
    use lockkeeper_core::{FencingToken, LockName, RequestId, SessionId, State, Zxid};

    use super::*;
    use crate::failure::Failure;
    use crate::principals::{SuperDigest, digest_of, from_address, prove_header};

    /// A clock that tests move by hand.
    #[derive(Default)]
    struct ManualClock(Mutex<Duration>);

    #[async_trait]
    impl Clock for ManualClock {
        fn wall_ms(&self) -> u64 {
            1_518_568_087_133 + u64::try_from(self.now().as_millis()).unwrap()
        }

        fn now(&self) -> Duration {
            *self.0.lock()
        }

        async fn sleep_until(&self, _: Duration) {}
    }

    fn audit(path: &Path) -> (Arc<ManualClock>, Arc<Audit>) {
        let clock = Arc::new(ManualClock::default());
        let audit = Audit::start(3, clock.clone(), Some(AuditFile::open(path).unwrap())).unwrap();
        (clock, audit)
    }

    async fn lines(audit: &Audit, path: &Path) -> Vec<Value> {
        audit.flush().await;
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn bob() -> Principals {
        let mut principals = from_address("::ffff:10.0.0.7".parse().unwrap());
        // bob:secret
        prove_header(&mut principals, "Basic Ym9iOnNlY3JldA==", &SuperDigest::new(""), None).unwrap();
        principals
    }

    fn forced_release() -> AuditRecord {
        let lock = LockName::parse("orders/42").unwrap();
        let event = AuditEvent::ForcedRelease { lock: Some(lock), path: None, token: FencingToken(7) };
        let requester = Requester {
            session: Some(SessionId(5)),
            request_id: Some(RequestId(0x0102_0304)),
            ..Requester::known_in(&bob(), &State::new())
        };
        AuditRecord { event, requester, outcome: AuditOutcome::Done(Some(Zxid(9))) }
    }

    #[tokio::test]
    async fn a_record_is_one_object_a_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let (_, audit) = audit(&path);
        audit.record(&forced_release());
        let change = AccessChange::Grant { principal: "billing".into(), role: "locks\nadmin".into() };
        audit.record(&AuditRecord {
            event: AuditEvent::AccessChanged { change, token_id: None },
            requester: Requester::default(),
            outcome: AuditOutcome::of::<()>(&Err(Failure::bad_request("no such role"))),
        });
        let lines = lines(&audit, &path).await;
        assert_eq!(
            lines,
            [
                serde_json::json!({
                    "time": "2018-02-14T00:28:07.133Z", "node": 3, "event": "forced_release", "lock": "orders/42",
                    "token": 7, "principals": ["digest:bob"], "address": "10.0.0.7", "session": 5,
                    "request_id": "00000000-0000-0000-0000-000001020304", "outcome": "done", "zxid": 9,
                }),
                serde_json::json!({
                    "time": "2018-02-14T00:28:07.133Z", "node": 3, "event": "access_changed",
                    "change": { "grant": { "principal": "billing", "role": "locks\nadmin" } }, "principals": [],
                    "address": null, "session": null, "request_id": null, "outcome": "not_done",
                    "error": "no such role",
                }),
            ]
        );
    }

    #[test]
    fn no_secret_is_in_a_record() {
        let record = forced_release();
        let json = serde_json::to_string(&AuditLine::new(rfc3339(0), 1, &record)).unwrap();
        let digest = digest_of("bob:secret");
        let hash = digest.split_once(':').unwrap().1;
        for text in [format!("{record:?}"), json, record.requester.to_string()] {
            assert!(text.contains("digest:bob"), "{text}");
            for secret in ["secret", hash, "Ym9iOnNlY3JldA=="] {
                assert!(!text.contains(secret), "{secret} is in {text}");
            }
        }
    }

    #[tokio::test]
    async fn failed_authentication_is_recorded_so_many_times_a_second_and_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let (clock, audit) = audit(&path);
        let fail = |method| audit.authentication_failed(Requester::at("10.0.0.7".parse().unwrap()), method);
        for _ in 0..FAILURES_RECORDED + 32 {
            fail(AuthenticationMethod::SessionSecret);
        }
        fail(AuthenticationMethod::ZookeeperAuth);
        *clock.0.lock() += WINDOW;
        fail(AuthenticationMethod::SessionSecret);
        fail(AuthenticationMethod::SessionSecret);
        let lines = lines(&audit, &path).await;
        let left_out: Vec<u64> = lines.iter().map(|line| line["left_out"].as_u64().unwrap()).collect();
        let mut expected = vec![0; FAILURES_RECORDED as usize];
        expected.extend([0, 32, 0]);
        assert_eq!(left_out, expected);
        assert_eq!(lines[FAILURES_RECORDED as usize]["method"], "zookeeper_auth", "another method is not left out");
        assert_eq!(lines.last().unwrap()["address"], "10.0.0.7");
    }

    #[test]
    fn times_are_rfc_3339() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(u64::MAX), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn people_read_who_it_was() {
        let requester = Requester { session: Some(SessionId(5)), ..Requester::known_in(&bob(), &State::new()) };
        assert_eq!(requester.to_string(), "digest:bob, session 5 from 10.0.0.7");
        assert_eq!(Requester::default().to_string(), "somebody without a session");
    }
}
