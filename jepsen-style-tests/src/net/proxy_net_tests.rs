use super::*;
use std::io;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

const A: Endpoint = Endpoint::Node(1);
const B: Endpoint = Endpoint::Node(2);
/// Silence cannot be waited for; a short look is all that can be had.
const LOOK: Duration = Duration::from_millis(100);

/// A node: each connection to its peer listener is handed over.
fn node(net: &ProxyNet, id: u64) -> mpsc::Receiver<TcpStream> {
    let (sender, arrived) = mpsc::channel(16);
    let address = net.listens(id, Listener::Peer);
    let listener = std::net::TcpListener::bind(address).unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = sender.send(stream).await;
        }
    });
    arrived
}

struct Pairs {
    net: ProxyNet,
    /// The connection that node 1 opened to node 2, at either end.
    by_a: (TcpStream, TcpStream),
    /// The one that node 2 opened to node 1.
    by_b: (TcpStream, TcpStream),
    at_b: mpsc::Receiver<TcpStream>,
}

async fn pairs() -> Pairs {
    let net = ProxyNet::start(2).await.unwrap();
    let (mut at_a, mut at_b) = (node(&net, 1), node(&net, 2));
    let a_opens = TcpStream::connect(net.address(A, 2, Listener::Peer)).await.unwrap();
    let b_opens = TcpStream::connect(net.address(B, 1, Listener::Peer)).await.unwrap();
    let (b_took, a_took) = (at_b.recv().await.unwrap(), at_a.recv().await.unwrap());
    Pairs { net, by_a: (a_opens, b_took), by_b: (b_opens, a_took), at_b }
}

async fn passes(from: &mut TcpStream, to: &mut TcpStream) -> io::Result<()> {
    from.write_all(b"ping").await?;
    arrives(to).await
}

async fn arrives(to: &mut TcpStream) -> io::Result<()> {
    let mut seen = [0; 4];
    to.read_exact(&mut seen).await?;
    assert_eq!(&seen, b"ping");
    Ok(())
}

async fn is_silent(stream: &mut TcpStream) -> bool {
    let mut byte = [0; 1];
    tokio::time::timeout(LOOK, stream.read(&mut byte)).await.is_err()
}

#[tokio::test]
async fn a_one_way_cut_stops_what_one_sends_on_the_connections_of_both_and_nothing_else() {
    let Pairs { net, by_a: (mut a, mut b), by_b: (mut b2, mut a2), .. } = pairs().await;
    for (from, to) in [(&mut a, &mut b), (&mut b2, &mut a2)] {
        passes(from, to).await.unwrap();
        passes(to, from).await.unwrap();
    }
    net.set(A, 2, LinkFault::Cut).await.unwrap();
    a.write_all(b"ping").await.unwrap();
    a2.write_all(b"ping").await.unwrap();
    assert!(is_silent(&mut b).await && is_silent(&mut b2).await);
    passes(&mut b, &mut a).await.unwrap();
    passes(&mut b2, &mut a2).await.unwrap();
    assert_eq!(net.passed(A, 2).await, Passed { bytes: 8, held: 8, reset: 0 });
    assert_eq!(net.passed(B, 1).await, Passed { bytes: 16, held: 0, reset: 0 });
    net.heal().await.unwrap();
    arrives(&mut b).await.unwrap();
    arrives(&mut b2).await.unwrap();
}

#[tokio::test]
async fn no_connection_comes_about_across_a_cut_and_one_given_up_never_does() {
    let Pairs { net, mut at_b, .. } = pairs().await;
    // A greeting of node 1 would be answered, but node 2's answers do not get there.
    net.set(B, 1, LinkFault::Cut).await.unwrap();
    let mut given_up = TcpStream::connect(net.address(A, 2, Listener::Peer)).await.unwrap();
    given_up.write_all(b"gone").await.unwrap();
    drop(given_up);
    let mut patient = TcpStream::connect(net.address(A, 2, Listener::Peer)).await.unwrap();
    patient.write_all(b"ping").await.unwrap();
    assert!(tokio::time::timeout(LOOK, at_b.recv()).await.is_err());
    assert!(net.passed(B, 1).await.held > 0);
    net.heal().await.unwrap();
    arrives(&mut at_b.recv().await.unwrap()).await.unwrap();
    assert!(tokio::time::timeout(LOOK, at_b.recv()).await.is_err());
}

#[tokio::test]
async fn the_end_of_a_connection_is_held_like_everything_else() {
    let Pairs { net, by_a: (a, mut b), .. } = pairs().await;
    net.set(A, 2, LinkFault::Cut).await.unwrap();
    drop(a);
    assert!(is_silent(&mut b).await);
    net.heal().await.unwrap();
    assert_eq!(b.read(&mut [0; 1]).await.unwrap(), 0);
}

#[tokio::test]
async fn half_closed_goes_on_the_other_way() {
    let Pairs { by_a: (mut a, mut b), net: _net, .. } = pairs().await;
    a.shutdown().await.unwrap();
    assert_eq!(b.read(&mut [0; 1]).await.unwrap(), 0);
    passes(&mut b, &mut a).await.unwrap();
}

#[tokio::test]
async fn resets_both_ends_and_heals() {
    let Pairs { net, by_a: (mut a, mut b), mut at_b, .. } = pairs().await;
    net.set(A, 2, LinkFault::Reset).await.unwrap();
    for end in [&mut a, &mut b] {
        assert_eq!(end.read(&mut [0; 1]).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
    let mut again = TcpStream::connect(net.address(A, 2, Listener::Peer)).await.unwrap();
    assert_eq!(again.read(&mut [0; 1]).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(net.passed(A, 2).await.reset, 3, "two connections and an attempt");
    net.heal().await.unwrap();
    let mut healed = TcpStream::connect(net.address(A, 2, Listener::Peer)).await.unwrap();
    passes(&mut healed, &mut at_b.recv().await.unwrap()).await.unwrap();
}

#[tokio::test]
async fn half_open_one_end_knows_of_nothing_until_healed() {
    let Pairs { net, by_a: (mut a, mut b), .. } = pairs().await;
    net.set(A, 2, LinkFault::HalfOpen).await.unwrap();
    assert!(b.read(&mut [0; 1]).await.is_err());
    a.write_all(b"lost").await.unwrap();
    assert!(is_silent(&mut a).await);
    assert!(net.passed(A, 2).await.held >= 4);
    net.heal().await.unwrap();
    assert!(a.read(&mut [0; 1]).await.is_err());
}

#[tokio::test]
async fn slow_delays_each_way_by_itself_keeps_the_order_and_bounds_the_rate() {
    let Pairs { net, by_a: (mut a, mut b), .. } = pairs().await;
    let delay = Duration::from_millis(80);
    net.set(A, 2, LinkFault::Slow { delay, jitter: Duration::from_millis(40), bytes_per_s: 0 }).await.unwrap();
    let begun = Instant::now();
    passes(&mut a, &mut b).await.unwrap();
    assert!(begun.elapsed() >= delay, "{:?}", begun.elapsed());
    passes(&mut b, &mut a).await.unwrap();
    let numbers: Vec<u8> = (0..50).collect();
    for number in &numbers {
        a.write_all(&[*number]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut seen = vec![0; numbers.len()];
    b.read_exact(&mut seen).await.unwrap();
    assert_eq!(seen, numbers);
    assert!(net.passed(A, 2).await.held >= 54);

    net.set(A, 2, LinkFault::Slow { delay: Duration::ZERO, jitter: Duration::ZERO, bytes_per_s: 100_000 })
        .await
        .unwrap();
    let begun = Instant::now();
    let (sent, mut got) = (vec![7; 20_000], vec![0; 20_000]);
    let (write, read) = tokio::join!(a.write_all(&sent), b.read_exact(&mut got));
    write.unwrap();
    read.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(180), "{:?}", begun.elapsed());
    // What is under way when a slow link heals arrives at once.
    net.set(A, 2, LinkFault::Slow { delay: Duration::from_secs(60), jitter: Duration::ZERO, bytes_per_s: 0 })
        .await
        .unwrap();
    a.write_all(b"ping").await.unwrap();
    assert!(is_silent(&mut b).await);
    net.heal().await.unwrap();
    arrives(&mut b).await.unwrap();
}

#[tokio::test]
async fn one_that_joined_later_is_reached_by_name_and_cut_off_by_name() {
    let net = ProxyNet::start(2).await.unwrap();
    net.add_node(3, None).await.unwrap();
    let mut at_c = node(&net, 3);
    let address = net.address(A, 3, Listener::Peer);
    assert_eq!(address, net.address(B, 3, Listener::Peer));
    net.set(A, 3, LinkFault::Cut).await.unwrap();
    let hello = |from: u64| format!("GET /peer/v1/calls HTTP/1.1\r\nLockkeeper-From: {from}\r\n\r\n");
    let mut open = Vec::new();
    for from in [1, 2] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(hello(from).as_bytes()).await.unwrap();
        open.push(stream);
    }
    for from in [2, 1] {
        let mut seen = vec![0; hello(from).len()];
        at_c.recv().await.unwrap().read_exact(&mut seen).await.unwrap();
        assert_eq!(String::from_utf8(seen).unwrap(), hello(from));
        net.heal().await.unwrap();
    }
}

#[tokio::test]
async fn one_in_the_place_of_another_is_reached_where_that_was() {
    let net = ProxyNet::start(2).await.unwrap();
    let of = |node| {
        Listener::FOR_CLIENTS
            .map(|listener| (net.address(Endpoint::Clients, node, listener), net.listens(node, listener)))
    };
    let before = of(1);
    net.add_node(3, Some(1)).await.unwrap();
    assert_eq!(of(3), before);
    net.set(Endpoint::Clients, 3, LinkFault::Reset).await.unwrap();
    for (address, _) in before {
        let mut refused = TcpStream::connect(address).await.unwrap();
        assert!(refused.read(&mut [0; 1]).await.is_err());
    }
    assert_eq!(net.passed(Endpoint::Clients, 3).await.reset, 2);
}

#[tokio::test]
async fn each_door_leads_to_its_own_and_a_fault_is_on_all_of_them() {
    let net = ProxyNet::start(1).await.unwrap();
    let mut known = std::collections::BTreeSet::new();
    for kind in Listener::FOR_CLIENTS {
        let listener = TcpListener::bind(net.listens(1, kind)).await.unwrap();
        let address = net.address(Endpoint::Clients, 1, kind);
        assert_eq!(net.address(Endpoint::Node(1), 1, kind), address, "what a node is told of it is for clients");
        assert!(known.insert(address) && known.insert(net.listens(1, kind)));
        let mut near = TcpStream::connect(address).await.unwrap();
        let mut far = listener.accept().await.unwrap().0;
        passes(&mut near, &mut far).await.unwrap();
        net.set(Endpoint::Clients, 1, LinkFault::Cut).await.unwrap();
        near.write_all(b"ping").await.unwrap();
        assert!(is_silent(&mut far).await);
        net.heal().await.unwrap();
        arrives(&mut far).await.unwrap();
    }
}
