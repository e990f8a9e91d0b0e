//! Accepts connections of ZooKeeper clients, within a limit in all and one per address, over both listeners together.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_service::socket::is_local;
use lockkeeper_service::tls::TlsListener;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::connection::serve;
use super::frontend::Frontend;
use super::metrics::Counts;

/// Pause after accepting failed for a reason that is not one client's.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// Accepts until `finish` is cancelled, then returns the connections still open. Dropping these closes them.
pub(super) async fn accept(
    listener: TcpListener,
    tls: Option<TlsListener>,
    frontend: Arc<Frontend>,
    slots: Arc<Semaphore>,
    finish: CancellationToken,
) -> JoinSet<()> {
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
                    tracing::warn!(
                        %error,
                        "cannot accept ZooKeeper clients; if this continues, raise the limit on open files"
                    );
                    tokio::time::sleep(RETRY_AFTER).await;
                }
                continue;
            }
        };
        // The protocol has no reply before the connect request: close the connection, as ZooKeeper does.
        let Ok(slot) = slots.clone().try_acquire_owned() else {
            metrics::counter!("lockkeeper_zookeeper_connections_refused_total", "bound" => "all").increment(1);
            Counts::add(&frontend.counts.rejected, 1);
            continue;
        };
        let Some(registered) = frontend.register(address, is_local(&stream, address)) else {
            metrics::counter!("lockkeeper_zookeeper_connections_refused_total", "bound" => "address").increment(1);
            let most = frontend.settings.connections_per_address;
            tracing::warn!(address = %address.ip(), most, "too many connections from one address");
            continue;
        };
        let tls = tls.clone();
        connections.spawn(async move {
            let _slot = slot;
            serve(registered, stream, tls).await;
        });
    }
}
