//! The greedy clients run in a process of their own at the lowest priority. In earnest they would have a machine of
//! their own, and must not take the processors from the servers and the honest client here. What the servers spend on
//! them is the servers' own, and counts.

use std::process::{ExitCode, Stdio};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use super::clients::{Class, Target};
use super::refusals::{RefusalCounts, RefusalsByKey};
use crate::proofs::prelude::*;

/// So long they may take to go.
const GONE_WITHIN: Duration = Duration::from_secs(20);
/// How often they say what they were refused.
const SAY_EVERY: Duration = Duration::from_millis(100);

/// What the process is told to do.
#[derive(Debug, Serialize, Deserialize)]
struct GreedyTask {
    class: Class,
    target: Target,
}

/// The process, from the outside. Dropping it kills it.
pub(super) struct Crowd {
    child: Child,
    until_closed: ChildStdin,
    told: RefusalCounts,
    listening: JoinHandle<std::io::Result<()>>,
}

impl Crowd {
    /// Begins.
    pub(super) fn start(class: Class, target: Target) -> Result<Self, Failed> {
        let task = serde_json::to_string(&GreedyTask { class, target }).map_err(std::io::Error::other)?;
        let mut child = Command::new("nice")
            .args(["-n", "19"])
            .arg(std::env::current_exe()?)
            .args(["--be-greedy", &task])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let until_closed = child.stdin.take().ok_or_else(|| std::io::Error::other("no pipe to the greedy"))?;
        let output = child.stdout.take().ok_or_else(|| std::io::Error::other("no pipe from the greedy"))?;
        let told = RefusalCounts::default();
        let listening = tokio::spawn({
            let (told, mut lines) = (told.clone(), BufReader::new(output).lines());
            async move {
                while let Some(line) = lines.next_line().await? {
                    told.replace(serde_json::from_str(&line)?);
                }
                Ok(())
            }
        });
        Ok(Self { child, until_closed, told, listening })
    }

    /// What they were refused until a moment ago.
    pub(super) fn refused(&self) -> RefusalsByKey {
        self.told.counts()
    }

    /// Ends all of it, and gives what they were refused.
    pub(super) async fn end(mut self) -> Result<RefusalsByKey, Failed> {
        drop(self.until_closed);
        let ended = async {
            self.listening.await.map_err(std::io::Error::other)??;
            self.child.wait().await
        };
        match tokio::time::timeout(GONE_WITHIN, ended).await {
            Ok(Ok(status)) if status.success() => Ok(self.told.counts()),
            other => broken(format!("the process of the greedy did not end as it should: {other:?}")),
        }
    }
}

/// Is the process, until its standard input is closed.
pub(super) fn be(task: &str) -> ExitCode {
    let task: GreedyTask = match serde_json::from_str(task) {
        Ok(task) => task,
        Err(error) => {
            eprintln!("prove: --be-greedy is for the proof alone: {error}");
            return ExitCode::from(2);
        }
    };
    let Ok(runtime) = tokio::runtime::Builder::new_multi_thread().enable_all().build() else {
        return ExitCode::FAILURE;
    };
    let told = RefusalCounts::default();
    let say = || println!("{}", serde_json::to_string(&told.counts()).unwrap_or_default());
    runtime.block_on(async {
        let _greedy = task.class.begin(&task.target, &told);
        let (mut input, mut byte) = (tokio::io::stdin(), [0]);
        while tokio::time::timeout(SAY_EVERY, input.read(&mut byte)).await.is_err() {
            say();
        }
    });
    runtime.shutdown_background();
    say();
    // Sockets are closed with the process, whatever its tasks are at.
    ExitCode::SUCCESS
}
