//! As much of ZooKeeper's protocol as a watch takes (jute: big-endian numbers, strings behind their length).

fn frame(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), body].concat()
}

/// Opens a session of ten seconds.
pub(in crate::proofs) fn hello() -> Vec<u8> {
    let mut body = Vec::new();
    body.extend_from_slice(&0_i32.to_be_bytes());
    body.extend_from_slice(&0_i64.to_be_bytes());
    body.extend_from_slice(&10_000_i32.to_be_bytes());
    body.extend_from_slice(&0_i64.to_be_bytes());
    body.extend_from_slice(&16_i32.to_be_bytes());
    body.extend_from_slice(&[0; 17]);
    frame(&body)
}

/// Asks whether a node exists, and to be told when that changes.
pub(in crate::proofs) fn exists(xid: i32, path: &str, watch: bool) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend_from_slice(&xid.to_be_bytes());
    body.extend_from_slice(&3_i32.to_be_bytes());
    body.extend_from_slice(&u32::try_from(path.len()).unwrap_or(0).to_be_bytes());
    body.extend_from_slice(path.as_bytes());
    body.push(u8::from(watch));
    frame(&body)
}
