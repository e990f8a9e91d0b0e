//! What is counted of a connection's requests: by operation, looked up once for each.

use std::collections::HashMap;

use lockkeeper_zookeeper::RequestHeader;
use metrics::Counter;

/// The counters of one connection, by the number of the operation.
#[derive(Default)]
pub(super) struct Requests(HashMap<i32, Counter>);

impl Requests {
    /// Counts a request. Numbers that nobody knows are counted together.
    pub(super) fn count(&mut self, header: RequestHeader) {
        let operation = header.operation();
        let number = if operation.is_some() { header.opcode } else { i32::MIN };
        let counter = self.0.entry(number).or_insert_with(|| {
            let name =
                operation.map_or_else(|| "unknown".to_owned(), |operation| format!("{operation:?}").to_lowercase());
            metrics::counter!("lockkeeper_zookeeper_requests_total", "operation" => name)
        });
        counter.increment(1);
    }
}
