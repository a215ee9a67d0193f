//! Ranks as threads, with a handler that remembers what it was told.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

pub(crate) use nuvec_transport::conformance::{recv_all, send_all};
use nuvec_transport::{Channel, ControlHandler, Deadline, Error, GroupId, LinkId, Outbox, Peer, Result, Sender};
use nuvec_transport_tcp::{Address, Options, TcpChannel, TcpFabric, connect, connect_with_listeners};

/// The longest that any wait of these tests lasts.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What a handler was told, in order.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) up: Vec<(LinkId, usize)>,
    pub(crate) messages: Vec<(LinkId, Vec<u8>)>,
    pub(crate) ended: Vec<(LinkId, String)>,
    pub(crate) failed: Vec<String>,
    pub(crate) ticks: usize,
    /// Whether it has told others that forming failed, and tells whoever comes later.
    outspoken: bool,
    /// What the next call sends.
    pub(crate) outbox: Vec<(LinkId, Vec<u8>)>,
}

/// A handler that remembers.
#[derive(Clone, Default)]
pub(crate) struct Notes {
    pub(crate) told: Arc<Mutex<Told>>,
    /// As collectives do: tells both neighbours that forming failed; passes that on, and fails with it.
    pub(crate) outspoken: bool,
    /// What must be the same on every rank.
    pub(crate) agreement: u32,
}

impl Notes {
    fn note(&self, out: &mut Outbox, note: impl FnOnce(&mut Told)) {
        let mut told = self.told.lock().unwrap();
        note(&mut told);
        out.messages.append(&mut told.outbox);
    }

    /// Waits until `done` holds of what was told.
    pub(crate) fn wait(&self, what: &str, done: impl Fn(&Told) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(&self.told.lock().unwrap()) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.told.lock().unwrap());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl ControlHandler for Notes {
    fn begin(&mut self, _: usize, _: &[Peer], _: Duration) -> u32 {
        self.agreement
    }

    fn link_up(&mut self, link: LinkId, peer: &Peer, _: Duration, out: &mut Outbox) {
        if self.outspoken && self.told.lock().unwrap().outspoken {
            out.messages.push((link, b"failed".to_vec()));
        }
        self.note(out, |told| told.up.push((link, peer.rank)));
    }

    fn message(&mut self, link: LinkId, message: &[u8], _: Duration, out: &mut Outbox) {
        if self.outspoken && message == b"failed" {
            out.messages.push((LinkId(1 - link.0), b"failed".to_vec()));
            let error = Error::new(nuvec_transport::Kind::Mismatch, "said that it failed");
            out.poisoned.push((GroupId::ROOT, error));
            self.told.lock().unwrap().outspoken = true;
        }
        self.note(out, |told| told.messages.push((link, message.to_vec())));
    }

    fn link_ended(&mut self, link: LinkId, why: &Error, _: Duration, out: &mut Outbox) {
        self.note(out, |told| told.ended.push((link, why.to_string())));
    }

    fn forming_failed(&mut self, why: &Error, _: Duration, out: &mut Outbox) {
        if self.outspoken {
            out.messages.extend([LinkId(0), LinkId(1)].map(|link| (link, b"failed".to_vec())));
            self.told.lock().unwrap().outspoken = true;
        }
        self.note(out, |told| told.failed.push(why.to_string()));
    }

    fn tick(&mut self, _: Duration, out: &mut Outbox) {
        self.note(out, |told| told.ticks += 1);
    }
}

/// Listeners of one rank, on ports that the system chose.
pub(crate) fn listeners(host: &str, connections: usize) -> Vec<TcpListener> {
    (0..connections).map(|_| TcpListener::bind((host, 0)).unwrap()).collect()
}

/// The addresses of these listeners.
pub(crate) fn addresses(host: &str, listeners: &[TcpListener]) -> Vec<Address> {
    listeners.iter().map(|l| Address::new(host, l.local_addr().unwrap().port())).collect()
}

/// A group that is about to form.
pub(crate) struct Group {
    pub(crate) nodes: Vec<Vec<Address>>,
    pub(crate) listeners: Vec<Option<Vec<TcpListener>>>,
    pub(crate) notes: Vec<Notes>,
    pub(crate) options: Vec<Options>,
    /// Keeps the ports of ranks that never start, so that nobody else listens there.
    held: Vec<Reserved>,
}

impl Group {
    pub(crate) fn new(host: &str, size: usize, connections: usize) -> Self {
        let listeners: Vec<_> = (0..size).map(|_| listeners(host, connections)).collect();
        Self {
            nodes: listeners.iter().map(|l| addresses(host, l)).collect(),
            listeners: listeners.into_iter().map(Some).collect(),
            notes: (0..size).map(|_| Notes::default()).collect(),
            options: vec![Options::default().timeout(PATIENCE); size],
            held: Vec::new(),
        }
    }

    pub(crate) fn options(mut self, options: Options) -> Self {
        self.options.fill(options);
        self
    }

    /// Closes a rank's listeners: it never starts.
    pub(crate) fn without(mut self, rank: usize) -> Self {
        for listener in self.listeners[rank].take().unwrap() {
            let address = listener.local_addr().unwrap();
            drop(listener);
            self.held.push(Reserved::at(address));
        }
        self
    }

    /// Takes a rank's one listener and keeps its port: nobody listens there for now.
    pub(crate) fn hold(&mut self, rank: usize) -> Reserved {
        let listener = self.listeners[rank].take().unwrap().remove(0);
        let address = listener.local_addr().unwrap();
        drop(listener);
        Reserved::at(address)
    }

    /// Connects every rank that has listeners, each on its own thread.
    pub(crate) fn connect(&mut self) -> Vec<Option<Result<TcpFabric>>> {
        let taken: Vec<_> = self.listeners.iter_mut().map(Option::take).collect();
        std::thread::scope(|scope| {
            let threads: Vec<_> = taken
                .into_iter()
                .enumerate()
                .map(|(rank, listeners)| {
                    let (nodes, options, notes) = (&self.nodes, &self.options[rank], self.notes[rank].clone());
                    listeners.map(|listeners| {
                        scope.spawn(move || connect_with_listeners(listeners, nodes, rank, options, Box::new(notes)))
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.map(|t| t.join().unwrap())).collect()
        })
    }

    /// Connects all ranks, which must succeed.
    pub(crate) fn form(mut self) -> Vec<TcpFabric> {
        self.connect().into_iter().map(|rank| rank.unwrap().unwrap()).collect()
    }

    /// Connects all that start, which must fail: the errors, by rank.
    pub(crate) fn fail(mut self) -> Vec<Option<Error>> {
        self.connect().into_iter().map(|rank| rank.map(|result| result.map(drop).unwrap_err())).collect()
    }
}

/// Sends a byte over every ring connection of every rank, in both directions, and checks where it arrives.
pub(crate) fn check_ring(fabrics: &[TcpFabric]) {
    use nuvec_transport::Fabric;
    let n = fabrics.len();
    let rings: Vec<_> = fabrics.iter().map(|fabric| fabric.links().unwrap().into_ring().unwrap()).collect();
    let mut halves: Vec<_> = rings
        .into_iter()
        .map(|ring| {
            let split = |all: Vec<TcpChannel>| all.into_iter().map(Channel::split).collect::<Vec<_>>();
            (split(ring.right), split(ring.left))
        })
        .collect();
    for (rank, (right, left)) in halves.iter_mut().enumerate() {
        assert_eq!((right.len(), left.len()), (fabrics[rank].connections(), fabrics[rank].connections()));
        for (i, (tx, _)) in right.iter_mut().enumerate() {
            assert_eq!(tx.peer().rank, (rank + 1) % n);
            send_all(tx, &[rank as u8, i as u8, b'r']).unwrap();
        }
        for (i, (tx, _)) in left.iter_mut().enumerate() {
            assert_eq!(tx.peer().rank, (rank + n - 1) % n);
            send_all(tx, &[rank as u8, i as u8, b'l']).unwrap();
        }
    }
    for (rank, (right, left)) in halves.iter_mut().enumerate() {
        for (i, (_, rx)) in right.iter_mut().enumerate() {
            assert_eq!(recv_all(rx, 3).unwrap(), [((rank + 1) % n) as u8, i as u8, b'l']);
        }
        for (i, (_, rx)) in left.iter_mut().enumerate() {
            assert_eq!(recv_all(rx, 3).unwrap(), [((rank + n - 1) % n) as u8, i as u8, b'r']);
        }
    }
}

/// A deadline that no test should reach.
pub(crate) fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

/// Has every rank bind and connect by itself, as ranks of their own processes do, on ports outside the system's ephemeral
/// range; `nodes` makes a rank's list from the right one. Starts again on others while somebody else has one of them.
/// The fabrics, and the right list.
pub(crate) fn connect_all(
    size: usize,
    nodes: impl Fn(usize, Vec<Vec<Address>>) -> Vec<Vec<Address>> + Sync,
) -> (Vec<TcpFabric>, Vec<Vec<Address>>) {
    static NEXT: OnceLock<AtomicU32> = OnceLock::new();
    let next = NEXT.get_or_init(|| AtomicU32::new(std::process::id().wrapping_mul(7919)));
    for _ in 0..20 {
        let port = || 10_000 + (next.fetch_add(1, Ordering::Relaxed) % 20_000) as u16;
        let right: Vec<_> = (0..size).map(|_| vec![Address::new("127.0.0.1", port())]).collect();
        match connect_on(size, |rank| nodes(rank, right.clone())) {
            Ok(fabrics) => return (fabrics, right),
            Err(e) if e.errno() == Some(rustix::io::Errno::ADDRINUSE.raw_os_error()) => {}
            Err(e) => panic!("{e}"),
        }
    }
    panic!("every port that was tried is taken");
}

/// Connects every rank with its own list, each on its own thread: all of them, or the first error to blame.
pub(crate) fn connect_on(size: usize, nodes: impl Fn(usize) -> Vec<Vec<Address>> + Sync) -> Result<Vec<TcpFabric>> {
    let options = Options::default().timeout(PATIENCE);
    let results: Vec<_> = std::thread::scope(|scope| {
        let rank = |rank| {
            let (nodes, options) = (&nodes, &options);
            scope.spawn(move || connect(&nodes(rank), rank, options, Box::new(Notes::default())))
        };
        let threads: Vec<_> = (0..size).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (fabrics, mut errors): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    // Who could not listen is why the others did not find it.
    errors.sort_by_key(|result| result.as_ref().is_err_and(|e| e.call() != Some("bind")));
    match errors.into_iter().next() {
        Some(error) => error.map(|_| Vec::new()),
        None => fabrics.into_iter().collect(),
    }
}

/// A port on which nobody listens, and nobody can: dialling it is refused.
pub(crate) struct Reserved(socket2::Socket);

impl Reserved {
    pub(crate) fn new() -> Self {
        Self::at("127.0.0.1:0".parse().unwrap())
    }

    /// Begins to listen there.
    pub(crate) fn listen(self) -> TcpListener {
        self.0.listen(16).unwrap();
        self.0.into()
    }

    fn at(address: std::net::SocketAddr) -> Self {
        let domain = socket2::Domain::for_address(address);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).unwrap();
        socket.bind(&address.into()).unwrap();
        Self(socket)
    }

    pub(crate) fn address(&self) -> Address {
        let address = self.0.local_addr().unwrap().as_socket().unwrap();
        Address::new(address.ip().to_string(), address.port())
    }
}

/// This process's open descriptors.
pub(crate) fn descriptors() -> usize {
    let folder = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
    std::fs::read_dir(folder).unwrap().count()
}

/// This process's threads, where the system counts them.
pub(crate) fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// How often the service threads of this process have gone to sleep so far.
#[cfg(target_os = "linux")]
pub(crate) fn switches() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let service =
        tasks.filter(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("nuvec-tcp")));
    let of = |task: std::path::PathBuf| -> u64 {
        let status = std::fs::read_to_string(task.join("status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap();
        line.split_whitespace().last().unwrap().parse().unwrap()
    };
    service.map(of).sum()
}

/// Runs a test of this binary again in a process of its own, so that what it counts is its own.
pub(crate) fn alone(name: &str, work: impl FnOnce()) {
    const ALONE: &str = "NUVEC_TEST_ALONE";
    if std::env::var(ALONE).is_ok_and(|value| value == name) {
        return work();
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads", "1"])
        .env(ALONE, name)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}
