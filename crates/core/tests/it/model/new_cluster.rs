//! What a new cluster makes of the naive model: every session is over at one zxid behind a gap, and counters move on.

use lockkeeper_core::*;

use super::naive::Model;

impl Model {
    pub(crate) fn into_new_cluster(mut self) -> Self {
        let first = self.zxid + 4_398_046_511_104;
        let sessions: Vec<u64> = self.sessions.keys().copied().collect();
        // Who holds is looked at before anybody goes.
        let held: Vec<_> = sessions.iter().map(|session| self.to_be_delayed(*session)).collect();
        for session in &sessions {
            self.end(first, *session, SessionEnd::Closed).unwrap();
        }
        for (session, held) in sessions.iter().zip(held) {
            for (token, at, data) in held {
                self.keep_free(first, *session, token, &at, &data);
            }
        }
        self.zxid = first;
        self.origins.clear();
        self.cluster_uid = None;
        for node in self.nodes.values_mut().filter(|node| node.births > 0) {
            (node.births, node.deaths) = (node.births + 1_048_576, node.deaths + 1_048_576);
        }
        self
    }
}
