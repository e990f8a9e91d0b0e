//! Follows a watch stream (`GET /v1/watch`) at one node and resumes it when the connection breaks. A change may come
//! twice around a reconnection, but is never missed.

use std::time::{Duration, Instant};

use futures::StreamExt as _;
use lockkeeper_api::watch::{Bookmark, Change};
use tokio::sync::mpsc;

use crate::http::Api;

/// What a follower reports.
#[derive(Clone, Debug)]
pub enum StreamItem {
    /// A change, and when it was here.
    Change(Change, Instant),
    /// The history did not reach back far enough: events may have been missed, and the server said so.
    Compacted(String),
}

/// Follows `path` recursively at one node from `from` on, until the receiver goes. A node that is down is asked again.
pub fn follow(api: Api, path: String, from: u64) -> mpsc::UnboundedReceiver<StreamItem> {
    let (seen, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut position = from;
        while !seen.is_closed() {
            if let Some(end) = one_connection(&api, &path, &mut position, &seen).await {
                let _ = seen.send(end);
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    receiver
}

async fn one_connection(
    api: &Api,
    path: &str,
    position: &mut u64,
    seen: &mpsc::UnboundedSender<StreamItem>,
) -> Option<StreamItem> {
    let url = format!("{}/v1/watch?path={path}&recursive=true&from={position}", api.base());
    let response = api.client().get(url).send().await.ok()?;
    if response.status().as_u16() == 410 {
        return Some(StreamItem::Compacted(response.text().await.unwrap_or_default()));
    }
    if !response.status().is_success() {
        return None;
    }
    let mut messages = Messages::default();
    let mut body = response.bytes_stream();
    loop {
        let chunk = tokio::select! {
            chunk = body.next() => chunk?.ok()?,
            () = seen.closed() => return None,
        };
        let here = Instant::now();
        for (name, data) in messages.take(&chunk) {
            match name.as_str() {
                "change" => {
                    let change: Change = serde_json::from_str(&data).ok()?;
                    // Not its own zxid: more changes of the same one may follow, and the connection may end between
                    // them.
                    *position = (*position).max(change.zxid.saturating_sub(1));
                    let _ = seen.send(StreamItem::Change(change, here));
                }
                "bookmark" => *position = serde_json::from_str::<Bookmark>(&data).ok()?.zxid,
                "compacted" => return Some(StreamItem::Compacted(data)),
                _ => {}
            }
        }
    }
}

/// Cuts a byte stream into server-sent events.
#[derive(Default)]
struct Messages {
    pending: Vec<u8>,
}

impl Messages {
    fn take(&mut self, chunk: &[u8]) -> Vec<(String, String)> {
        self.pending.extend_from_slice(chunk);
        let mut found = Vec::new();
        while let Some(end) = self.pending.windows(2).position(|pair| pair == b"\n\n") {
            let message: Vec<u8> = self.pending.drain(..end + 2).collect();
            found.push(parse(&String::from_utf8_lossy(&message)));
        }
        found
    }
}

fn parse(message: &str) -> (String, String) {
    let (mut name, mut data) = (String::new(), String::new());
    for line in message.lines() {
        if let Some(value) = line.strip_prefix("event:") {
            name = value.trim().to_owned();
        } else if let Some(value) = line.strip_prefix("data:") {
            data.push_str(value.trim());
        }
    }
    (name, data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_wherever_the_chunks_end() {
        let text = b": hello\n\nevent: change\nid: 7\ndata: {\"a\":1}\n\nevent: bookmark\ndata: {}\n\n";
        for at in 0..text.len() {
            let mut messages = Messages::default();
            let mut all = messages.take(&text[..at]);
            all.extend(messages.take(&text[at..]));
            let named: Vec<_> = all.iter().filter(|(name, _)| !name.is_empty()).collect();
            assert_eq!(named.len(), 2, "cut at {at}");
            assert_eq!(named[0].1, "{\"a\":1}");
        }
    }
}
