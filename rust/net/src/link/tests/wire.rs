//! What is between the hosts: connections that can be cut, also in the middle of a piece, and stand still.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::Endpoint;

pub(super) struct Wire {
    pub(super) endpoint: Endpoint,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    to: Mutex<Option<SocketAddr>>,
    connections: Mutex<Vec<TcpStream>>,
    /// Nothing arrives, by direction: to the end that was dialled, and back.
    is_frozen: [AtomicBool; 2],
    /// Bytes back until the connection is cut.
    left: AtomicU64,
    n_connections: AtomicU64,
}

impl Wire {
    pub(super) fn to(endpoint: &Endpoint) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
        let to = Mutex::new(Some(address_of(endpoint)));
        let state = Arc::new(State { to, left: AtomicU64::new(u64::MAX), ..State::default() });
        let here = Arc::clone(&state);
        // It ends with the process.
        std::thread::spawn(move || {
            for dialled in listener.incoming() {
                let to = here.to.lock().unwrap().unwrap();
                let (Ok(dialled), Ok(there)) = (dialled, TcpStream::connect(to)) else { continue };
                here.n_connections.fetch_add(1, Ordering::Relaxed);
                let both = || [dialled.try_clone().unwrap(), there.try_clone().unwrap()];
                here.connections.lock().unwrap().extend(both());
                for direction in 0..2 {
                    let ([a, b], state) = (both(), Arc::clone(&here));
                    let (from, to) = if direction == 0 { (a, b) } else { (b, a) };
                    std::thread::spawn(move || carry(&state, direction, from, to));
                }
            }
        });
        Self { endpoint: address, state }
    }

    /// Leads to another end from now on.
    pub(super) fn turn_to(&self, endpoint: &Endpoint) {
        *self.state.to.lock().unwrap() = Some(address_of(endpoint));
    }

    /// Ends all connections.
    pub(super) fn cut(&self) {
        for stream in self.state.connections.lock().unwrap().drain(..) {
            let _gone = stream.shutdown(Shutdown::Both);
        }
    }

    /// Ends them once so many bytes more were sent here.
    pub(super) fn cut_after(&self, n: u64) {
        self.state.left.store(n, Ordering::Relaxed);
    }

    pub(super) fn freeze(&self, directions: [bool; 2]) {
        for (is_frozen, freezes) in self.state.is_frozen.iter().zip(directions) {
            is_frozen.store(freezes, Ordering::Relaxed);
        }
    }

    pub(super) fn n_connections(&self) -> u64 {
        self.state.n_connections.load(Ordering::Relaxed)
    }
}

fn address_of(endpoint: &Endpoint) -> SocketAddr {
    endpoint.as_str().trim_start_matches("tcp://").parse().unwrap()
}

fn carry(state: &State, direction: usize, mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n) = from.read(&mut buffer) {
        while state.is_frozen[direction].load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let left = if direction == 1 { state.left.load(Ordering::Relaxed) } else { u64::MAX };
        let last = usize::try_from(left).unwrap_or(usize::MAX).min(n);
        let is_over = to.write_all(&buffer[..last]).is_err() || n == 0;
        if left != u64::MAX {
            state.left.store(if last < n { u64::MAX } else { left - last as u64 }, Ordering::Relaxed);
        }
        if is_over || last < n {
            break;
        }
    }
    let (_gone, _too) = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
