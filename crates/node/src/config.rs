//! The settings of a node, checked once.

use lockkeeper_core::limits::{MAX_BATCHES_IN_FLIGHT, MAX_SESSION_TIMEOUT_MS};
use lockkeeper_core::{FeatureLevel, Rules};

/// Settings. [`NodeConfig::new`] has the defaults of a server.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Settings of consensus, with the node's id and its peers. [`NodeConfig::new`] sets its feature level to the
    /// latest one that this program supports.
    pub consensus: lockkeeper_consensus::Config,
    /// How long a request waits for an outcome (a lock request: beyond the time it waits for the lock).
    pub request_timeout_ms: u64,
    /// Most commands waiting to be proposed; more are refused as overload.
    pub max_queued_commands: usize,
    /// Most bytes of commands waiting to be proposed; more are refused as overload.
    pub max_queued_bytes: usize,
    /// Most commands in one batch.
    pub max_batch_commands: usize,
    /// A batch of this size takes no further command.
    pub max_batch_bytes: usize,
    /// Most batches in flight. With more than one, a command need not wait until the batch before it is decided.
    pub max_batches_in_flight: usize,
    /// Largest single command.
    pub max_command_bytes: usize,
    /// Most keepalives and most reads that wait at once. More than the frontends let in, so that no keepalive is
    /// refused because of others.
    pub max_waiting_calls: usize,
    /// Most lock requests in progress at this node.
    pub max_lock_requests: usize,
    /// Longest time for which a lock request may wait.
    pub max_wait_ms: u64,
    /// Most sessions of the whole cluster; more are refused as overload.
    pub max_sessions: usize,
    /// Bounds on the replicated state for what this node proposes.
    pub rules: Rules,
    /// Most watches at this node.
    pub max_watches: usize,
    /// How many events a watch may be behind before it is cut off.
    pub watch_queue_events: usize,
    /// Most events kept for resuming watches.
    pub history_events: usize,
    /// Most bytes of events kept for resuming watches.
    pub history_bytes: usize,
    /// How often a watch gets a bookmark.
    pub bookmark_every_ms: u64,
    /// How often the leader looks for silent sessions, and every node for keepalives that are due.
    pub session_tick_ms: u64,
    /// How often the leader looks for empty containers and for TTL nodes whose time has run out.
    pub reap_every_ms: u64,
    /// How long a group of keepalives may be in flight before it is sent again.
    pub keepalive_group_timeout_ms: u64,
    /// How long a shutdown waits for commands in flight.
    pub shutdown_timeout_ms: u64,
    /// The highest feature level that this node reads and takes part in: the latest of this program. Tests set a later
    /// one, so that a cluster of two versions can be tried.
    pub supported_level: FeatureLevel,
}

impl NodeConfig {
    /// The defaults.
    pub fn new(mut consensus: lockkeeper_consensus::Config) -> Self {
        consensus.feature_level = FeatureLevel::LATEST.0;
        Self {
            consensus,
            request_timeout_ms: 10_000,
            max_queued_commands: 16_384,
            max_queued_bytes: 64 * 1024 * 1024,
            max_batch_commands: 1024,
            max_batch_bytes: 256 * 1024,
            max_batches_in_flight: 4,
            max_command_bytes: 2 * 1024 * 1024,
            max_waiting_calls: 1 << 20,
            max_lock_requests: 65_536,
            max_wait_ms: u64::from(MAX_SESSION_TIMEOUT_MS),
            max_sessions: 1_000_000,
            rules: Rules::default(),
            max_watches: 65_536,
            watch_queue_events: 1024,
            history_events: 32_768,
            history_bytes: 16 * 1024 * 1024,
            bookmark_every_ms: 5_000,
            session_tick_ms: 100,
            reap_every_ms: 1_000,
            keepalive_group_timeout_ms: 1_000,
            shutdown_timeout_ms: 5_000,
            supported_level: FeatureLevel::LATEST,
        }
    }

    /// Checks each setting.
    ///
    /// # Errors
    /// Names the setting that is wrong, and its bounds.
    pub fn validate(&self) -> Result<(), String> {
        self.consensus.validate()?;
        let positive = [
            ("request_timeout_ms", self.request_timeout_ms),
            ("max_queued_commands", self.max_queued_commands as u64),
            ("max_batch_commands", self.max_batch_commands as u64),
            ("max_batch_bytes", self.max_batch_bytes as u64),
            ("max_command_bytes", self.max_command_bytes as u64),
            ("max_waiting_calls", self.max_waiting_calls as u64),
            ("max_lock_requests", self.max_lock_requests as u64),
            ("watch_queue_events", self.watch_queue_events as u64),
            ("bookmark_every_ms", self.bookmark_every_ms),
            ("session_tick_ms", self.session_tick_ms),
            ("reap_every_ms", self.reap_every_ms),
            ("keepalive_group_timeout_ms", self.keepalive_group_timeout_ms),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(format!("{name} must not be 0"));
        }
        if !(1..=MAX_BATCHES_IN_FLIGHT).contains(&self.max_batches_in_flight) {
            return Err(format!(
                "max_batches_in_flight is from 1 to {MAX_BATCHES_IN_FLIGHT}; it is {}",
                self.max_batches_in_flight
            ));
        }
        if self.consensus.feature_level > self.supported_level.0 {
            return Err(format!(
                "feature_level is at most {}, the latest that this program supports; it is {}",
                self.supported_level, self.consensus.feature_level
            ));
        }
        if self.session_tick_ms > 500 {
            return Err(format!(
                "session_tick_ms is at most 500, the shortest session timeout; it is {}",
                self.session_tick_ms
            ));
        }
        if self.max_queued_bytes < self.max_command_bytes {
            return Err(
                "max_queued_bytes must not be less than max_command_bytes: no command of that size would be accepted"
                    .into(),
            );
        }
        if self.max_batch_bytes + self.max_command_bytes > self.consensus.max_proposal_bytes {
            return Err(
                "max_batch_bytes and max_command_bytes together must not exceed consensus' max_proposal_bytes".into()
            );
        }
        Ok(())
    }
}
