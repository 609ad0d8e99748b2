//! [`Mesh`]: messages between the ranks of a group, on the thread of the caller.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::Shutdown;
use softs_shm::{ForeignBytes, unacknowledged};

use super::peer::{Failure, Peer};
use crate::error::os_text;
use crate::runtime::mutex::lock;
use crate::transport::socket::{self, timespec};

/// How often a call that waits looks for hosts that are gone, and for signals.
const TICK: Duration = Duration::from_millis(100);
/// How often a rank that leaves looks whether all has arrived.
const LEAVE_TICK: Duration = Duration::from_millis(2);

/// A rank, and the memory of a message to it or from it.
pub type Message<'a> = (usize, ForeignBytes<'a>);

/// Why a call was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeshError {
    /// There is no such rank to send to or receive from.
    #[error("rank {0} is not another rank of this group of {1}")]
    NoRank(usize, usize),
    /// The group has failed, in this call or before.
    #[error("{0}")]
    Broken(String),
}

/// Connections to all other ranks of a group. Dropping it ends them.
#[derive(Debug)]
pub struct Mesh {
    state: Mutex<State>,
    sockets: Vec<Option<Arc<OwnedFd>>>,
    lost: Mutex<Vec<usize>>,
    is_shut: AtomicBool,
}

#[derive(Debug)]
struct State {
    /// By rank; none for this one.
    peers: Vec<Option<Peer>>,
    broken: Option<String>,
}

/// A connection of a call, and its messages.
struct Part<'a> {
    rank: usize,
    sends: Vec<ForeignBytes<'a>>,
    receives: Vec<ForeignBytes<'a>>,
}

impl Mesh {
    pub(super) fn new(peers: Vec<Option<Peer>>) -> Self {
        let socket_of = |peer: &Option<Peer>| peer.as_ref().map(|peer| Arc::clone(peer.socket()));
        Self {
            sockets: peers.iter().map(socket_of).collect(),
            state: Mutex::new(State { peers, broken: None }),
            lost: Mutex::default(),
            is_shut: AtomicBool::new(false),
        }
    }

    /// Sends and receives whole messages. Those of two ranks come in the order in which they were sent, whatever the call,
    /// and each has as many bytes as its receiver expects; empty ones are not sent. `stall`: how long no byte may move.
    ///
    /// # Errors
    /// [`MeshError`]; after [`MeshError::Broken`] each later call has the same error.
    pub fn exchange(
        &self,
        sends: &[Message<'_>],
        receives: &[Message<'_>],
        stall: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<(), MeshError> {
        let mut state = lock(&self.state);
        if let Some(why) = &state.broken {
            return Err(MeshError::Broken(why.clone()));
        }
        let mut parts = parts_of(&state.peers, sends, receives)?;
        for part in &parts {
            if let Some(peer) = &mut state.peers[part.rank] {
                peer.begin_call(&part.sends, &part.receives);
            }
        }
        let moved = self.run(&mut state, &mut parts, stall, interrupted);
        moved.map_err(|why| {
            let why = if self.is_shut.load(Ordering::Acquire) {
                "this rank has left the group".to_owned()
            } else {
                why
            };
            state.broken = Some(why.clone());
            MeshError::Broken(why)
        })
    }

    /// Ranks of which the connection has ended, or which do not answer, as it was when a call failed.
    pub fn lost(&self) -> Vec<usize> {
        lock(&self.lost).clone()
    }

    /// Ranks of which the connection has ended.
    pub fn ended(&self) -> Vec<usize> {
        let has_ended =
            |rank: &usize| self.sockets[*rank].as_ref().is_some_and(|socket| !socket::is_open(socket));
        (0..self.sockets.len()).filter(has_ended).collect()
    }

    /// Waits until the hosts of the other ranks have all that was sent. A ping that meets a connection that has ended makes
    /// the kernel drop what is on its way. `stall`: how long none of it may be taken.
    pub fn drain(&self, stall: Duration, interrupted: &mut dyn FnMut() -> bool) {
        let (mut least, mut moved_at) = (u64::MAX, Instant::now());
        while !self.is_shut.load(Ordering::Acquire) {
            let open = self.sockets.iter().flatten().filter(|socket| socket::is_open(socket));
            let left: u64 = open.map(|socket| unacknowledged(socket.as_fd()).unwrap_or(0)).sum();
            if left < least {
                (least, moved_at) = (left, Instant::now());
            }
            if left == 0 || moved_at.elapsed() >= stall || interrupted() {
                break;
            }
            std::thread::sleep(LEAVE_TICK);
        }
    }

    /// Ends pending calls, here and of the other ranks. Later calls fail.
    pub fn shut_down(&self) {
        self.is_shut.store(true, Ordering::Release);
        for socket in self.sockets.iter().flatten() {
            // One that has ended needs no end.
            let _shut = rustix::net::shutdown(socket, Shutdown::Both);
        }
    }

    fn run(
        &self,
        state: &mut State,
        parts: &mut Vec<Part<'_>>,
        stall: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<(), String> {
        let (mut moved_at, mut looked_at) = (Instant::now(), Instant::now());
        loop {
            let (mut any, now) = (false, Instant::now());
            for part in &*parts {
                if let Some(peer) = &mut state.peers[part.rank] {
                    let moved = peer.advance(&part.sends, &part.receives, now);
                    any |= moved.map_err(|failure| self.fail(part.rank, failure))?;
                }
            }
            parts.retain(|part| state.peers[part.rank].as_ref().is_some_and(|peer| !peer.is_done()));
            if parts.is_empty() {
                return Ok(());
            }
            if now.saturating_duration_since(looked_at) >= TICK {
                looked_at = now;
                for part in &*parts {
                    if let Some(peer) = &mut state.peers[part.rank] {
                        peer.check(now).map_err(|failure| self.fail(part.rank, failure))?;
                    }
                }
                if interrupted() {
                    return Err("a call was interrupted".to_owned());
                }
            }
            if any {
                moved_at = now;
                continue;
            }
            let left = stall.saturating_sub(now.saturating_duration_since(moved_at));
            if left.is_zero() {
                return Err(late(state, parts, stall));
            }
            wait(state, parts, left.min(TICK)).map_err(|error| format!("cannot wait: {}", os_text(error)))?;
        }
    }

    /// The text of a failure; which ranks are lost is known from now on.
    fn fail(&self, rank: usize, failure: Failure) -> String {
        let mut ended: Vec<usize> = match &failure {
            Failure::Lost(_) => vec![rank],
            Failure::Refused(_) => Vec::new(),
        };
        ended.extend(self.ended().into_iter().filter(|other| *other != rank));
        ended.sort_unstable();
        if !self.is_shut.load(Ordering::Acquire) {
            *lock(&self.lost) = ended;
        }
        let (Failure::Lost(why) | Failure::Refused(why)) = failure;
        format!("rank {rank}: {why}")
    }
}

fn parts_of<'a>(
    peers: &[Option<Peer>],
    sends: &[Message<'a>],
    receives: &[Message<'a>],
) -> Result<Vec<Part<'a>>, MeshError> {
    let strange = |(rank, _): &&Message<'_>| peers.get(*rank).is_none_or(Option::is_none);
    if let Some((rank, _)) = sends.iter().chain(receives).find(strange) {
        return Err(MeshError::NoRank(*rank, peers.len()));
    }
    let of = |messages: &[Message<'a>], rank| {
        let own = messages.iter().filter(|(other, memory)| *other == rank && !memory.is_empty());
        own.map(|(_, memory)| *memory).collect::<Vec<_>>()
    };
    let parts =
        (0..peers.len()).map(|rank| Part { rank, sends: of(sends, rank), receives: of(receives, rank) });
    Ok(parts.filter(|part| !part.sends.is_empty() || !part.receives.is_empty()).collect())
}

fn late(state: &State, parts: &[Part<'_>], stall: Duration) -> String {
    let waited = parts.iter().map(|part| part.rank);
    let waited = waited.filter(|rank| state.peers[*rank].as_ref().is_some_and(Peer::is_waiting));
    let ranks: Vec<String> = waited.map(|rank| rank.to_string()).collect();
    let seconds = stall.as_secs_f64();
    if ranks.is_empty() {
        let ranks: Vec<String> = parts.iter().map(|part| part.rank.to_string()).collect();
        return format!("rank {} has taken nothing for {seconds:.1} s", ranks.join(", "));
    }
    format!("nothing has come from rank {} for {seconds:.1} s", ranks.join(", "))
}

/// Waits until something can be done, or the time is over.
fn wait(state: &mut State, parts: &[Part<'_>], timeout: Duration) -> Result<(), Errno> {
    let mut sources = Vec::with_capacity(parts.len());
    for peer in parts.iter().filter_map(|part| state.peers[part.rank].as_ref()) {
        let mut interest = PollFlags::empty();
        interest.set(PollFlags::IN, peer.is_waiting());
        interest.set(PollFlags::OUT, peer.is_blocked());
        sources.push(PollFd::from_borrowed_fd(peer.as_fd(), interest));
    }
    match poll(&mut sources, Some(&timespec(timeout))) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error),
    }
    let ready: Vec<PollFlags> = sources.iter().map(PollFd::revents).collect();
    drop(sources);
    for (part, ready) in parts.iter().zip(ready) {
        if ready.intersects(PollFlags::OUT | PollFlags::ERR | PollFlags::HUP)
            && let Some(peer) = &mut state.peers[part.rank]
        {
            peer.unblock();
        }
    }
    Ok(())
}
