//! The records of worker processes: JSON lines on their standard output, one [`Record`] each, written in one piece.
//!
//! Stamps are microseconds of `CLOCK_BOOTTIME`, which all processes of a machine share and which nobody sets; where the
//! replicated clock is meant, it is wall time and the name says so. A worker that is killed leaves at most one torn
//! line, its last.

use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;

use nix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Microseconds since the machine started.
pub fn boot_us() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(std::time::Duration::from).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970, as the replicated clock counts.
pub fn wall_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// When it was recorded.
    pub at_us: u64,
    /// Which client of the process.
    pub client: u32,
    /// What happened.
    #[serde(flatten)]
    pub what: WorkerEvent,
}

impl Record {
    /// Until when its session was certain to live, where it tells that.
    pub fn sure_until_ms(&self) -> Option<u64> {
        match self.what {
            WorkerEvent::Sure { until_ms } => Some(until_ms),
            _ => None,
        }
    }
}

/// An event of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum WorkerEvent {
    /// Its session is open.
    Opened {
        /// The session's id.
        session: u64,
    },
    /// Before this moment of the boot clock the cluster does not end the session, as far as its keeper knows.
    Sure {
        /// In milliseconds of the boot clock.
        until_ms: u64,
    },
    /// The client is about to ask for a lock.
    Asking,
    /// The library says that it holds.
    Granted {
        /// What it holds, in order.
        locks: Vec<String>,
        /// Under this token.
        token: u64,
    },
    /// It read the shared value and is about to change it.
    Read {
        /// Under this token.
        token: u64,
        /// What it read.
        value: i64,
    },
    /// It wrote, and what the store said.
    Wrote {
        /// Under this token.
        token: u64,
        /// What it wrote.
        value: i64,
        /// Whether the store took it.
        accepted: bool,
    },
    /// It is about to give it back: from here on it does nothing under the token.
    Letting {
        /// The token.
        token: u64,
    },
    /// It was given back.
    LetGo {
        /// The token.
        token: u64,
    },
    /// The guard says that it is lost, before anything was written.
    Lost {
        /// The token.
        token: u64,
        /// The guard's reason.
        why: String,
    },
    /// The phase of a switch of engines, as its process sees it.
    Phase {
        /// Its name.
        phase: String,
        /// The engine that serves, or is to serve.
        engine: String,
        /// Rises with each phase.
        epoch: u64,
    },
    /// The client gave up waiting.
    GaveUp,
    /// A call failed.
    Failed {
        /// Which call.
        doing: String,
        /// The error.
        why: String,
    },
    /// Local hands that a lock went through under one token while it was shared in the process.
    Streak {
        /// The token.
        token: u64,
        /// How many held it, one after the other.
        holds: u64,
        /// When the first got it.
        first_us: u64,
        /// When the last let go.
        last_us: u64,
    },
    /// The end of a leg of `share`.
    Leg {
        /// Whether the tasks shared.
        shared: bool,
        /// Hand-offs in it.
        handoffs: u64,
        /// How long it was.
        micros: u64,
    },
    /// A gate's answer to `begin`.
    Gate {
        /// The gate.
        key: String,
        /// Its state.
        standing: Standing,
    },
    /// The body of an operation was run.
    Body {
        /// Of this gate.
        key: String,
        /// Under this token.
        token: u64,
    },
    /// The result was stored.
    Finished {
        /// In this gate.
        key: String,
        /// Under this token.
        token: u64,
    },
    /// Mean time of one `begin` with its `finish`.
    Pairs {
        /// How many.
        count: u64,
        /// All of them together.
        micros: u64,
    },
    /// The work is over; sessions stay open until the process is told to end.
    Idle,
    /// The sessions are closed, and nothing more follows.
    End,
}

/// A gate's state as a caller saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Standing {
    /// The caller is to do the work.
    Proceed {
        /// Under this token.
        token: u64,
        /// Pending until then, by the replicated clock.
        until_ms: u64,
    },
    /// Another caller does the work.
    InProgress {
        /// Under this token.
        token: u64,
    },
    /// The work is done.
    Done {
        /// Under this token.
        token: u64,
        /// The stored result.
        result: String,
    },
}

/// Records an event now. A worker whose reader is gone ends.
pub fn tell(client: u32, what: WorkerEvent) {
    tell_at(boot_us(), client, what);
}

/// Records an event with a stamp taken earlier.
pub fn tell_at(at_us: u64, client: u32, what: WorkerEvent) {
    tell_line(&Record { at_us, client, what });
}

/// Writes one line of any form.
pub fn tell_line(of: &impl Serialize) {
    let Ok(mut line) = serde_json::to_vec(of) else { return };
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    if out.write_all(&line).and_then(|()| out.flush()).is_err() {
        std::process::exit(3);
    }
}

/// All whole lines of a history. Only the last line may be torn.
pub fn read<T: DeserializeOwned>(path: &Path) -> std::io::Result<Vec<T>> {
    read_from(path, 0).map(|(records, _)| records)
}

/// The whole lines of a history from a place on, and the place where they end.
pub fn read_from<T: DeserializeOwned>(path: &Path, place: u64) -> std::io::Result<(Vec<T>, u64)> {
    let mut file = std::fs::File::open(path)?;
    file.seek(std::io::SeekFrom::Start(place))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let records = parse(&bytes[..whole]).map_err(|why| std::io::Error::other(format!("{}: {why}", path.display())))?;
    Ok((records, place + whole as u64))
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<Vec<T>, String> {
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_slice(line).map_err(|error| format!("{error}: {}", String::from_utf8_lossy(line))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_and_a_torn_last_one_is_left_out() {
        let record = |what| Record { at_us: 7, client: 3, what };
        let all = [
            record(WorkerEvent::Granted { locks: vec!["a".into()], token: 9 }),
            record(WorkerEvent::Gate { key: "k".into(), standing: Standing::Done { token: 1, result: "r".into() } }),
            record(WorkerEvent::Idle),
        ];
        let mut bytes = Vec::new();
        for record in &all {
            serde_json::to_writer(&mut bytes, record).unwrap();
            bytes.push(b'\n');
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        let read_back = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            read::<Record>(&path)
        };
        assert_eq!(read_back(&bytes).unwrap(), all);
        assert_eq!(read_back(&bytes[..bytes.len() - 4]).unwrap(), all[..2]);
        let (_, place) = read_from::<Record>(&path, 0).unwrap();
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(read_from(&path, place).unwrap(), (all[2..].to_vec(), bytes.len() as u64));
        assert_eq!(read_back(b"{\"at").unwrap(), []);
        bytes.splice(4..4, *b"x");
        assert!(read_back(&bytes).is_err());
    }

    #[test]
    fn both_clocks_go() {
        let (boot, wall) = (boot_us(), wall_ms());
        assert!(boot > 0 && boot_us() >= boot && wall > 1_700_000_000_000);
    }
}
