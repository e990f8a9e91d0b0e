//! Clients as separate processes that tests can freeze or give another clock: this test binary, run again with a role.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockkeeper_client::{Session, Transport};
use tokio::runtime::Runtime;
use tokio::time::sleep;

use super::parties::{TRANSPORTS, client, session, until_crowd_is};
use crate::support::{Dev, Killed};

const ROLE: &str = "LOCKKEEPER_TEST_ROLE";
const ARGUMENTS: &str = "LOCKKEEPER_TEST_ARGUMENTS";
const ENDPOINTS: &str = "LOCKKEEPER_TEST_ENDPOINTS";
/// Prefix of a child's messages; other lines are the test harness's.
const MARK: &str = "child: ";

/// Time limit of a child.
const LONGEST: Duration = Duration::from_secs(28);

/// The role of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Holds a lock and writes to a file while its guard permits it.
    Writer,
    /// Waits for a lock, for the milliseconds in its file's name.
    Waiter,
    /// Holds a lock and reports its clocks and its guard.
    Watcher,
    /// Drops guards and waits during and after the shutdown of runtimes.
    Leaver,
}

/// A running child.
pub(crate) struct Child {
    pub(crate) process: Killed,
    lines: Receiver<String>,
    /// The latest time for any awaited message.
    give_up_at: Instant,
}

impl Child {
    pub(crate) fn start(dev: &Dev, role: Role, transport: Transport, ttl: Duration, lock: &str, file: &Path) -> Self {
        let mut command = Self::command(dev, role, transport, ttl, lock, file);
        Self::spawn(&mut command)
    }

    pub(crate) fn command(
        dev: &Dev,
        role: Role,
        transport: Transport,
        ttl: Duration,
        lock: &str,
        file: &Path,
    ) -> Command {
        let transport = TRANSPORTS.iter().position(|one| *one == transport).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "trouble::children::a_child_of_another_test", "--nocapture", "--test-threads", "1"]);
        command.env(ROLE, format!("{role:?}")).env(ENDPOINTS, dev.endpoints.join(","));
        command.env(ARGUMENTS, format!("{transport}\n{}\n{lock}\n{}", ttl.as_millis(), file.display()));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut process = Killed(command.spawn().unwrap());
        let stdout = BufReader::new(process.0.stdout.take().unwrap());
        let (tell, lines) = channel();
        // Ends with the child or the test.
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Self { process, lines, give_up_at: Instant::now() + LONGEST }
    }

    /// The rest of the next message with this prefix.
    pub(crate) fn says(&mut self, beginning: &str) -> Vec<String> {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect();
        loop {
            let left = self.give_up_at.saturating_duration_since(Instant::now());
            let line = self
                .lines
                .recv_timeout(left)
                .unwrap_or_else(|e| panic!("it never said what was waited for ({beginning}): {e}"));
            // The harness may have written a part of the line.
            let said = line.split_once(MARK).map(|(_, said)| said);
            if let Some(rest) = said.and_then(|said| said.strip_prefix(beginning)) {
                return words(rest.trim());
            }
        }
    }
}

/// The child's parameters.
struct Told {
    endpoints: Vec<String>,
    transport: Transport,
    ttl: Duration,
    lock: String,
    file: String,
}

impl Told {
    fn read() -> Self {
        let arguments = std::env::var(ARGUMENTS).unwrap();
        let parts: Vec<&str> = arguments.split('\n').collect();
        Self {
            endpoints: std::env::var(ENDPOINTS).unwrap().split(',').map(str::to_owned).collect(),
            transport: TRANSPORTS[parts[0].parse::<usize>().unwrap()],
            ttl: Duration::from_millis(parts[1].parse().unwrap()),
            lock: parts[2].to_owned(),
            file: parts[3].to_owned(),
        }
    }

    async fn session(&self) -> Session {
        session(&client(&self.endpoints), self.ttl, self.transport).await
    }
}

fn say(words: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{words}").unwrap();
    out.flush().unwrap();
}

/// Not a test: does nothing unless another test starts it with a role.
#[test]
fn a_child_of_another_test() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let told = Told::read();
    let run = |work: std::pin::Pin<Box<dyn Future<Output = ()>>>| Runtime::new().unwrap().block_on(work);
    match role.as_str() {
        "Writer" => run(Box::pin(write(told))),
        "Waiter" => run(Box::pin(wait(told))),
        "Watcher" => run(Box::pin(watch(told))),
        "Leaver" => leave(&told),
        other => panic!("no such role: {other}"),
    }
}

async fn write(told: Told) {
    let session = told.session().await;
    let guard = session.lock(&told.lock).lock().await.unwrap();
    say(&format!("holds {} {}", guard.token(), session.id()));
    let mut file = std::fs::File::create(&told.file).unwrap();
    let work = guard.run(async {
        loop {
            file.write_all(b"written while holding\n").unwrap();
            sleep(Duration::from_millis(20)).await;
        }
    });
    let ended: Result<(), _> = work.await;
    assert!(guard.is_lost() && guard.remaining().is_zero());
    say(&format!("ended {}", ended.unwrap_err()));
}

async fn wait(told: Told) {
    let session = told.session().await;
    say(&format!("waits {}", session.id()));
    let wait = Duration::from_millis(told.file.parse().unwrap());
    match session.lock(&told.lock).lock_timeout(wait).await {
        Ok(guard) => say(&format!("ended {:?}", guard.map(|guard| guard.token()))),
        Err(error) => say(&format!("ended {error}")),
    }
}

async fn watch(told: Told) {
    let session = told.session().await;
    let guard = session.lock(&told.lock).lock().await.unwrap();
    say(&format!("holds {} {}", guard.token(), session.id()));
    while !Path::new(&told.file).with_extension("stop").exists() {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let until = session.expires_at().as_millis();
        say(&format!("sees {wall} {until} {}", guard.is_lost()));
        sleep(Duration::from_millis(50)).await;
    }
    let released = guard.release().await;
    say(&format!("released {}", released.is_ok()));
}

fn leave(told: &Told) {
    let lock = |case: &str| format!("{}/{case}", told.lock);
    let hold = |runtime: &Runtime, case: &str| {
        runtime.block_on(async {
            let session = told.session().await;
            let guard = session.lock(lock(case)).lock().await.unwrap();
            say(&format!("{case} {}", session.id()));
            // The guard keeps the session alive.
            drop(session);
            guard
        })
    };
    // Dropped together with its task by the runtime's shutdown.
    let runtime = Runtime::new().unwrap();
    let guard = hold(&runtime, "in-a-task");
    runtime.spawn(async move {
        std::future::pending::<()>().await;
        drop(guard);
    });
    // A wait that is dropped in the same way.
    let waiting = runtime.block_on(async { told.session().await.lock(lock("in-a-task")) });
    let waits = runtime.spawn(async move { drop(waiting.lock().await) });
    runtime.block_on(until_crowd_is(&client(&told.endpoints), &lock("in-a-task"), (1, 1)));
    assert!(!waits.is_finished());
    drop(runtime);

    // Dropped after its runtime: outside any runtime, and in another one.
    let runtime = Runtime::new().unwrap();
    let (outside, inside) = (hold(&runtime, "outside"), hold(&runtime, "in-another"));
    runtime.shutdown_background();
    assert!(outside.token() > 0);
    drop(outside);
    Runtime::new().unwrap().block_on(async move { drop(inside) });

    // At the very end of the main task.
    let runtime = Runtime::new().unwrap();
    let last = hold(&runtime, "at-the-end");
    runtime.block_on(async move { drop(last) });
    drop(runtime);
    say("left ");
}
