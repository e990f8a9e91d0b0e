//! Executes the script on one system and records the results.
//!
//! After each step every connection sends a sync. Events before its reply belong to the step, because a watch event
//! always comes before any later reply. So nothing here waits for a time, and no event is missed or late.

mod greeting;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use lockkeeper_zookeeper::{OpCode, ReplyHeader, Request, WatcherEvent, request::PathWatch};

use crate::connection::{Connection, FreedBy, Heard};
use crate::error::CompareError;
use crate::names::Names;
use crate::script::{Act, Ask, Marks, Script, Step, written};
use crate::show;

/// Time limit for a node that the server deletes by itself.
const GONE_WITHIN: Duration = Duration::from_secs(60);
/// Interval of the checks for this.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Silence of ZooKeeper that counts as a stall, and not as a slow machine.
const STALL: Duration = Duration::from_secs(5);

/// The system that executes the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    /// Its stalls are ended: see [`FreedBy`].
    ZooKeeper,
    /// A stall is a failure.
    Lockkeeper,
}

impl System {
    /// As files are named.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ZooKeeper => "zookeeper",
            Self::Lockkeeper => "lockkeeper",
        }
    }
}

/// Transcript of one system.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Results of each step.
    pub(crate) outcomes: Vec<Outcome>,
    /// Number of requests of each operation.
    pub(crate) asked: BTreeMap<String, usize>,
    /// The names of all zxids, oldest first.
    pub(crate) zxids_in_order: Vec<String>,
}

/// Results of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Replies in order, and other results.
    pub(crate) lines: Vec<String>,
    /// The zxids of its events, in the order of their lines; −1 for none.
    pub(crate) event_zxids: Vec<i64>,
    /// The zxids in the replies to its changes.
    pub(crate) change_zxids: Vec<i64>,
    pub(crate) took: Duration,
}

impl Account {
    /// The transcript as text.
    pub(crate) fn text(&self, script: &Script) -> String {
        let mut text = String::new();
        let mut part = "";
        for (step, outcome) in script.steps.iter().zip(&self.outcomes) {
            if step.part != part {
                part = step.part;
                text.push_str(&format!("\n## {part}\n"));
            }
            text.push_str(&format!("{:4} {:5} ms  {}\n", step.number, outcome.took.as_millis(), step.text));
            for line in &outcome.lines {
                text.push_str(&format!("         {line}\n"));
            }
        }
        text
    }
}

/// Executes the script on the servers at these addresses. The transcript up to a failure is returned as well.
pub(crate) fn run(
    script: &Script,
    system: System,
    servers: &[SocketAddr],
    account: &mut Account,
) -> Result<(), CompareError> {
    let mut run = Run { servers, frees_stalls: system == System::ZooKeeper, ..Run::default() };
    for step in &script.steps {
        run.names.begin(step.number);
        let outcome = run.step(step).map_err(|trouble| match trouble {
            StepFailure::Step(why) => CompareError::Step { step: step.number, why },
            StepFailure::CompareError(trouble) => CompareError::Step { step: step.number, why: trouble.to_string() },
        })?;
        account.outcomes.push(outcome);
    }
    account.asked = run.asked;
    account.zxids_in_order = run.names.in_order();
    Ok(())
}

#[derive(Debug)]
enum StepFailure {
    Step(String),
    CompareError(CompareError),
}

impl From<String> for StepFailure {
    fn from(why: String) -> Self {
        Self::Step(why)
    }
}

impl From<CompareError> for StepFailure {
    fn from(trouble: CompareError) -> Self {
        Self::CompareError(trouble)
    }
}

#[derive(Debug, Default)]
struct Run<'a> {
    servers: &'a [SocketAddr],
    frees_stalls: bool,
    connections: BTreeMap<String, Line>,
    /// Id and password of each session, by the connection that opened it.
    credentials: BTreeMap<String, (i64, Bytes)>,
    names: Names,
    marks: Marks,
    asked: BTreeMap<String, usize>,
}

#[derive(Debug)]
struct Line {
    connection: Connection,
    /// Events received and not recorded yet.
    events: VecDeque<(i64, String)>,
    end_told: bool,
}

impl Run<'_> {
    fn step(&mut self, step: &Step) -> Result<Outcome, StepFailure> {
        let (began, mut outcome) = (Instant::now(), Outcome::default());
        match &step.act {
            Act::Connect(settings) => {
                let line = self.connect(&step.on, settings)?;
                outcome.lines.push(line);
            }
            Act::Ask(asks) => self.ask(&step.on, asks, &mut outcome)?,
            Act::Bytes(tokens) => {
                let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
                let bytes = written(&tokens)?;
                let line = self.line(&step.on)?;
                line.connection.send(&bytes);
                outcome.lines.push(until_end(&mut line.connection, &mut line.events));
            }
            Act::Word(word) => {
                let mut connection = self.open(0)?;
                connection.send(word.as_bytes());
                outcome.lines.push(format!("{:?}", connection.hear_out()));
            }
            Act::Drop => drop(self.connections.remove(&step.on)),
            Act::AwaitGone(path) => {
                let line = self.await_gone(&step.on, path)?;
                outcome.lines.push(line);
            }
            Act::Mark(mark) => {
                let zxid = self.line(&step.on)?.connection.last_zxid;
                self.marks.set(mark, zxid);
            }
        }
        for ended in &step.ends {
            let line = self.line(ended)?;
            until_end(&mut line.connection, &mut line.events);
        }
        self.flush(&step.quiet);
        self.write_events(step, &mut outcome);
        outcome.took = began.elapsed();
        Ok(outcome)
    }

    fn open(&self, at: usize) -> Result<Connection, CompareError> {
        let server = |at: usize| self.servers[at % self.servers.len()];
        let freed_by = self.frees_stalls.then(|| FreedBy { server: server(at + 1), after: STALL });
        Connection::open(server(at), freed_by)
    }

    fn line(&mut self, name: &str) -> Result<&mut Line, StepFailure> {
        self.connections.get_mut(name).ok_or_else(|| StepFailure::Step(format!("there is no connection `{name}`")))
    }

    /// Sends requests in one piece and reads as many replies.
    fn ask(&mut self, on: &str, asks: &[String], outcome: &mut Outcome) -> Result<(), StepFailure> {
        let asks: Vec<Ask> = asks.iter().map(|ask| Ask::parse(ask, &self.marks)).collect::<Result<_, _>>()?;
        for ask in &asks {
            let name = OpCode::from_number(ask.opcode).map_or("unknown", |operation| operation.row().name);
            *self.asked.entry(name.to_owned()).or_default() += 1;
        }
        let Self { connections, names, .. } = self;
        let line = connections.get_mut(on).ok_or_else(|| format!("there is no connection `{on}`"))?;
        let mut bytes = BytesMut::new();
        let mut expected = Vec::new();
        for ask in asks {
            let xid = ask.reserved_xid.unwrap_or_else(|| line.connection.next_xid());
            ask.encode(xid, &mut bytes);
            expected.push((xid, ask.opcode));
        }
        line.connection.send(&bytes);
        for (xid, opcode) in expected {
            let operation = OpCode::from_number(opcode);
            let answer = loop {
                match line.connection.hear() {
                    Heard::Frame(frame) => {
                        let Ok((header, body)) = ReplyHeader::split(frame) else {
                            break "a frame without a header".into();
                        };
                        if header.is_notification() {
                            let (zxid, event) = noticed(header, body);
                            outcome.lines.push(format!("first: {event}"));
                            outcome.event_zxids.push(zxid);
                            continue;
                        }
                        if header.error == 0 && operation.is_some_and(|operation| operation.row().rules.transaction) {
                            outcome.change_zxids.push(header.zxid);
                        }
                        let shown = show::answer(names, operation, header, body);
                        break shown + &strange(&mut line.connection, xid, header);
                    }
                    Heard::End => break "no answer: the server has closed the connection".into(),
                    Heard::Silence => break "no answer".into(),
                }
            };
            outcome.lines.push(answer);
            if line.connection.has_ended() {
                line.end_told = true;
                break;
            }
            if operation == Some(OpCode::CloseSession) {
                let how = until_end(&mut line.connection, &mut line.events);
                outcome.lines.push(how);
                line.end_told = true;
                break;
            }
        }
        Ok(())
    }

    /// Polls until a node is deleted, and keeps the other connections alive.
    fn await_gone(&mut self, on: &str, path: &str) -> Result<String, StepFailure> {
        *self.asked.entry(OpCode::Exists.row().name.to_owned()).or_default() += 1;
        let until = Instant::now() + GONE_WITHIN;
        while Instant::now() < until {
            let line = self.line(on)?;
            let mut bytes = BytesMut::new();
            let request = Request::Exists(PathWatch { path: path.to_owned(), watch: false });
            request.encode(line.connection.next_xid(), &mut bytes);
            line.connection.send(&bytes);
            match answered(line, |_| true) {
                Some(header) if header.error != 0 => return Ok("gone".into()),
                Some(_) => {}
                None => return Ok("no answer".into()),
            }
            self.flush(&[]);
            std::thread::sleep(LOOK_EVERY);
        }
        Ok("it stays".into())
    }

    /// Receives all events of the step. Syncs, because a server may apply a change later than another one; a ping may
    /// wait for other sessions' pings.
    fn flush(&mut self, quiet: &[String]) {
        let loud = |name: &str, line: &Line| !line.connection.has_ended() && !quiet.iter().any(|quiet| quiet == name);
        for (_, line) in self.connections.iter_mut().filter(|(name, line)| loud(name, line)) {
            let mut bytes = BytesMut::new();
            let (request, xid) = (Request::Sync("/".into()), line.connection.next_xid());
            request.encode(xid, &mut bytes);
            line.connection.send(&bytes);
            // A silent server is recorded once, like a closed connection, and not waited for again.
            if answered(line, |header| header.xid == xid).is_none() {
                line.connection.give_up();
            }
        }
    }

    fn write_events(&mut self, step: &Step, outcome: &mut Outcome) {
        for (name, line) in &mut self.connections {
            let mut events: Vec<_> = line.events.drain(..).collect();
            if step.unordered {
                events.sort_by(|one, other| one.1.cmp(&other.1));
            }
            for (zxid, event) in events {
                outcome.lines.push(format!("{name} hears: {event}"));
                outcome.event_zxids.push(zxid);
            }
            if line.connection.has_ended() && !line.end_told {
                line.end_told = true;
                let how =
                    if line.connection.was_silent() { "does not answer any more" } else { "is closed by the server" };
                outcome.lines.push(format!("{name} {how}"));
            }
        }
    }
}

/// Errors of a reply's header.
fn strange(connection: &mut Connection, xid: i32, header: ReplyHeader) -> String {
    let mut text = String::new();
    if header.xid != xid {
        text.push_str(&format!(", but to xid {} and not {xid}", header.xid));
    }
    // ZooKeeper sends no zxid in replies to auth and to unknown operations.
    if header.zxid > 0 {
        if header.zxid < connection.last_zxid {
            text.push_str(", but its zxid goes back");
        }
        connection.last_zxid = connection.last_zxid.max(header.zxid);
    }
    text
}

fn noticed(header: ReplyHeader, body: Bytes) -> (i64, String) {
    let event = WatcherEvent::decode(body);
    (
        header.zxid,
        event.map_or_else(|error| format!("an event that cannot be read: {error}"), |event| show::event(&event)),
    )
}

/// The header of the next reply. Keeps events before it.
fn answered(line: &mut Line, wanted: impl Fn(&ReplyHeader) -> bool) -> Option<ReplyHeader> {
    loop {
        let Heard::Frame(frame) = line.connection.hear() else { return None };
        let (header, body) = ReplyHeader::split(frame).ok()?;
        if header.is_notification() {
            line.events.push_back(noticed(header, body));
        } else if wanted(&header) {
            line.connection.last_zxid = line.connection.last_zxid.max(header.zxid);
            return Some(header);
        }
    }
}

/// Reads until the server closes the connection, and records unexpected replies.
fn until_end(connection: &mut Connection, events: &mut VecDeque<(i64, String)>) -> String {
    let mut told = String::new();
    loop {
        match connection.hear() {
            Heard::Frame(frame) => match ReplyHeader::split(frame) {
                Ok((header, body)) if header.is_notification() => events.push_back(noticed(header, body)),
                Ok((header, body)) => {
                    let answer = show::answer(&mut Names::default(), None, header, body);
                    told.push_str(&format!("xid {}: {answer}; ", header.xid));
                }
                Err(_) => told.push_str("a frame without a header; "),
            },
            Heard::End => return told + "the server closes the connection",
            Heard::Silence => return told + "the server keeps the connection",
        }
    }
}
