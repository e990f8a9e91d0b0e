//! The greedy in a process of their own, at the lowest priority: in earnest they would have a machine of their own, and must not take the
//! processors from the servers and from the honest client here. What the servers do for them is the servers' own, and counts.

use std::io::Read as _;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStdin, Command};

use super::clients::{Class, Target};
use super::refusals::{Counts, Told};
use crate::verdict::{Failed, broken};

/// So long they may take to go.
const GONE_WITHIN: Duration = Duration::from_secs(20);

/// What the process is told to do.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    class: Class,
    target: Target,
}

/// The process, from the outside. Dropping it kills it.
pub(super) struct Crowd {
    child: Child,
    until_closed: ChildStdin,
}

impl Crowd {
    /// Begins.
    pub(super) fn start(class: Class, target: Target) -> Result<Self, Failed> {
        let task = serde_json::to_string(&Task { class, target }).map_err(std::io::Error::other)?;
        let mut child = Command::new("nice")
            .args(["-n", "19"])
            .arg(std::env::current_exe()?)
            .args(["--be-greedy", &task])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let until_closed = child.stdin.take().ok_or_else(|| std::io::Error::other("no pipe to the greedy"))?;
        Ok(Self { child, until_closed })
    }

    /// Ends all of it, and gives what they were refused.
    pub(super) async fn end(mut self) -> Result<Counts, Failed> {
        drop(self.until_closed);
        let mut said = String::new();
        let mut output = self.child.stdout.take().ok_or_else(|| std::io::Error::other("no pipe from the greedy"))?;
        let ended = async {
            output.read_to_string(&mut said).await?;
            self.child.wait().await
        };
        match tokio::time::timeout(GONE_WITHIN, ended).await {
            Ok(Ok(status)) if status.success() => Ok(serde_json::from_str(&said).map_err(std::io::Error::other)?),
            other => broken(format!("the process of the greedy did not end as it should: {other:?}")),
        }
    }
}

/// Is the process, until its standard input is closed.
pub(super) fn be(task: &str) -> ExitCode {
    let task: Task = match serde_json::from_str(task) {
        Ok(task) => task,
        Err(error) => {
            eprintln!("prove: --be-greedy is for the proof alone: {error}");
            return ExitCode::from(2);
        }
    };
    let Ok(runtime) = tokio::runtime::Builder::new_multi_thread().enable_all().build() else {
        return ExitCode::FAILURE;
    };
    let told = Told::default();
    let greedy = runtime.block_on(async { task.class.begin(&task.target, &told) });
    let _ = std::io::stdin().read(&mut [0]);
    drop(greedy);
    runtime.shutdown_background();
    println!("{}", serde_json::to_string(&told.counts()).unwrap_or_default());
    // Sockets are closed with the process, whatever its tasks are at.
    ExitCode::SUCCESS
}
