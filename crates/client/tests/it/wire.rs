//! A wire between a client and a node that can be cut and mended, swallow what the node says, and hold up one request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_client::{Client, Options, Session, SessionOptions, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

/// Options of a client that soon gives up.
pub(crate) fn impatient() -> Options {
    Options { attempt_timeout: Duration::from_millis(300), patience: Duration::from_millis(600), ..Options::default() }
}

/// See the module's text.
pub(crate) struct Wire {
    pub(crate) address: String,
    switches: Arc<Switches>,
}

struct Switches {
    target: Mutex<String>,
    cut: watch::Sender<bool>,
    disconnect: Notify,
    mute: AtomicBool,
    /// The text in the request to hold up.
    hold: Mutex<Option<&'static str>>,
    let_go: Notify,
    came_late: Notify,
    /// What the client has said.
    said: Mutex<String>,
}

impl Wire {
    pub(crate) async fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let switches = Arc::new(Switches {
            target: Mutex::new(target.trim_start_matches("http://").to_owned()),
            cut: watch::Sender::new(false),
            disconnect: Notify::new(),
            mute: AtomicBool::new(false),
            hold: Mutex::default(),
            let_go: Notify::new(),
            came_late: Notify::new(),
            said: Mutex::default(),
        });
        let wire = Self { address, switches: switches.clone() };
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                if !*switches.cut.borrow() {
                    tokio::spawn(carry(near, switches.clone()));
                }
            }
        });
        wire
    }

    /// A session over this wire, which is soon out of patience and yet lives long: nothing in a test is freed by its
    /// end.
    pub(crate) async fn session(&self, transport: Transport) -> Session {
        let client = Client::new([&self.address], impatient()).unwrap();
        let options = SessionOptions { timeout: Duration::from_secs(60), transport, ..SessionOptions::default() };
        Session::open(&client, &options).await.unwrap()
    }

    /// Closes every connection, and each new one at once.
    pub(crate) fn cut(&self) {
        self.switches.cut.send_replace(true);
    }

    /// Closes every connection; new ones can be made.
    pub(crate) fn disconnect(&self) {
        self.switches.disconnect.notify_waiters();
    }

    /// Closes every connection; new ones lead to that node.
    pub(crate) fn lead_to(&self, target: &str) {
        *self.switches.target.lock().unwrap() = target.trim_start_matches("http://").to_owned();
        self.disconnect();
    }

    pub(crate) fn mend(&self) {
        self.switches.mute.store(false, Ordering::SeqCst);
        self.switches.cut.send_replace(false);
    }

    /// From now on drops what the cluster says, for good on each connection on which it says something.
    pub(crate) fn mute(&self) {
        self.switches.mute.store(true, Ordering::SeqCst);
    }

    /// Holds up the next request that contains this text, and cuts the wire at that moment.
    pub(crate) fn hold(&self, what: &'static str) {
        *self.switches.hold.lock().unwrap() = Some(what);
    }

    /// How often the client has said this, in pieces as they came.
    pub(crate) fn carried(&self, what: &str) -> usize {
        self.switches.said.lock().unwrap().matches(what).count()
    }

    /// Sends the request that was held up, and waits until it has been answered.
    pub(crate) async fn let_go(&self) {
        self.switches.let_go.notify_one();
        self.switches.came_late.notified().await;
    }
}

impl Switches {
    fn holds(&self, said: &[u8]) -> bool {
        let mut hold = self.hold.lock().unwrap();
        let is_it = hold.is_some_and(|what| String::from_utf8_lossy(said).contains(what));
        if is_it {
            *hold = None;
        }
        is_it
    }

    async fn connect(&self) -> std::io::Result<TcpStream> {
        let target = self.target.lock().unwrap().clone();
        TcpStream::connect(target).await
    }

    async fn say_late(&self, said: &[u8]) {
        self.let_go.notified().await;
        let mut far = self.connect().await.unwrap();
        far.write_all(said).await.unwrap();
        assert!(far.read(&mut [0; 4_096]).await.unwrap() > 0);
        self.came_late.notify_one();
    }
}

async fn carry(near: TcpStream, switches: Arc<Switches>) {
    let Ok(far) = switches.connect().await else { return };
    let ((mut from_near, mut to_near), (mut from_far, mut to_far)) = (near.into_split(), far.into_split());
    let mut is_cut = switches.cut.subscribe();
    let forth = async {
        let mut piece = vec![0; 65_536];
        while let Ok(length @ 1..) = from_near.read(&mut piece).await {
            switches.said.lock().unwrap().push_str(&String::from_utf8_lossy(&piece[..length]));
            if switches.holds(&piece[..length]) {
                let mut said = piece[..length].to_vec();
                // All of it: its body is an object.
                while !said.ends_with(b"}") {
                    let length = from_near.read(&mut piece).await.unwrap();
                    said.extend_from_slice(&piece[..length]);
                }
                let late = switches.clone();
                tokio::spawn(async move { late.say_late(&said).await });
                switches.cut.send_replace(true);
                return;
            }
            if to_far.write_all(&piece[..length]).await.is_err() {
                return;
            }
        }
    };
    let back = async {
        let mut piece = vec![0; 65_536];
        while let Ok(length @ 1..) = from_far.read(&mut piece).await {
            if switches.mute.load(Ordering::SeqCst) {
                // Something is missing now: the connection is mute for good.
                while let Ok(1..) = from_far.read(&mut piece).await {}
                return;
            }
            if to_near.write_all(&piece[..length]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = forth => {}
        () = back => {}
        _ = is_cut.wait_for(|cut| *cut) => {}
        () = switches.disconnect.notified() => {}
    }
}
