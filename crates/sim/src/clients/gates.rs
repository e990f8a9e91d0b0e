//! Clients that run an operation once: they begin it behind a gate, and finish it, fail, or die in between.

use lockkeeper_core::gate::FOREVER_MS;
use lockkeeper_core::{FencingToken, GateKey, GateOp, GateStanding, Reply};
use lockkeeper_node::{At, Caller};
use rand::Rng;

use super::Client;
use super::attempt::TRY;
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
        let op_result = self.mutate(session, "gate begin", begin).await;
        let OpResult::Done(At { value: Reply::Gate(standing), .. }) = op_result else { return };
        self.progress();
        if let GateStanding::Done { token, until_ms: FOREVER_MS, .. } = standing {
            return self.reset_gate(key, token).await;
        }
        let GateStanding::Proceed { token, .. } = standing else { return };
        let work_ms = self.rng.random_range(0..=400);
        self.sleep_ms(work_ms).await;
        let op = match self.rng.random_range(0..10) {
            // Dies, or takes too long.
            0 => return,
            1..=3 => GateOp::Fail { key, token },
            _ => {
                let result = std::sync::Arc::from(format!("{} {token}", self.number).into_bytes());
                let keep_ms: u64 = self.rng.random_range(50..=2_000);
                match keep_ms % 4 {
                    0 => GateOp::FinishForever { key, token, result },
                    _ => GateOp::Finish { key, token, result, keep_ms },
                }
            }
        };
        drop(self.mutate(session, "gate settle", op).await);
    }

    /// Opens a gate whose result would be kept for ever; not one that somebody has begun again meanwhile.
    async fn reset_gate(&mut self, key: GateKey, token: FencingToken) {
        let caller = Caller { may_force: true, ..Caller::default() };
        let op = GateOp::Reset { key, token: Some(token) };
        drop(self.call(TRY, move |node| async move { node.execute(caller, op).await }).await);
    }
}
