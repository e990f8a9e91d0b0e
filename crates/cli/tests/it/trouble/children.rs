//! Clients in processes of their own, to be frozen, or given another clock: this very test binary, run again with a role.

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
/// What a child says begins with it; the rest is the test harness's.
const MARK: &str = "child: ";

/// How long a child may take in all; only a bound for when what is waited for never comes.
const LONGEST: Duration = Duration::from_secs(28);

/// What a child may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Holds a lock, and writes to a file for as long as its guard lets it.
    Writer,
    /// Waits for a lock, for as many milliseconds as the name of its file says.
    Waiter,
    /// Holds a lock and says what its clocks and its guard say.
    Watcher,
    /// Drops guards and waits in runtimes that shut down, and after.
    Leaver,
}

/// A child at work.
pub(crate) struct Child {
    pub(crate) process: Killed,
    lines: Receiver<String>,
    /// Nothing that is waited for comes later than this.
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
        // Ends with the child, or with the test.
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Self { process, lines, give_up_at: Instant::now() + LONGEST }
    }

    /// The next thing it says that begins so: what comes behind.
    pub(crate) fn says(&mut self, beginning: &str) -> Vec<String> {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect();
        loop {
            let left = self.give_up_at.saturating_duration_since(Instant::now());
            let line = self
                .lines
                .recv_timeout(left)
                .unwrap_or_else(|e| panic!("it never said what was waited for ({beginning}): {e}"));
            // The harness may have begun the line with words of its own.
            let said = line.split_once(MARK).map(|(_, said)| said);
            if let Some(rest) = said.and_then(|said| said.strip_prefix(beginning)) {
                return words(rest.trim());
            }
        }
    }
}

/// What it was told.
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

/// Not a test of its own: does nothing unless another test has given it a role.
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
            // The guard has its part in the session.
            drop(session);
            guard
        })
    };
    // Dropped with the task that has it, by the runtime that ends.
    let runtime = Runtime::new().unwrap();
    let guard = hold(&runtime, "in-a-task");
    runtime.spawn(async move {
        std::future::pending::<()>().await;
        drop(guard);
    });
    // A wait that is dropped so.
    let waiting = runtime.block_on(async { told.session().await.lock(lock("in-a-task")) });
    let waits = runtime.spawn(async move { drop(waiting.lock().await) });
    runtime.block_on(until_crowd_is(&client(&told.endpoints), &lock("in-a-task"), (1, 1)));
    assert!(!waits.is_finished());
    drop(runtime);

    // Dropped after its runtime: outside of any, and in another.
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
