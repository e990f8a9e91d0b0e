//! Clients that watch from a point on, over one node after another, for the whole run. After any failure they resume
//! from the last event that they got.

use std::time::Duration;

use lockkeeper_core::{NodePath, State, Zxid};
use lockkeeper_node::{NodeError, WatchItem, WatchSpec};
use rand::Rng;
use rand::seq::IndexedRandom;

use super::attempt::TRY;
use super::{Client, Outcome};
use crate::checkers::Checkers;
use crate::checks::Check;

/// What is watched.
const PLACES: [(&str, bool); 6] =
    [("/", true), ("/locks", true), ("/locks/x/0", false), ("/members", false), ("/data", true), ("/gates", true)];

/// Watches until the world ends.
pub(super) async fn follow(mut client: Client, number: u64) {
    let (place, recursive) = *PLACES.choose(&mut client.rng).unwrap_or(&PLACES[0]);
    let Ok(path) = NodePath::parse(place) else { return };
    let mut from = read_point(&mut client).await;
    loop {
        client.watched(number, from);
        let spec = WatchSpec { path: path.clone(), recursive, from: Some(Zxid(from)) };
        let wanted = spec.clone();
        let opened =
            client.lab.net.listen(client.node(), TRY, move |node| async move { node.watch(wanted).await }).await;
        match opened {
            Ok(Ok(mut incoming)) => {
                let patience_ms = client.rng.random_range(100..=8_000);
                let listening = listen(&client, number, &spec, &mut from, &mut incoming);
                // Sometimes it is the client that begins anew.
                let ended = tokio::time::timeout(Duration::from_millis(patience_ms), listening).await;
                match ended {
                    // That node said that it can go on from here: so it must.
                    Ok(Ended::CanResume) | Err(_) => {}
                    Ok(Ended::Broken) => client.move_on(),
                }
            }
            Ok(Err(NodeError::Compacted { oldest })) => {
                client.lab.count("watch", Outcome::Refused);
                let compacted = |it: &mut Checkers| it.watches.compacted(&spec, from, oldest.0);
                client.lab.checkers.lock().judge(Check::Watches, compacted);
                from = read_point(&mut client).await;
            }
            Ok(Err(NodeError::Fatal(why))) => {
                let what = format!("a watch was told that the node has failed: {why}");
                client.lab.checkers.lock().broken(Check::Fatal, what);
            }
            Ok(Err(_)) | Err(_) => {
                client.lab.count("watch", Outcome::Failed);
                client.move_on();
            }
        }
        client.pause_between_tries().await;
    }
}

/// Why a watch is over.
enum Ended {
    /// The node says that it has lost the thread, and can take it up where the watch has come to.
    CanResume,
    Broken,
}

async fn listen(
    client: &Client,
    number: u64,
    spec: &WatchSpec,
    from: &mut u64,
    incoming: &mut crate::Incoming<WatchItem>,
) -> Ended {
    while let Some(Ok(item)) = incoming.next().await {
        client.lab.count("watch", Outcome::Ok);
        let received = client.lab.checkers.lock().watch_received(spec, *from, &item);
        match (received, &item) {
            (_, WatchItem::Lost { oldest }) if oldest.0 <= *from => return Ended::CanResume,
            (Some(received), _) if !received.lost => {
                *from = received.up_to;
                client.watched(number, *from);
            }
            _ => return Ended::Broken,
        }
    }
    Ended::Broken
}

/// A point from which to watch: everything before it has been read.
async fn read_point(client: &mut Client) -> u64 {
    loop {
        if let Some(at) = client.read("read point", |_: &State| ()).await {
            return at.zxid.0;
        }
    }
}
