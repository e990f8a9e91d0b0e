//! Operations of one caller in their order, and an observer that gets each event before the answer to its command: what
//! the ZooKeeper frontend needs.

use std::sync::{Arc, Mutex};

use lockkeeper_core::{Actor, Event, NodeKind, Op, Refusal, Reply, State, Zxid};
use lockkeeper_node::{Credential, NodeError, Observer};
use tokio::sync::oneshot;

use crate::common::*;

/// The deliveries, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Delivered {
    Event(Zxid, String),
    Answer(usize, Zxid),
    Jump,
}

#[derive(Clone, Default)]
struct RecordingObserver(Arc<Mutex<Vec<Delivered>>>);

impl Observer for RecordingObserver {
    fn deliver(&self, _: &State, events: &[Event]) {
        let mut delivered = self.0.lock().unwrap();
        for event in events {
            if let Event::Node { zxid, path, .. } = event {
                delivered.push(Delivered::Event(*zxid, path.as_str().to_owned()));
            }
        }
    }

    fn skipped(&self, _: &State) {
        self.0.lock().unwrap().push(Delivered::Jump);
    }
}

fn made(at: &str) -> Op {
    create(at, NodeKind::Persistent, false).into()
}

#[tokio::test]
async fn answers_come_in_turn_and_after_the_events_of_their_changes() {
    let cluster = Cluster::of_three().await;
    for id in [1, 2, 3] {
        let (node, recording) = (cluster.at(id), RecordingObserver::default());
        let observer: Arc<dyn Observer> = Arc::new(recording.clone());
        node.observe(Arc::downgrade(&observer));
        const REQUESTS: usize = 300;
        let mut waiting = Vec::new();
        for number in 0..REQUESTS {
            // Every third is refused: a refusal is answered in its turn as well.
            let op = made(&format!("/n{id}-{}", number - usize::from(number % 3 == 2)));
            let (done, wait) = oneshot::channel();
            let delivered = recording.0.clone();
            node.submit(Actor::default(), op, move |answered| {
                let at = answered.unwrap();
                delivered.lock().unwrap().push(Delivered::Answer(number, at.zxid));
                let _ = done.send(at.value);
            })
            .unwrap();
            waiting.push(wait);
        }
        for (number, wait) in waiting.into_iter().enumerate() {
            match wait.await.unwrap() {
                Ok(Reply::Created { .. }) => assert_ne!(number % 3, 2),
                Err(Refusal::NodeExists(_)) => assert_eq!(number % 3, 2),
                other => panic!("{other:?}"),
            }
        }
        let delivered = recording.0.lock().unwrap().clone();
        let answers: Vec<usize> = delivered
            .iter()
            .filter_map(|delivered| if let Delivered::Answer(number, _) = delivered { Some(*number) } else { None })
            .collect();
        assert_eq!(answers, (0..REQUESTS).collect::<Vec<_>>());
        // Read from the front, zxids never go back: no event comes after the answer to its change.
        let zxids: Vec<Zxid> = delivered
            .iter()
            .filter_map(|delivered| match delivered {
                Delivered::Event(zxid, _) | Delivered::Answer(_, zxid) => Some(*zxid),
                Delivered::Jump => None,
            })
            .collect();
        assert!(zxids.is_sorted(), "{delivered:?}");
        for (at, delivery) in delivered.iter().enumerate() {
            let Delivered::Answer(number, zxid) = delivery else { continue };
            let event = Delivered::Event(*zxid, format!("/n{id}-{number}"));
            assert_eq!(delivered[..at].contains(&event), number % 3 != 2, "{delivery:?}");
        }
    }
}

#[tokio::test]
async fn what_comes_over_an_older_attachment_is_refused() {
    let cluster = Cluster::of_three().await;
    let (here, there) = (cluster.at(1), cluster.at(2));
    let mine = session(here, 10_000).await;
    let first = Zxid(mine.session.0);
    let second = there.attach(&mine).await.unwrap().value.attachment;
    assert!(second > first);
    let mut secret = *mine.secret();
    secret[0] ^= 1;
    let wrong = Credential::new(mine.session, secret);
    assert!(matches!(there.attach(&wrong).await, Err(NodeError::WrongSecret)));
    for (attachment, moved) in [(Some(first), true), (Some(second), false), (None, false)] {
        let actor = Actor { session: Some(mine.session), attachment, ..Actor::default() };
        let (done, wait) = oneshot::channel();
        here.submit(actor, made(&format!("/by-{attachment:?}")), move |answered| {
            let _ = done.send(answered.unwrap().value);
        })
        .unwrap();
        match wait.await.unwrap() {
            Ok(Reply::Created { .. }) => assert!(!moved),
            Err(Refusal::SessionMoved(session)) => assert!(moved && session == mine.session),
            other => panic!("{other:?}"),
        }
    }
}
