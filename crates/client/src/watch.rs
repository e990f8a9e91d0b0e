//! Watches a path: over the session's stream where there is one, otherwise by server-sent events. After a break the
//! watch resumes at its last zxid, at any node and either way.
//!
//! A watch never skips a change silently: it reports every change after its starting point, or it ends in an error
//! with the code `compacted`, and the caller reads again and watches from there. It also ends when its caller loses the
//! right to it, and when TLS fails at every endpoint, however patient it is: see `tls.rs`.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use futures::{Stream, StreamExt};
use lockkeeper_api::call::Query;
use lockkeeper_api::watch::{Bookmark, Change};
use lockkeeper_api::{Code, Problem, ZXID_HEADER};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};

use crate::client::Client;
use crate::error::{Error, Tried};
use crate::sse::{SseEvent, SseParser};
use crate::stream::{WatchMessage, WatchSubscription};
use crate::tls;
use crate::transport::{BodyPieces, root_cause, without_problem};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Options of a watch.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// The path of the node.
    pub path: String,
    /// Whether to watch everything below the node too.
    pub recursive: bool,
    /// Report changes after this zxid; by default from now on.
    pub from: Option<u64>,
    /// A connection that has been silent for this long, without even a keep-alive comment, is replaced by another.
    pub silence: Duration,
    /// How long to keep looking for an endpoint that serves; by default for ever.
    pub patience: Option<Duration>,
}

impl WatchOptions {
    /// Options to watch that node from now on.
    pub fn new(path: impl Into<String>) -> Self {
        Self { path: path.into(), recursive: false, from: None, silence: Duration::from_secs(40), patience: None }
    }
}

/// An item of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchItem {
    /// A change.
    Change(Change),
    /// There is no further change up to this zxid.
    Bookmark(u64),
}

struct SseConnection {
    pieces: BodyPieces,
    parser: SseParser,
    index: usize,
}

/// A watch. It connects when it is first polled.
pub struct Watch {
    client: Client,
    options: WatchOptions,
    connection: Option<SseConnection>,
    ready: VecDeque<SseEvent>,
    subscription: Option<WatchSubscription>,
    /// Changes of one transaction that came over the stream; the last of them completes it.
    transaction: VecDeque<Change>,
    /// The zxid of an incomplete transaction, and how many of its changes were reported. After a break they come again.
    given: (u64, usize),
    /// How many of these are still to be skipped on this connection.
    repeated: usize,
    /// When endpoints stopped serving.
    broken_since: Option<Instant>,
    /// The indices of the endpoints that have failed in TLS, since another failure or a success.
    without_tls: BTreeSet<usize>,
    tried: Vec<Tried>,
    pause: Duration,
    ended: bool,
}

impl Client {
    /// Watches a path.
    pub fn watch(&self, options: WatchOptions) -> Watch {
        Watch {
            client: self.clone(),
            options,
            connection: None,
            ready: VecDeque::new(),
            subscription: None,
            transaction: VecDeque::new(),
            given: (0, 0),
            repeated: 0,
            broken_since: None,
            without_tls: BTreeSet::new(),
            tried: Vec::new(),
            pause: FIRST_PAUSE,
            ended: false,
        }
    }
}

/// The result of one step of a watch.
enum Step {
    Item(WatchItem),
    End(Error),
    Again,
}

impl Watch {
    /// The next item; `None` after an error. The future may be dropped without losing an item.
    pub async fn next(&mut self) -> Option<Result<WatchItem, Error>> {
        while !self.ended {
            if let Some(change) = self.transaction.pop_front() {
                if self.is_news(change.zxid, self.transaction.is_empty()) {
                    return Some(Ok(WatchItem::Change(change)));
                }
                continue;
            }
            let step = match self.ready.pop_front() {
                Some(event) => self.understand(&event),
                None if self.subscription.is_some() => self.receive_from_stream().await,
                None if self.connection.is_some() => self.receive_sse().await,
                None => self.connect().await,
            };
            match step {
                Step::Item(item) => return Some(Ok(item)),
                Step::End(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
                Step::Again => {}
            }
        }
        None
    }

    /// The watch as a [`Stream`].
    pub fn into_stream(self) -> impl Stream<Item = Result<WatchItem, Error>> + Send {
        futures::stream::unfold(self, |mut watch| async move {
            let item = watch.next().await?;
            Some((item, watch))
        })
    }

    /// From now on looks for an endpoint that serves without a time limit.
    pub fn be_patient(&mut self) {
        self.options.patience = None;
    }

    /// The zxid from which the watch would resume.
    pub fn position(&self) -> Option<u64> {
        self.options.from
    }

    fn understand(&mut self, event: &SseEvent) -> Step {
        let understood = match event.name.as_str() {
            "change" => parse::<Change>(event).map(|change| (change.zxid, WatchItem::Change(change))),
            "bookmark" => parse::<Bookmark>(event).map(|mark| (mark.zxid, WatchItem::Bookmark(mark.zxid))),
            "compacted" | "ended" => {
                return match parse::<Problem>(event) {
                    Ok(problem) => Step::End(Error::Refused(Box::new(problem))),
                    Err(why) => Step::End(self.not_lockkeeper(why)),
                };
            }
            // A later version may send further events.
            _ => return Step::Again,
        };
        match understood {
            Ok((zxid, item)) => {
                self.broken_since = None;
                self.pause = FIRST_PAUSE;
                let complete = event.id == zxid.to_string();
                if self.is_news(zxid, complete) { Step::Item(item) } else { Step::Again }
            }
            Err(why) => Step::End(self.not_lockkeeper(why)),
        }
    }

    /// Advances the zxid to resume from when a transaction is complete. Returns whether the change was not reported
    /// before the last break.
    fn is_news(&mut self, zxid: u64, complete: bool) -> bool {
        let repeated = self.given.0 == zxid && self.repeated > 0;
        if complete {
            self.options.from = Some(zxid);
            (self.given, self.repeated) = ((0, 0), 0);
        } else if repeated {
            self.repeated -= 1;
        } else {
            let before = if self.given.0 == zxid { self.given.1 } else { 0 };
            (self.given, self.repeated) = ((zxid, before + 1), 0);
        }
        !repeated
    }

    fn not_lockkeeper(&self, why: String) -> Error {
        Error::NotLockkeeper { endpoint: self.client.preferred().to_string(), why }
    }

    async fn receive_sse(&mut self) -> Step {
        let Some(connection) = &mut self.connection else { return Step::Again };
        let why = match timeout(self.options.silence, connection.pieces.next()).await {
            Ok(Some(Ok(piece))) => match connection.parser.feed(&piece) {
                Ok(events) => {
                    self.ready.extend(events);
                    return Step::Again;
                }
                Err(why) => return Step::End(self.not_lockkeeper(why.to_string())),
            },
            Ok(Some(Err(error))) => root_cause(&error),
            Ok(None) => "the node ended the stream".into(),
            Err(_) => format!("silent for {} s", self.options.silence.as_secs()),
        };
        let index = connection.index;
        self.connection = None;
        self.failed(index, why).await
    }

    /// Receives from the stream, which reconnects by itself.
    async fn receive_from_stream(&mut self) -> Step {
        let Some(subscription) = &mut self.subscription else { return Step::Again };
        let stream = subscription.stream().clone();
        let message = match self.options.patience {
            None => subscription.next().await,
            Some(patience) => tokio::select! {
                message = subscription.next() => message,
                () = stream.down_for(patience) => return Step::End(Error::Unreachable { tried: stream.tried() }),
            },
        };
        match message {
            Some(WatchMessage::Begun(zxid)) => {
                self.options.from.get_or_insert(zxid);
                Step::Again
            }
            Some(WatchMessage::Changes(zxid, changes)) => {
                self.pause = FIRST_PAUSE;
                let whole = changes.into_iter().map(|change| Change { zxid, kind: change.kind, path: change.path });
                self.transaction.extend(whole);
                Step::Again
            }
            Some(WatchMessage::Bookmark(zxid)) => {
                self.pause = FIRST_PAUSE;
                if self.is_news(zxid, true) { Step::Item(WatchItem::Bookmark(zxid)) } else { Step::Again }
            }
            Some(WatchMessage::Ended(problem)) => {
                self.subscription = None;
                let again = problem.code.is_transient()
                    || matches!(problem.code, Code::UnknownOutcome | Code::SessionExpired | Code::Cancelled);
                match again {
                    true => self.pause().await,
                    false => Step::End(Error::Refused(problem)),
                }
            }
            // The stream is over, or this reader fell behind: watch again from here.
            None => {
                self.subscription = None;
                Step::Again
            }
        }
    }

    async fn pause(&mut self) -> Step {
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Step::Again
    }

    async fn connect(&mut self) -> Step {
        if let Some(stream) = &self.client.stream
            && let Some(subscription) = stream.watch(&self.options.path, self.options.recursive, self.options.from)
        {
            self.repeated = self.given.1;
            self.subscription = Some(subscription);
            return Step::Again;
        }
        let context = &self.client.context;
        let since = *self.broken_since.get_or_insert_with(Instant::now);
        let patience = self.options.patience.unwrap_or(context.options.patience).saturating_sub(since.elapsed());
        if let Err(error) = context.compare_endpoints(patience).await {
            return Step::End(error);
        }
        let index = context.endpoints.preferred();
        let endpoint = self.client.context.endpoints.at(index).clone();
        let mut query = Query::default();
        query.add("path", Some(&self.options.path)).add("recursive", self.options.recursive.then_some("true"));
        let target = format!("/v1/watch{}", query.add("from", self.options.from));
        let request = context.to_one_cluster(context.http.get(format!("{endpoint}{target}")));
        let request = request.header("accept", "text/event-stream").send();
        let response = match timeout(self.client.context.options.attempt_timeout, request).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                return match tls::failure(&error) {
                    Some(why) => self.failed_in_tls(index, why).await,
                    None => self.failed(index, root_cause(&error)).await,
                };
            }
            Err(_) => return self.failed(index, "no answer in time".into()).await,
        };
        if response.status().is_success() {
            // The zxid at which the stream begins, so that a break before the first event leaves no gap.
            let begins = response.headers().get(ZXID_HEADER).and_then(|v| v.to_str().ok()?.parse().ok());
            self.options.from = self.options.from.or(begins);
            self.tried.clear();
            self.without_tls.clear();
            self.broken_since = None;
            self.repeated = self.given.1;
            self.connection =
                Some(SseConnection { pieces: Box::pin(response.bytes_stream()), parser: SseParser::new(), index });
            return Step::Again;
        }
        let status = response.status();
        let body = response.bytes().await.unwrap_or_default();
        match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) if problem.code.is_transient() || problem.code == Code::UnknownOutcome => {
                self.failed(index, problem.to_string()).await
            }
            Ok(problem) => {
                self.client.context.leave_other_cluster(index, problem.code);
                Step::End(Error::Refused(Box::new(problem)))
            }
            Err(_) => Step::End(self.not_lockkeeper(without_problem(status, &body))),
        }
    }

    async fn failed_in_tls(&mut self, index: usize, why: String) -> Step {
        self.without_tls.insert(index);
        if self.without_tls.len() < self.client.context.endpoints.all().len() {
            return self.move_on(index, why).await;
        }
        self.note_tried(index, why);
        Step::End(Error::Tls { tried: std::mem::take(&mut self.tried) })
    }

    async fn failed(&mut self, index: usize, why: String) -> Step {
        self.without_tls.clear();
        self.move_on(index, why).await
    }

    fn note_tried(&mut self, index: usize, why: String) {
        let endpoint = self.client.context.endpoints.at(index).to_string();
        self.tried.retain(|tried| tried.endpoint != endpoint);
        self.tried.push(Tried { endpoint, why, code: None });
    }

    async fn move_on(&mut self, index: usize, why: String) -> Step {
        self.note_tried(index, why);
        self.client.context.endpoints.move_on_from(index);
        let since = *self.broken_since.get_or_insert_with(Instant::now);
        if self.options.patience.is_some_and(|patience| since.elapsed() >= patience) {
            return Step::End(Error::Unreachable { tried: std::mem::take(&mut self.tried) });
        }
        self.pause().await
    }
}

fn parse<T: DeserializeOwned>(event: &SseEvent) -> Result<T, String> {
    serde_json::from_str(&event.data).map_err(|e| format!("event '{}': {e}", event.name))
}
