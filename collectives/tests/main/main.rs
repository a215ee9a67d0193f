//! Whole groups in one process, over channels in memory, and over TCP where it matters what a kernel does.

mod blame;
mod collectives;
mod mesh;
mod split;
mod tcp;

use std::sync::Arc;
use std::time::Duration;

use nuvec_collectives::{Communicator, Control, Options};
use nuvec_transport::memory::{self, MemoryFabric};

type Group = Communicator<MemoryFabric>;

/// A group's shape.
#[derive(Clone, Copy)]
struct Shape {
    n: usize,
    k: usize,
    /// Every two ranks have a channel; otherwise they stand in a ring.
    mesh: bool,
    capacity: usize,
    timeout: Duration,
    threads: usize,
}

impl Shape {
    fn new(n: usize, k: usize) -> Self {
        Self { n, k, mesh: false, capacity: 1 << 16, timeout: Duration::from_secs(20), threads: 1 }
    }

    fn mesh(n: usize) -> Self {
        Self { mesh: true, ..Self::new(n, 1) }
    }

    /// A ring, and a mesh.
    fn both(n: usize) -> [Self; 2] {
        [Self::new(n, 1), Self::mesh(n)]
    }

    fn form(self) -> Vec<Group> {
        let controls: Vec<_> = (0..self.n).map(|_| Control::new()).collect();
        let handlers = controls.iter().map(Control::handler).collect();
        let fabrics = if self.mesh {
            memory::mesh(handlers, self.capacity, self.timeout)
        } else {
            memory::network(handlers, self.k, self.capacity, self.timeout)
        };
        let options = Options::default().threads(self.threads);
        fabrics.into_iter().zip(controls).map(|(f, c)| Communicator::new(f, c, options).unwrap()).collect()
    }

    /// Runs `body` as every rank; what each returned.
    fn run<T: Send + 'static>(self, body: impl Fn(&Group) -> T + Send + Sync + 'static) -> Vec<T> {
        let body = Arc::new(body);
        let ranks: Vec<_> = self
            .form()
            .into_iter()
            .map(|group| {
                let body = body.clone();
                std::thread::spawn(move || body(&group))
            })
            .collect();
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    }
}
