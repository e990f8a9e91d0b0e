//! The service manager, such as systemd, that started the process (`Type=notify`, sd_notify(3)).
//!
//! It learns when the listeners are open (`READY=1`), whether the node is ready and for what it waits (`STATUS=`), that
//! the node makes progress (`WATCHDOG=1`), and that it stops (`STOPPING=1`). `READY=1` does not wait for a leader: the
//! first node of a cluster waits for the others, and would run into the start timeout. `/readyz` is about the leader.
//!
//! The node must never wait for the service manager. A datagram blocks while its receiver's queue is full, so each is
//! sent by a thread for blocking work.

use std::time::Duration;

use lockkeeper_consensus::ConsensusStatus;
use lockkeeper_node::{Node, NodeStatus};
use lockkeeper_service::hangup::Hangups;
use sd_notify::NotifyState;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

/// How often the status is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Progress is reported so many times within the service manager's watchdog time.
const REPORTS_PER_WATCHDOG: u32 = 3;
/// Longest wait for the service manager to take a message that should arrive before the next step.
const SEND_WITHIN: Duration = Duration::from_secs(1);

/// See the module's text.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServiceManager {
    /// Whether there is one.
    is_there: bool,
    /// It ends a process that reports no progress for this long.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The one that started this process, if it asked for notifications.
    pub(crate) fn of_this_process() -> Self {
        let is_there = std::env::var_os("NOTIFY_SOCKET").is_some_and(|socket| !socket.is_empty());
        let watchdog = sd_notify::watchdog_enabled().filter(|time| is_there && !time.is_zero());
        Self { is_there, watchdog }
    }

    /// Sets the line that `systemctl status` shows while the node starts.
    pub(crate) async fn starting(self, what: &str) {
        self.send(format!("STATUS=starting: {what}")).await;
    }

    /// Reports that the listeners are open.
    pub(crate) async fn listening(self, status: &NodeStatus) {
        self.send(format!("READY=1\n{}", line_of(status))).await;
    }

    /// Reports that the node stops.
    pub(crate) async fn stopping(self) {
        self.send("STOPPING=1\nSTATUS=stopping: requests at work finish, and leadership is handed over".into()).await;
    }

    /// Reports the status when it changes, and progress; it never ends. The task runs on the node's own runtime and
    /// takes the state's lock, so a runtime or a lock that is stuck ends the reports.
    pub(crate) async fn keep_informed(self, node: Node) {
        if !self.is_there {
            return std::future::pending().await;
        }
        // `systemctl reload` sends SIGHUP, which would end a node that has nothing to read again.
        let mut hangups = Hangups::new("a reload ends this node");
        let mut reported = line_of(&node.status());
        let pause = self.watchdog.map_or(LOOK_EVERY, |time| LOOK_EVERY.min(time / REPORTS_PER_WATCHDOG));
        loop {
            tokio::select! {
                () = sleep(pause) => {}
                () = hangups.next() => tracing::info!("SIGHUP: certificates, keys and the audit file are read again"),
            }
            let status = line_of(&node.status());
            let is_news = status != reported;
            let mut lines = Vec::new();
            if self.watchdog.is_some() {
                lines.push("WATCHDOG=1");
            }
            if is_news {
                lines.push(&status);
            }
            if !lines.is_empty() {
                self.send(lines.join("\n")).await;
            }
            if is_news {
                reported = status;
            }
        }
    }

    async fn send(self, message: String) {
        if !self.is_there {
            return;
        }
        let sending = spawn_blocking(move || sd_notify::notify(&[NotifyState::Custom(&message)]));
        match timeout(SEND_WITHIN, sending).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::warn!(%error, "cannot notify the service manager (NOTIFY_SOCKET)"),
            Ok(Err(_)) | Err(_) => tracing::warn!("the service manager does not take notifications (NOTIFY_SOCKET)"),
        }
    }
}

fn line_of(status: &NodeStatus) -> String {
    status_line(&status.consensus, status.not_ready_because.as_deref())
}

/// One line, because the next line would be a message of its own.
fn status_line(consensus: &ConsensusStatus, not_ready_because: Option<&str>) -> String {
    let text = match (not_ready_because, consensus.leader) {
        (None, _) if consensus.leading => "ready; leads".to_owned(),
        (None, Some(leader)) => format!("ready; follows node {leader}"),
        (None, None) => "ready".to_owned(),
        (Some(why), _) => format!("not ready: {why}"),
    };
    format!("STATUS={}", text.replace(['\n', '\r'], " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn consensus(change: impl FnOnce(&mut ConsensusStatus)) -> ConsensusStatus {
        let mut consensus = ConsensusStatus::default();
        consensus.members.voters.extend((1..=3).map(|node| (node, Default::default())));
        change(&mut consensus);
        consensus
    }

    #[test]
    fn the_status_says_what_the_node_waits_for() {
        let leads = consensus(|it| (it.leading, it.leader) = (true, Some(1)));
        assert_eq!(status_line(&leads, None), "STATUS=ready; leads");
        let follows = consensus(|it| it.leader = Some(2));
        assert_eq!(status_line(&follows, None), "STATUS=ready; follows node 2");
        let no_leader = Some("no leader is known");
        assert_eq!(status_line(&consensus(|_| {}), no_leader), "STATUS=not ready: no leader is known");
        let alone = "no majority: nodes 2, 3 do not answer (connection refused)";
        assert_eq!(status_line(&leads, Some(alone)), format!("STATUS=not ready: {alone}"));
        let two_lines = status_line(&follows, Some("one\nWATCHDOG=trigger"));
        assert_eq!(two_lines.lines().count(), 1, "{two_lines}");
    }
}
