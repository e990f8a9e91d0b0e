//! The life of a client: opens a session, works for a while, and ends it in one of several ways, or dies.

use rand::Rng;
use rand::seq::IndexedRandom;

use super::Client;
use super::session::Session;
use crate::swarm::Work;

/// Lives until the run stops.
pub(super) async fn run(mut client: Client) {
    while !client.lab.stopping() {
        let timeout_ms = client.lab.plan.session_timeout_ms;
        let timeout_ms = client.rng.random_range(timeout_ms..=2 * timeout_ms);
        let Some(session) = Session::open(&mut client, timeout_ms).await else { continue };
        client.pieces = client.rng.random_range(5..=60);
        while client.pieces > 0 {
            if client.lab.stopping() || session.is_lost(&client) {
                break;
            }
            piece(&mut client, &session).await;
            client.pieces -= 1;
            let pause_ms = client.rng.random_range(0..=client.lab.plan.pause_ms);
            client.sleep_ms(pause_ms).await;
        }
        go(&mut client, &session, timeout_ms).await;
    }
}

async fn go(client: &mut Client, session: &Session, timeout_ms: u32) {
    match client.rng.random_range(0..10) {
        // Dies: whatever it has goes when the session expires.
        0 | 1 => session.abandon(),
        // The same, and asks whether it has.
        2 if !client.lab.stopping() => session.outlive(client).await,
        // Stands still for longer than it may, and finds out.
        3 if !client.lab.stopping() => {
            session.freeze(client, u64::from(timeout_ms) * 3 / 2).await;
            session.abandon();
        }
        _ => session.close(client).await,
    }
}

async fn piece(client: &mut Client, session: &Session) {
    let work: Vec<(Work, u32)> = client.lab.plan.work.iter().map(|(work, share)| (*work, *share)).collect();
    let Ok((work, _)) = work.choose_weighted(&mut client.rng, |(_, share)| *share) else { return };
    match work {
        Work::Lock | Work::ReadWrite | Work::Semaphore | Work::Delay | Work::Joint | Work::Reentry => {
            client.lock_something(session, *work).await;
        }
        Work::Data => client.use_data(session).await,
        Work::Ephemeral => client.use_ephemerals(session).await,
        Work::Gate => client.use_gate(session).await,
        Work::Rate => client.take_permits().await,
        Work::ByHand => client.use_raw_node_ops(session).await,
        Work::Many => client.own_many(session).await,
        Work::Namespace => client.use_namespace(session).await,
        Work::Guest if client.rng.random_bool(0.5) => client.be_guest().await,
        Work::Guest => client.intrude(session).await,
    }
}
