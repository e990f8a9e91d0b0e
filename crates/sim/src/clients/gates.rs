//! Clients that run an operation once: they begin it behind a gate, and finish it, fail, or die in between.

use lockkeeper_core::{GateKey, GateOp, GateStanding, Reply};
use lockkeeper_node::At;
use rand::Rng;

use super::Client;
use super::retry::OpResult;
use super::session::Session;

impl Client {
    /// Tries to do what one of a few gates stands for.
    pub(super) async fn use_gate(&mut self, session: &Session) {
        let number = self.rng.random_range(0..3);
        let Ok(key) = GateKey::parse(&format!("job/{number}")) else { return };
        let begin = GateOp::Begin {
            key: key.clone(),
            fingerprint: "job".into(),
            pending_ms: self.rng.random_range(200..=5_000),
            label: format!("client {}", self.number).into(),
        };
        let told = self.mutate(session, "gate begin", begin).await;
        let OpResult::Done(At { value: Reply::Gate(standing), .. }) = told else { return };
        self.progress();
        let GateStanding::Proceed { token, .. } = standing else { return };
        let work_ms = self.rng.random_range(0..=400);
        self.sleep_ms(work_ms).await;
        let op = match self.rng.random_range(0..10) {
            // Dies, or takes too long.
            0 => return,
            1..=3 => GateOp::Fail { key, token },
            _ => {
                let result = std::sync::Arc::from(format!("{} {token}", self.number).into_bytes());
                GateOp::Finish { key, token, result, keep_ms: self.rng.random_range(50..=2_000) }
            }
        };
        drop(self.mutate(session, "gate settle", op).await);
    }
}
