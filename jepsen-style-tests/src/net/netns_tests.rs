use super::super::ip::is_up;
use super::*;
use lockkeeper_checkers::skip::skip;
use std::io::{self, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const TASK: &str = "LOCKKEEPER_NETNS_TEST";
const SOON: Duration = Duration::from_secs(20);
/// Silence cannot be waited for; a short look is all that can be had.
const LOOK: Duration = Duration::from_millis(600);

/// Not a test, but this program within a namespace: one end of a connection, between its standard input and its
/// standard error.
#[test]
fn an_end_in_a_namespace() {
    let Ok(task) = std::env::var(TASK) else { return };
    let (verb, address) = task.split_once(' ').unwrap();
    let stream = match verb {
        "listen" => {
            let listener = TcpListener::bind(address).unwrap();
            eprint!("!");
            listener.accept().unwrap().0
        }
        _ => TcpStream::connect(address).unwrap(),
    };
    stream.set_nodelay(true).unwrap();
    let mut reading = stream.try_clone().unwrap();
    thread::spawn(move || io::copy(&mut reading, &mut io::stderr()));
    let mut writing = stream;
    // Not `copy`: what is typed goes at once.
    let mut byte = [0; 1];
    while io::stdin().read_exact(&mut byte).is_ok() {
        writing.write_all(&byte).unwrap();
    }
}

struct NamespacePeer {
    child: Child,
    typed: ChildStdin,
    seen: mpsc::Receiver<u8>,
}

impl NamespacePeer {
    fn start(net: &NetnsNet, node: u64, task: String) -> Self {
        let words = net.wrap(node);
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "net::netns::tests::an_end_in_a_namespace", "--nocapture", "--quiet"])
            .env(TASK, task)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (typed, shown): (ChildStdin, ChildStderr) = (child.stdin.take().unwrap(), child.stderr.take().unwrap());
        let (sender, seen) = mpsc::channel();
        thread::spawn(move || {
            BufReader::new(shown).bytes().map_while(Result::ok).try_for_each(|byte| sender.send(byte))
        });
        Self { child, typed, seen }
    }

    fn say(&mut self, what: u8) {
        self.typed.write_all(&[what]).unwrap();
    }

    fn hears(&self, what: u8) {
        assert_eq!(self.seen.recv_timeout(SOON), Ok(what));
    }

    fn hears_nothing(&self) {
        assert_eq!(self.seen.recv_timeout(LOOK), Err(mpsc::RecvTimeoutError::Timeout));
    }
}

impl Drop for NamespacePeer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn every_interface_is_up_once_it_is_laid() {
    if let Some(lacks) = NetnsNet::lacks() {
        return skip(&lacks);
    }
    let net = NetnsNet::start(2).unwrap();
    // All of a namespace, which unlike a look at one interface brings none up.
    let are_up = |place: &str, interfaces: usize| {
        let shown = ip(&["-netns", place, "-o", "link", "show", "type", "veth"]).unwrap();
        assert_eq!(shown.lines().count(), interfaces, "{shown}");
        assert!(shown.lines().all(is_up), "{shown}");
    };
    are_up(&net.hub(), 3);
    (1..=2).for_each(|place| are_up(&net.namespace(place), 1));
    let uplinks = ip(&["-o", "link", "show", "type", "veth"]).unwrap();
    assert!(uplinks.lines().any(|line| line.contains(&format!(" {}@", net.uplink())) && is_up(line)), "{uplinks}");
    net.add_node(3, None).await.unwrap();
    are_up(&net.namespace(3), 1);
    net.set(Endpoint::Clients, 3, LinkFault::Cut).await.unwrap();
    // The end of the third node's, and both of the sink.
    are_up(&net.hub(), 6);
}

#[tokio::test]
async fn packets_vanish_one_way_and_are_counted() {
    if let Some(lacks) = NetnsNet::lacks() {
        return skip(&lacks);
    }
    let net = NetnsNet::start(2).unwrap();
    let mut b = NamespacePeer::start(&net, 2, format!("listen {}", net.listens(2, Listener::Peer)));
    b.hears(b'!');
    let mut a = NamespacePeer::start(&net, 1, format!("connect {}", net.address(Endpoint::Node(1), 2, Listener::Peer)));
    a.say(b'1');
    b.hears(b'1');

    net.set(Endpoint::Node(1), 2, LinkFault::Cut).await.unwrap();
    a.say(b'2');
    b.hears_nothing();
    b.say(b'3');
    a.hears(b'3');
    assert!(net.passed(Endpoint::Node(1), 2).await.held > 0);
    assert_eq!(net.passed(Endpoint::Node(2), 1).await.held, 0);

    net.heal().await.unwrap();
    b.hears(b'2');
    let slow = LinkFault::Slow { delay: Duration::ZERO, jitter: Duration::ZERO, bytes_per_s: 1 };
    assert!(matches!(net.set(Endpoint::Node(1), 2, slow).await, Err(Failed::CannotRun(_))));
    let name = net.name.clone();
    drop((a, b, net));
    assert!(!namespaces().unwrap().iter().any(|left| left.starts_with(&name)), "nothing is left behind");
}

#[tokio::test]
async fn clients_lose_a_node_and_the_harness_does_not() {
    if let Some(lacks) = NetnsNet::lacks() {
        return skip(&lacks);
    }
    let net = NetnsNet::start(1).unwrap();
    let (clients, harness) = (net.address(Endpoint::Clients, 1, Listener::Client), net.unhindered(1));
    // Nobody listens: refused is reached.
    let reach = |address: &SocketAddr| {
        let attempt = TcpStream::connect_timeout(address, Duration::from_millis(400));
        attempt.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    assert!(reach(&clients) && reach(&harness));
    net.set(Endpoint::Clients, 1, LinkFault::Cut).await.unwrap();
    assert!(!reach(&clients) && reach(&harness));
    net.heal().await.unwrap();
    net.set_answers(1, LinkFault::Cut).await.unwrap();
    assert!(!reach(&clients) && reach(&harness));
    assert!(net.passed_answers(1).await.held > 0);
}

#[test]
fn what_a_dead_process_left_behind_is_swept() {
    if let Some(lacks) = NetnsNet::lacks() {
        return skip(&lacks);
    }
    // Or a network that is started meanwhile sweeps it.
    let _turn = one_at_a_time().unwrap();
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let left = format!("{PREFIX}{}-128-hub", gone.id());
    ip(&["netns", "add", &left]).unwrap();
    sweep().unwrap();
    assert!(!namespaces().unwrap().contains(&left));
}
