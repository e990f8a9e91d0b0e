//! The counter behind the lock: a resource that checks tokens, on loopback, with the log of all that it was asked. Its
//! own order of things, on its own clock, is what contenders are judged by.
//!
//! A line each way. `hello KIND NUMBER` → `ok`; `ask` → `go` once all are here and after a random while, which mixes
//! the queue, or `stop` when there are enough increments; `read TOKEN` → the value; `write TOKEN VALUE` → `ok`, or
//! `refused` where a larger token wrote before; `lost TOKEN WHY`, `failed WHY` and `suspended TIMES` → `ok`.
//!
//! What it must never do is help the lock: reading under a token fences nobody off, so that two holders at once *can*
//! lose an update.

use std::fmt;
use std::net::SocketAddr;

use rand::SeedableRng as _;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::proofs::prelude::*;

/// No line is longer.
const LINE_BYTES: u64 = 1_024;
/// How long a contender may be kept from asking again.
const LONGEST_AWAY_MS: u64 = 100;

named! {
    /// Which library a contender uses.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(super) enum ContenderKind {
        Kazoo = "kazoo",
        Curator = "curator",
        Native = "native",
    }
}

impl fmt::Display for ContenderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Who {
    pub(super) kind: ContenderKind,
    pub(super) number: u32,
}

impl Who {
    /// Whose random numbers.
    fn stream(self) -> u64 {
        (self.kind as u64 + 1) << 32 | u64::from(self.number)
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.number)
    }
}

/// What it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ContenderAct {
    /// The contender is about to ask for the lock.
    Asks,
    /// It holds, under this token, and has read the value.
    Reads { token: u64 },
    /// It writes; what stood here, and whether it was let.
    Writes { token: u64, before: u64, value: u64, taken: bool },
    /// Its library told it that the lock is lost, and it does not write.
    Lost { token: u64, why: String },
    /// A call of its library failed.
    Failed { why: String },
    /// Since it asked last its library said so many times that the connection is gone, and went on.
    Suspended { times: u64 },
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CounterEntry {
    pub(super) at_us: u64,
    pub(super) who: Who,
    pub(super) what: ContenderAct,
}

#[derive(Debug, Default)]
struct CounterState {
    value: u64,
    /// The largest token that wrote.
    largest: u64,
    taken: u64,
    here: BTreeSet<Who>,
    log: Vec<CounterEntry>,
}

#[derive(Debug)]
struct SharedCounter {
    goal: u64,
    seed: u64,
    state: Mutex<CounterState>,
    open: watch::Sender<bool>,
}

/// The counter, until it is dropped.
#[derive(Debug)]
pub(super) struct Counter {
    address: SocketAddr,
    shared: Arc<SharedCounter>,
    task: JoinHandle<()>,
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Counter {
    /// Begins at 0; when `goal` increments were taken, it tells those who ask to stop. How long each stays away is
    /// drawn from the seed.
    pub(super) async fn start(goal: u64, seed: u64) -> Result<Self, Failed> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(SharedCounter { goal, seed, state: Mutex::default(), open: watch::Sender::new(false) });
        let task = tokio::spawn(serve(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, task })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many contenders have come.
    pub(super) fn here(&self) -> usize {
        self.shared.state.lock().here.len()
    }

    /// Lets them begin.
    pub(super) fn open(&self) {
        self.shared.open.send_replace(true);
    }

    /// How many increments were taken.
    pub(super) fn taken(&self) -> u64 {
        self.shared.state.lock().taken
    }

    /// The log, and the value at its end.
    pub(super) fn log(&self) -> (Vec<CounterEntry>, u64) {
        let state = self.shared.state.lock();
        (state.log.clone(), state.value)
    }
}

async fn serve(listener: TcpListener, shared: Arc<SharedCounter>) {
    let mut callers = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        // One that breaks off has ended or died, which its process tells.
        callers.spawn(attend(stream, Arc::clone(&shared)));
    }
}

async fn attend(stream: TcpStream, shared: Arc<SharedCounter>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let mut open = shared.open.subscribe();
    let mut who: Option<Who> = None;
    let mut random: Option<StdRng> = None;
    while let Some(line) = line(&mut reader).await? {
        if line == "ask" {
            if open.wait_for(|open| *open).await.is_err() {
                break;
            }
            let random = random.get_or_insert_with(|| StdRng::seed_from_u64(shared.seed ^ who.map_or(0, Who::stream)));
            tokio::time::sleep(Duration::from_millis(random.random_range(0..=LONGEST_AWAY_MS))).await;
        }
        let Some(answer) = answer(&shared, &mut who, &line) else {
            return Err(std::io::Error::other(format!("not understood: {line}")));
        };
        writer.write_all(format!("{answer}\n").as_bytes()).await?;
    }
    Ok(())
}

/// The next line; none at the end, or where it is too long.
async fn line(reader: &mut BufReader<OwnedReadHalf>) -> std::io::Result<Option<String>> {
    let mut line = String::new();
    reader.take(LINE_BYTES).read_line(&mut line).await?;
    Ok(line.strip_suffix('\n').map(str::to_owned))
}

fn answer(shared: &SharedCounter, who: &mut Option<Who>, line: &str) -> Option<String> {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    let mut state = shared.state.lock();
    let Some(who) = *who else {
        let (kind, number) = rest.split_once(' ')?;
        let kind = ContenderKind::ALL.into_iter().find(|known| word == "hello" && known.name() == kind)?;
        let caller = Who { kind, number: number.parse().ok()? };
        *who = state.here.insert(caller).then_some(caller);
        return who.map(|_| "ok".to_owned());
    };
    let (what, answer) = match word {
        "ask" if state.taken >= shared.goal => return Some("stop".into()),
        "ask" => (ContenderAct::Asks, "go".to_owned()),
        "read" => (ContenderAct::Reads { token: rest.parse().ok()? }, state.value.to_string()),
        "write" => {
            let (token, value) = rest.split_once(' ')?;
            let (token, value, before) = (token.parse().ok()?, value.parse().ok()?, state.value);
            let taken = token >= state.largest;
            if taken {
                (state.largest, state.value, state.taken) = (token, value, state.taken + 1);
            }
            (ContenderAct::Writes { token, before, value, taken }, if taken { "ok" } else { "refused" }.to_owned())
        }
        "lost" => {
            let (token, why) = rest.split_once(' ')?;
            (ContenderAct::Lost { token: token.parse().ok()?, why: why.to_owned() }, "ok".to_owned())
        }
        "failed" => (ContenderAct::Failed { why: rest.to_owned() }, "ok".to_owned()),
        "suspended" => (ContenderAct::Suspended { times: rest.parse().ok()? }, "ok".to_owned()),
        _ => return None,
    };
    // Stamped under the lock: the log is in the order of its stamps.
    state.log.push(CounterEntry { at_us: boot_us(), who, what });
    Some(answer)
}

/// A contender's connection to it.
#[derive(Debug)]
pub(super) struct Caller {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

impl Caller {
    /// Connects, and says who calls.
    pub(super) async fn greet(counter: SocketAddr, who: Who) -> std::io::Result<Self> {
        let stream = TcpStream::connect(counter).await?;
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        let mut caller = Self { reader: BufReader::new(reader), writer };
        caller.say(&format!("hello {} {}", who.kind, who.number)).await?;
        Ok(caller)
    }

    /// Says a line, gives the answer.
    pub(super) async fn say(&mut self, words: &str) -> std::io::Result<String> {
        self.writer.write_all(format!("{words}\n").as_bytes()).await?;
        line(&mut self.reader).await?.ok_or_else(|| std::io::Error::other("the counter is gone"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_takes_what_is_newer_and_keeps_the_log() {
        let counter = Counter::start(2, 7).await.unwrap();
        let who = |number| Who { kind: ContenderKind::Native, number };
        let mut one = Caller::greet(counter.address(), who(1)).await.unwrap();
        let mut other = Caller::greet(counter.address(), who(2)).await.unwrap();
        assert!(Caller::greet(counter.address(), who(2)).await.is_err(), "twice the same");
        assert_eq!(counter.here(), 2);
        let asked = tokio::spawn(async move { (one.say("ask").await.unwrap(), one) });
        counter.open();
        let (go, mut one) = asked.await.unwrap();
        assert_eq!(go, "go");
        assert_eq!(one.say("read 7").await.unwrap(), "0");
        assert_eq!(other.say("read 8").await.unwrap(), "0", "reading fences nobody off");
        assert_eq!(one.say("write 7 1").await.unwrap(), "ok");
        assert_eq!(other.say("write 8 1").await.unwrap(), "ok", "and so an update is lost");
        assert_eq!(one.say("write 7 2").await.unwrap(), "refused");
        assert_eq!(one.say("lost 7 no reason given").await.unwrap(), "ok");
        assert_eq!(one.say("suspended 2").await.unwrap(), "ok");
        assert_eq!(other.say("ask").await.unwrap(), "stop");
        assert!(other.say("read me").await.is_err());
        assert!(one.say(&"x".repeat(2_000)).await.is_err());
        let (log, value) = counter.log();
        assert_eq!((log.len(), value, counter.taken()), (8, 1, 2));
        assert_eq!(log[4].what, ContenderAct::Writes { token: 8, before: 1, value: 1, taken: true });
        assert_eq!(
            (log[5].who, &log[5].what),
            (who(1), &ContenderAct::Writes { token: 7, before: 1, value: 2, taken: false })
        );
        assert!(log.is_sorted_by_key(|entry| entry.at_us));
    }
}
