//! What a scripted endpoint is asked over HTTP.

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// The next request, head and body; none when the client has gone.
pub(crate) async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|l| l.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
            if body.len() >= length {
                return Some(text);
            }
        }
        match stream.read(&mut piece).await {
            Ok(count) if count > 0 => bytes.extend_from_slice(&piece[..count]),
            _ => return None,
        }
    }
}
