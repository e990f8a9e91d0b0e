//! Clients whose sessions own many ephemerals: all are deleted at one point of the order, however many they are
//! (promise P6), and there are never more than the configuration allows.

use lockkeeper_core::{NodeData, NodeKind, NodePath, Op, Refusal};
use rand::Rng;

use super::retry::OpResult;
use super::session::Session;
use super::{Client, Outcome, create};

/// How many are made in one transaction.
const AT_ONCE: u32 = 1_000;
/// More than this takes long, and each client does it once.
const ONCE_FROM: u32 = 50_000;

impl Client {
    /// Opens a session of its own, makes ephemerals until there are enough or one is refused, and lets the session end.
    pub(super) async fn own_many(&mut self, usual: &Session) {
        if self.owned_many && self.lab.plan.many >= ONCE_FROM {
            return self.use_data(usual).await;
        }
        self.owned_many = true;
        let timeout_ms = 2 * self.lab.plan.session_timeout_ms;
        let Some(session) = Session::open(self, timeout_ms).await else { return };
        self.make_many(&session).await;
        match self.rng.random_bool(0.5) {
            true => session.close(self).await,
            false => session.abandon(),
        }
        self.progress();
    }

    async fn make_many(&mut self, session: &Session) {
        let (Ok(home), Ok(path)) = (NodePath::parse("/many"), NodePath::parse(&format!("/many/m{}-", self.number)))
        else {
            return;
        };
        let mut left = self.lab.plan.many;
        while left > 0 && !session.is_lost(self) {
            let count = left.min(AT_ONCE);
            let one = create(path.clone(), NodeData::default(), NodeKind::Ephemeral, true);
            match self.mutate(session, "create many", Op::Multi(vec![one; count as usize])).await {
                OpResult::Done(_) => left -= count,
                OpResult::Refused(refusal) if is_missing(&refusal) => {
                    let home = create(home.clone(), NodeData::default(), NodeKind::Persistent, false);
                    drop(self.mutate(session, "create", home).await);
                }
                OpResult::Refused(_) => {
                    self.lab.count("create too many", Outcome::Refused);
                    return;
                }
                OpResult::Failed | OpResult::SessionEnded | OpResult::Unknown => return,
            }
        }
    }
}

fn is_missing(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::MultiFailed { cause, .. } if matches!(**cause, Refusal::NoNode(_)))
}
