//! The answer to a client that speaks HTTP without TLS to a port with TLS.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longest time for a client without TLS to read the hint.
const HINT_TIMEOUT: Duration = Duration::from_secs(1);
/// Most bytes that are read of its request meanwhile.
const HINT_READS_BYTES: u64 = 64 * 1024;

/// Answers a client that speaks HTTP without TLS, and lets it read the answer.
pub(crate) async fn hint_at_https(mut stream: TcpStream) {
    const HINT: &str = "this port speaks TLS: use https\n";
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{HINT}",
        HINT.len()
    );
    let answering = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        // Closing with the request unread would reset the connection before the client reads the answer.
        tokio::io::copy(&mut stream.take(HINT_READS_BYTES), &mut tokio::io::sink()).await
    };
    // The client is gone, or reads nothing.
    let _ = timeout(HINT_TIMEOUT, answering).await;
}
