//! Attempts over HTTP: each caller tries each action at each node, and whoever has a wrong certificate, or none, tries
//! some of them at each listener. An attempt is carried out, or refused with one of the words that are right for it.

use std::time::Duration;

use futures::StreamExt as _;
use lockkeeper_api::{Problem, SESSION_HEADER};
use rand::Rng;
use rand::seq::SliceRandom as _;
use reqwest::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use reqwest::{Client, Method, RequestBuilder};
use serde_json::Value;

use super::actions::{Action, NamedSession};
use super::callers::Intruder;
use super::secrets::Secrets;
use super::target::AttackTarget;

const WITHIN: Duration = Duration::from_secs(10);
/// Attempts under way at a time.
const AT_A_TIME: usize = 16;
/// A cluster that cannot decide now is asked again so often.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(100);
/// A connection that broke is tried again so often, where it should have been let in.
const CONNECTIONS: u32 = 3;
/// No answer at all: the connection was turned away.
pub(super) const NO_ANSWER: &str = "no answer";

/// One attempt.
pub(super) struct WrongAttempt {
    pub(super) what: String,
    pub(super) client: Client,
    pub(super) method: Method,
    pub(super) url: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Option<Value>,
    /// The refusals that are right.
    pub(super) refused: Vec<&'static str>,
}

/// What became of attempts.
#[derive(Debug, Default)]
pub(super) struct AttackTally {
    pub(super) attempts: usize,
    /// What was carried out.
    pub(super) carried_out: Vec<String>,
    /// What was refused in another way than expected.
    pub(super) unexpected: Vec<String>,
    /// Secrets in refusals.
    pub(super) told_secrets: usize,
}

impl AttackTally {
    /// Counts an attempt: `Ok` where it was carried out, otherwise the word of its refusal.
    pub(super) fn count(&mut self, what: &str, outcome: Result<(), String>, refused: &[&str]) {
        self.attempts += 1;
        match outcome {
            Ok(()) => self.carried_out.push(what.to_owned()),
            Err(word) if refused.contains(&word.as_str()) => {}
            Err(word) => self.unexpected.push(format!("{what}: {word} instead of {}", refused.join(" or "))),
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.attempts += other.attempts;
        self.carried_out.extend(other.carried_out);
        self.unexpected.extend(other.unexpected);
        self.told_secrets += other.told_secrets;
    }
}

/// The attempts of one caller at one node.
pub(super) fn attempts(
    caller: &Intruder,
    actions: &[Action],
    (node, base): (u64, &str),
    target: &AttackTarget,
    random: &mut impl Rng,
) -> Vec<WrongAttempt> {
    let may = |action: &Action| {
        use lockkeeper_api::access::Resource::{Gates, Locks, Nodes};
        let reads = action.reads && matches!(action.resource, Locks | Nodes | Gates);
        caller.may_read && reads || caller.has_role && action.with_any_role
    };
    let has = |action: &Action| action.session != NamedSession::Own || caller.session.is_some();
    let mut all = Vec::new();
    for action in actions.iter().filter(|action| has(action) && !may(action)) {
        let session = match action.session {
            NamedSession::None => None,
            NamedSession::Own => caller.session.clone(),
            NamedSession::Stolen => Some(target.credential.clone()),
            NamedSession::Guessed => Some(format!("{}.{:032x}", target.session, random.random::<u128>())),
        };
        let mut headers = caller.shows.headers(random);
        if let Some(value) = session.and_then(|credential| HeaderValue::from_str(&credential).ok()) {
            headers.insert(HeaderName::from_static(SESSION_HEADER), value);
        }
        if action.upgrades {
            headers.extend(upgrade());
        }
        all.push(WrongAttempt {
            what: format!("{}, as {}, at node {node}", action.name, caller.name),
            client: caller.client.clone(),
            method: action.method.clone(),
            url: format!("{base}{}", caller.shows.target(&action.target)),
            headers,
            body: action.body.clone(),
            refused: caller.refused.iter().chain(action.also).copied().collect(),
        });
    }
    all
}

/// The headers of a WebSocket's handshake.
fn upgrade() -> HeaderMap {
    HeaderMap::from_iter([
        (CONNECTION, HeaderValue::from_static("Upgrade")),
        (UPGRADE, HeaderValue::from_static("websocket")),
        (HeaderName::from_static("sec-websocket-version"), HeaderValue::from_static("13")),
        (HeaderName::from_static("sec-websocket-key"), HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==")),
    ])
}

/// Makes all attempts, in random order.
pub(super) async fn make(mut attempts: Vec<WrongAttempt>, secrets: &Secrets, random: &mut impl Rng) -> AttackTally {
    attempts.shuffle(random);
    let made = futures::stream::iter(&attempts).map(|attempt| async move { (attempt, attempt.make().await) });
    let mut made = made.buffer_unordered(AT_A_TIME);
    let mut tally = AttackTally::default();
    while let Some((attempt, (outcome, told))) = made.next().await {
        tally.told_secrets += secrets.found_in(&told);
        tally.count(&attempt.what, outcome, &attempt.refused);
    }
    tally
}

impl WrongAttempt {
    fn request(&self) -> RequestBuilder {
        let request = self.client.request(self.method.clone(), &self.url).timeout(WITHIN);
        let request = request.headers(self.headers.clone());
        match &self.body {
            Some(body) => request.json(body),
            None => request,
        }
    }

    /// What became of it, and what the refusal says. Whoever may not connect at all is not tried again.
    async fn make(&self) -> (Result<(), String>, Vec<u8>) {
        let connections = if self.refused.contains(&NO_ANSWER) { 1 } else { CONNECTIONS };
        let (mut broken, mut undecided) = (0, 0);
        loop {
            let response = match self.request().send().await {
                Ok(response) => response,
                Err(_) if broken + 1 < connections => {
                    broken += 1;
                    continue;
                }
                Err(_) => return (Err(NO_ANSWER.into()), Vec::new()),
            };
            let status = response.status().as_u16();
            if status < 400 {
                // A stream of events has no end.
                return (Ok(()), Vec::new());
            }
            let told = response.bytes().await.map(|bytes| bytes.to_vec()).unwrap_or_default();
            let Ok(problem) = serde_json::from_slice::<Problem>(&told) else {
                return (Err(format!("status {status}")), told);
            };
            let open = problem.code.is_transient() || problem.code == lockkeeper_api::Code::UnknownOutcome;
            if open && undecided < TRIES {
                undecided += 1;
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            return (Err(problem.code.to_string()), told);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_tells_what_is_carried_out_from_what_is_refused() {
        let mut tally = AttackTally::default();
        tally.count("a", Ok(()), &["forbidden"]);
        tally.count("b", Err("forbidden".into()), &["unauthenticated", "forbidden"]);
        tally.count("c", Err("lock_busy".into()), &["forbidden"]);
        let mut all = AttackTally::default();
        all.add(tally);
        assert_eq!((all.attempts, all.carried_out.as_slice()), (3, &["a".to_owned()][..]));
        assert_eq!(all.unexpected, ["c: lock_busy instead of forbidden"]);
    }
}
