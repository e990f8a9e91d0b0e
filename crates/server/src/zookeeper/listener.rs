//! Accepts connections of ZooKeeper's clients: so many in all, and so many from one address.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::connection::serve;
use super::door::Door;
use super::figures::Counts;

/// After a failure that is not one client's.
const PAUSE: Duration = Duration::from_millis(200);

/// Accepts until `finish` is cancelled, then gives the connections that are left. Dropping them cuts them off.
pub(super) async fn accept(
    listener: TcpListener,
    door: Arc<Door>,
    most: usize,
    finish: CancellationToken,
) -> JoinSet<()> {
    let slots = Arc::new(Semaphore::new(most));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = finish.cancelled() => return connections,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                let of_one_client =
                    matches!(error.kind(), std::io::ErrorKind::ConnectionAborted | std::io::ErrorKind::ConnectionReset);
                if !of_one_client {
                    tracing::warn!(%error, "cannot accept ZooKeeper's clients at the moment; raise the limit on open files if this goes on");
                    tokio::time::sleep(PAUSE).await;
                }
                continue;
            }
        };
        // Nothing can be said to a client before it has said something: it is closed, as ZooKeeper does.
        let Ok(slot) = slots.clone().try_acquire_owned() else {
            metrics::counter!("lockkeeper_zookeeper_connections_refused_total", "bound" => "all").increment(1);
            Counts::add(&door.counts.rejected, 1);
            continue;
        };
        let Some(entered) = door.enter(address) else {
            metrics::counter!("lockkeeper_zookeeper_connections_refused_total", "bound" => "address").increment(1);
            tracing::warn!(address = %address.ip(), most = door.settings.connections_per_address, "too many connections from one address");
            continue;
        };
        connections.spawn(async move {
            let _slot = slot;
            serve(entered, stream).await;
        });
    }
}
