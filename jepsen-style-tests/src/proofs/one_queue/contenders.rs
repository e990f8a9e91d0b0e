//! The contenders: programs written with kazoo and with Curator (`crates/interop/clients/queue`), and our own client
//! library in this process. All do the same: take the lock, read the counter, wait, write the number plus one under
//! their token, release.

use std::net::SocketAddr;
use std::path::PathBuf;

use lockkeeper_client::{Client, Error, Session, SessionOptions};

use super::counter::{Caller, ContenderKind, Counter, Who};
use crate::process::Process;
use crate::proofs::prelude::*;
use crate::run::programs::checkout;
use crate::work::client_at;

/// The timeout of every session: the most that the ZooKeeper listener gives here.
pub(super) const TTL: Duration = Duration::from_secs(10);
/// Packages may have to be fetched.
const INSTALLED_WITHIN: Duration = Duration::from_secs(300);
const NAP_AFTER_FAILURE: Duration = Duration::from_millis(20);

/// What runs the programs.
pub(super) struct Libraries {
    programs: PathBuf,
    python: String,
    classpath: String,
}

impl Libraries {
    /// Installs kazoo and Curator where they are missing, as `scripts/interop` does.
    pub(super) async fn install(dir: &Path) -> Result<Self, Failed> {
        let clients = checkout().join("crates/interop/clients");
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| checkout().join("target"), PathBuf::from);
        let (told, complaints) = (dir.join("install.out"), dir.join("install.log"));
        let words = [clients.join("install").display().to_string(), target.join("interop").display().to_string()];
        let argv: Vec<String> = words.into_iter().chain(["kazoo".into(), "curator".into()]).collect();
        let ended = Process::start_telling(&argv, &[], &told, &complaints)?.wait_end(INSTALLED_WITHIN).await;
        if !ended.is_some_and(|status| status.success()) {
            let why = std::fs::read_to_string(&complaints).unwrap_or_default();
            let why = why.lines().last().unwrap_or("no reason given");
            return cannot_run(format!("kazoo and Curator cannot be installed: {why}"));
        }
        let told = std::fs::read_to_string(&told)?;
        let said = |what: &str| {
            let line = told.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix('='));
            line.map(str::to_owned)
                .ok_or_else(|| Failed::CannotRun(format!("the installation does not say its {what}")))
        };
        Ok(Self { programs: clients.join("queue"), python: said("python")?, classpath: said("classpath")? })
    }

    /// The versions of both.
    pub(super) fn versions(&self) -> String {
        let version = |text: &str, before: &str| {
            let rest = text.split_once(before).map_or("", |(_, rest)| rest);
            rest.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or("").trim_matches('.').to_owned()
        };
        let requirements = self.programs.join("../kazoo/requirements.txt");
        let kazoo = version(&std::fs::read_to_string(requirements).unwrap_or_default(), "kazoo==");
        format!("kazoo {kazoo}, Curator {}", version(&self.classpath, "curator-recipes-"))
    }

    /// The words that run the program of a kind; none for our own.
    fn program(&self, kind: ContenderKind) -> Option<Vec<String>> {
        let file = |name: &str| self.programs.join(name).display().to_string();
        let words = match kind {
            ContenderKind::Kazoo => vec![self.python.clone(), "-B".into(), file("contenders.py")],
            ContenderKind::Curator => {
                let java = "java -Xmx256m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp";
                let java = java.split(' ').map(str::to_owned);
                java.chain([self.classpath.clone(), file("Contenders.java")]).collect()
            }
            ContenderKind::Native => return None,
        };
        Some(words)
    }
}

/// What contenders are given.
pub(super) struct ContenderTask<'a> {
    /// The lock.
    pub(super) lock: &'a str,
    /// How many of each kind.
    pub(super) each: u32,
    /// How long each holds between reading and writing.
    pub(super) hold: Duration,
    /// How kazoo's nodes are named: `curator` or `own`.
    pub(super) kazoo_names: &'a str,
}

/// All of them, at work. Dropping them ends them.
pub(super) struct Contenders {
    processes: BTreeMap<ContenderKind, (Process, PathBuf)>,
    natives: JoinSet<Result<(), String>>,
}

impl Contenders {
    /// Starts those of these kinds.
    pub(super) fn start(
        libraries: &Libraries,
        cluster: &Cluster,
        dir: &Path,
        counter: &Counter,
        task: &ContenderTask<'_>,
        kinds: &[ContenderKind],
    ) -> Result<Self, Failed> {
        let mut contenders = Self { processes: BTreeMap::new(), natives: JoinSet::new() };
        for kind in kinds {
            let Some(mut argv) = libraries.program(*kind) else {
                contenders.start_natives(cluster, counter, task)?;
                continue;
            };
            argv.extend([cluster.zookeepers().join(","), format!("/locks/{}", task.lock)]);
            argv.extend([counter.address().port().to_string(), task.each.to_string()]);
            argv.extend([task.hold.as_millis().to_string(), task.kazoo_names.to_owned()]);
            let log = dir.join(format!("{}-{kind}.log", task.lock));
            contenders.processes.insert(*kind, (Process::start(&argv, &[], &log)?, log));
        }
        Ok(contenders)
    }

    fn start_natives(&mut self, cluster: &Cluster, counter: &Counter, task: &ContenderTask<'_>) -> Result<(), Failed> {
        for number in 0..task.each {
            let client = client_at(&cluster.endpoints(), number).map_err(Failed::CannotRun)?;
            let (address, lock, hold) = (counter.address(), task.lock.to_owned(), task.hold);
            self.natives.spawn(native(client, address, number, lock, hold));
        }
        Ok(())
    }

    /// Whether one has ended before its time; says how.
    pub(super) fn ended_early(&mut self) -> Result<(), Failed> {
        for (kind, (process, log)) in &mut self.processes {
            if let Some(status) = process.ended() {
                return broken(format!("{kind}'s contenders ended ({status}): {}", last_line(log)));
            }
        }
        Ok(())
    }

    /// Waits until they have all ended in good order.
    pub(super) async fn finish(mut self, within: Duration) -> Result<(), Failed> {
        for (kind, (process, log)) in &mut self.processes {
            match process.wait_end(within).await {
                Some(status) if status.success() => {}
                Some(status) => return broken(format!("{kind}'s contenders ended with {status}: {}", last_line(log))),
                None => {
                    return broken(format!("{kind}'s contenders did not end within {within:?}: {}", last_line(log)));
                }
            }
        }
        let natives = async {
            while let Some(ended) = self.natives.join_next().await {
                ended.map_err(|error| error.to_string())??;
            }
            Ok::<(), String>(())
        };
        match tokio::time::timeout(within, natives).await {
            Ok(ended) => ended.or_broken("a native contender"),
            Err(_) => broken(format!("native contenders did not end within {within:?}")),
        }
    }
}

fn last_line(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().last().unwrap_or("it said nothing").to_owned()
}

/// One native contender.
async fn native(client: Client, counter: SocketAddr, number: u32, lock: String, hold: Duration) -> Result<(), String> {
    let who = Who { kind: ContenderKind::Native, number };
    let options = SessionOptions { timeout: TTL, label: who.to_string(), ..SessionOptions::default() };
    let mut session = Session::open(&client, &options).await.map_err(|error| error.to_string())?;
    let mut caller = Caller::greet(counter, who).await.map_err(|error| error.to_string())?;
    loop {
        if caller.say("ask").await.map_err(|error| error.to_string())? != "go" {
            return session.close().await.map_err(|error| error.to_string());
        }
        if let Err(error) = turn(&session, &mut caller, &lock, hold).await {
            let told = format!("failed {error}").replace('\n', " ");
            caller.say(&told).await.map_err(|error| error.to_string())?;
            tokio::time::sleep(NAP_AFTER_FAILURE).await;
            if session.left().is_zero() {
                session = Session::open(&client, &options).await.map_err(|error| error.to_string())?;
            }
        }
    }
}

/// What goes wrong in a turn.
#[derive(Debug, thiserror::Error)]
enum TurnError {
    #[error("{0}")]
    Library(#[from] Error),
    #[error("the counter: {0}")]
    Counter(#[from] std::io::Error),
    #[error("the counter gave no number: {0}")]
    Number(#[from] std::num::ParseIntError),
}

/// One increment.
async fn turn(session: &Session, caller: &mut Caller, lock: &str, hold: Duration) -> Result<(), TurnError> {
    let guard = session.lock(lock).lock().await?;
    let token = guard.token();
    let value: u64 = caller.say(&format!("read {token}")).await?.parse()?;
    tokio::time::sleep(hold).await;
    if guard.is_lost() {
        let told = format!("lost {token} {}", guard.lost().await).replace('\n', " ");
        caller.say(&told).await?;
        return Ok(());
    }
    caller.say(&format!("write {token} {}", value + 1)).await?;
    Ok(guard.release().await?)
}
