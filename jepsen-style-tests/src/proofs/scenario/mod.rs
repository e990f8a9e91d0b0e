//! Proofs about locks as rows of one table ([`rows`]): processes of clients take and give back locks while a script of
//! faults strikes nodes and processes; then checks judge what clients were told, what the log did and what the servers
//! counted.
//!
//! | a row has | which says |
//! |---|---|
//! | `crews` | the processes: how many clients each has, and how long their sessions live unheard |
//! | `work` | what a client takes, and what it does while it holds |
//! | `script` | `At(time, strike)`: what is killed when, counted from the start of the clients |
//! | `checks` | what it must show beyond what every row must show |
//!
//! Every row must show ([`checks::EVERY`]): once the clients have stopped asking and while their sessions are still
//! open, no queue keeps a request; the servers woke no more waiters than the queues account for; grants never stop for
//! longer than `standstill`; no call fails unless a node was killed; replicas and watches agree; each kind of strike
//! took place. A row that lacks the last of these shows nothing, which is not a pass.
//!
//! The engine ([`engine`]) runs a row, the clients are processes of [`crate::work`], and a check is a pure function of
//! the [`Evidence`]. A new proof about locks is a row of [`rows`], and nothing else.
//!
//! Where one lock and one death matter, [`hand_over`] has the holder and the one behind it.
//!
//! A killed server loses its count of wake-ups. So the count is judged twice: over the whole run the known part (the
//! last sample of each life, taken right before each kill) must not be *more* than the queues account for; in calm
//! windows between the strikes, where samples are exact, it must not be fewer either.

mod checks;
mod engine;
pub(super) mod hand_over;
pub(super) mod rows;

use lockkeeper_checkers::lives::Life;
use lockkeeper_checkers::replay::Replay;

use crate::disk_latency::Syncs;
use crate::judge::counts::CalmWindow;
use crate::judge::grants::GrantHistory;
use crate::proofs::prelude::*;
use crate::proofs::seconds;

pub(super) use engine::{run, run_on};

/// A proof about locks. See the module's text.
pub(super) struct Scenario {
    /// Also of its locks.
    pub(super) name: &'static str,
    /// For how long clients begin new turns, unless somebody chose.
    pub(super) seconds: u64,
    pub(super) crews: &'static [Crew],
    pub(super) work: LockWork,
    /// The faults of a load that goes on for so long, in their order.
    pub(super) script: fn(Duration) -> Vec<At>,
    /// The longest time without a grant. What a killed process holds until its session ends does not count, and neither
    /// does the time for which the disk is busy.
    pub(super) standstill: Duration,
    /// How soon the queues are empty after the last client has stopped asking.
    pub(super) left_within: Duration,
    pub(super) checks: &'static [LockCheck],
}

/// A pure function from what was seen to its part of the last line.
pub(super) type LockCheck = fn(&Evidence<'_>) -> ProofResult;

/// One process of clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crew {
    pub(super) clients: u32,
    /// The timeout of their sessions.
    pub(super) ttl: Duration,
}

/// What the clients do, over and over.
#[derive(Clone, Copy, Debug)]
pub(super) enum LockWork {
    /// They add one to a number in a file under one lock.
    Counter,
    /// They stay inside with one of so many permits.
    Permits(u16),
    /// They stay inside with three of so many locks.
    Several(u32),
    /// The tasks of the first process use one lock, at first each for itself, then shared in the process; the others
    /// want it now and then.
    Shared(ProcessShare),
}

/// A lock shared by the tasks of a process, and the cap of that.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessShare {
    pub(super) tasks: u32,
    pub(super) max_passes: u32,
    pub(super) max_time: Duration,
}

impl ProcessShare {
    /// The words for a process that uses the lock in so many legs, of which every other one shares.
    pub(super) fn words(&self, lock: &str, legs: u32, leg: Duration) -> String {
        let Self { tasks, max_passes, max_time } = self;
        let (leg_ms, max_time_ms) = (leg.as_millis(), max_time.as_millis());
        format!(
            "share --lock {lock} --tasks {tasks} --legs {legs} --leg-ms {leg_ms} --max-passes {max_passes} \
             --max-time-ms {max_time_ms}"
        )
    }
}

/// A strike, so long after the clients were started.
#[derive(Clone, Copy, Debug)]
pub(super) struct At(pub(super) Duration, pub(super) Strike);

/// What is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strike {
    /// Any node; it is started again.
    Node,
    /// The oldest process; another takes its place.
    OldestProcess,
    /// The process of the last crew, once all its clients have had a turn.
    LastProcess,
}

/// How long a struck node takes to be back, as a rule: no strike comes so shortly before the end.
const BACK_WITHIN: Duration = Duration::from_secs(2);

/// These strikes in turn, one each `every`, while the load goes on.
fn in_turn(every: Duration, over: Duration, strikes: &[Strike]) -> Vec<At> {
    let times = (1..).map(|beat| every * beat).take_while(|time| *time + BACK_WITHIN < over);
    times.zip(strikes.iter().cycle()).map(|(time, strike)| At(time, *strike)).collect()
}

impl Scenario {
    /// For how long its clients begin new turns.
    pub(super) fn length(&self, context: &Context) -> Duration {
        seconds(context.seconds_or(self.seconds))
    }

    /// Where clients leave nodes while they hold.
    fn inside(&self) -> String {
        format!("/{}-inside", self.name)
    }

    fn clients(&self) -> u32 {
        self.crews.iter().map(|crew| crew.clients).sum()
    }

    fn locks(&self) -> Vec<String> {
        match self.work {
            LockWork::Counter | LockWork::Permits(_) | LockWork::Shared(_) => vec![self.name.to_owned()],
            LockWork::Several(locks) => (0..locks).map(|number| format!("{}-{number}", self.name)).collect(),
        }
    }

    /// The words for a process of clients that begin new turns for so long.
    fn words(&self, number: u32, crew: Crew, left: Duration, dir: &Path, seed: u64) -> String {
        let name = self.name;
        let counter = || format!("--counter-in {}", dir.display());
        let how = match self.work {
            LockWork::Shared(share) if number == 1 => return share.words(name, 2, left / 2),
            LockWork::Shared(_) => format!("{} --think-ms 20", counter()),
            LockWork::Counter => counter(),
            LockWork::Permits(permits) => format!("--permits {permits} --hold-us 0 --longer-us 20000"),
            LockWork::Several(locks) => format!("--among {locks} --hold-us 0 --longer-us 10000"),
        };
        let (clients, seconds) = (crew.clients, left.as_millis().div_ceil(1_000));
        let inside = self.inside();
        format!("turns --lock {name} {how} --inside {inside} --clients {clients} --seconds {seconds} --seed {seed}")
    }
}

/// What was struck.
#[derive(Clone, Debug, Default)]
pub(super) struct Strikes {
    pub(super) nodes: u32,
    /// How many of them led.
    pub(super) leaders: u32,
    pub(super) processes: u32,
    /// From the kill of each process until what it held is free again, on the boot clock.
    aftermath_us: Vec<(u64, u64)>,
}

/// Everything that was seen.
pub(super) struct Evidence<'a> {
    scenario: &'a Scenario,
    dir: &'a Path,
    history: GrantHistory,
    /// What the first process told, where its tasks share a lock.
    shared: Vec<Record>,
    /// The requests of each lock, and what came of them.
    queues: BTreeMap<String, (Vec<Life>, Replay)>,
    /// The nodes that clients left while they held.
    insides: Vec<Life>,
    /// Wake-ups that the servers counted, as far as samples know.
    counted: f64,
    windows: Vec<CalmWindow>,
    disk: Syncs,
    strikes: Strikes,
    /// While all clients were at work: from the first grant until shortly before their time is over.
    at_work_us: (u64, u64),
    /// How long the queues took to be empty.
    empty_after: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strikes_take_turns_and_leave_time_to_come_back() {
        let seconds = Duration::from_secs;
        let script = in_turn(seconds(4), seconds(15), &[Strike::OldestProcess, Strike::Node]);
        let seen: Vec<_> = script.iter().map(|At(time, strike)| (time.as_secs(), *strike)).collect();
        assert_eq!(seen, [(4, Strike::OldestProcess), (8, Strike::Node), (12, Strike::OldestProcess)]);
        assert!(in_turn(seconds(4), seconds(6), &[Strike::Node]).is_empty());
    }
}
