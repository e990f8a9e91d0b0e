//! What the configuration says of this frontend.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_config::Config;
use lockkeeper_service::admission::Admission;
use lockkeeper_service::budget::Budget;
use lockkeeper_service::principals::SuperUser;
use lockkeeper_service::throttle::Throttle;

use super::watches::WatchLimits;

/// A client whose change is not answered in this time is disconnected, so that it tries another node.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Limits and options from the configuration.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// Unit of session timeouts, which are between 2 and 20 ticks.
    pub(super) tick: Duration,
    /// Unanswered requests per connection.
    pub(super) outstanding: usize,
    /// Connections per address; 0 means no limit.
    pub(super) connections_per_address: usize,
    /// Longest frame.
    pub(super) max_frame_bytes: usize,
    /// Bytes that one client may leave unread.
    pub(super) max_unread_bytes: usize,
    /// Bytes of incomplete requests and of unread replies, over all clients of the node.
    pub(super) request_bytes: Arc<Budget>,
    pub(super) reply_bytes: Arc<Budget>,
    /// Watches in all and per connection.
    pub(super) watches: WatchLimits,
    /// A client that reads nothing for this long is disconnected.
    pub(super) write_timeout: Duration,
    /// The connection is closed when a request has waited this long for its reply.
    pub(super) request_timeout: Duration,
    /// Reads see every change that was acknowledged to any client before them.
    pub(super) linearizable_reads: bool,
    /// The digest of the `super` user.
    pub(super) super_user: SuperUser,
    /// Shared with the other listeners.
    pub(super) throttle: Arc<Throttle>,
    /// Whether these clients may delete lock requests of other sessions.
    pub(super) may_force: bool,
    /// Four-letter commands that are answered.
    pub(super) commands: Vec<String>,
}

impl Settings {
    pub(super) fn new(config: &Config, admission: &Admission) -> Self {
        let zookeeper = &config.zookeeper;
        Self {
            tick: Duration::from_millis(zookeeper.tick_ms.into()),
            outstanding: zookeeper.outstanding_requests,
            connections_per_address: zookeeper.connections_per_address,
            max_frame_bytes: zookeeper.max_frame_bytes,
            max_unread_bytes: zookeeper.max_unread_bytes,
            request_bytes: admission.request_bytes.clone(),
            reply_bytes: admission.reply_bytes.clone(),
            watches: WatchLimits { total: zookeeper.watches, per_connection: zookeeper.watches_per_connection },
            write_timeout: Duration::from_millis(config.limits.write_timeout_ms),
            request_timeout: REQUEST_TIMEOUT,
            linearizable_reads: zookeeper.linearizable_reads,
            super_user: SuperUser::new(&config.admin),
            throttle: admission.throttle.clone(),
            may_force: config.admin.allow_force_release,
            commands: zookeeper.words.clone(),
        }
    }
}
