//! [`Listening`]: how the ranks of a group connect.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::rand::{GetRandomFlags, getrandom};
use softs_proto::mesh::{GREETING_BYTES, Greeting, Key};

use super::exchange::{Mesh, MeshError};
use super::peer::{Failure, Peer};
use crate::error::{NetError, os_text};
use crate::tls::{Credentials, TlsError};
use crate::transport::connecting::{Connecting, Hosts};
use crate::transport::endpoint::Endpoint;
use crate::transport::listener::{Accepted, Listener};
use crate::transport::socket::{KeepAlive, prepare_tcp, timespec};
use crate::waited::Waited;

/// A call that waits notices a host that is gone by itself. Bytes may stay unacknowledged while a rank takes none, so
/// there is no limit for that: it is the kernel's.
const KEEP_ALIVE: KeepAlive = KeepAlive {
    idle: Duration::from_secs(10),
    interval: Duration::from_secs(5),
    count: 3,
    unacknowledged: Duration::ZERO,
};
/// How long a connection may take to say which rank it is.
const GREETING: Duration = Duration::from_secs(10);
/// Connections beyond those of the ranks that may be in their greeting.
const MORE_GUESTS: usize = 64;
/// How often signals are looked for.
const TICK: Duration = Duration::from_millis(100);

/// A rank that others can connect to.
#[derive(Debug)]
pub struct Listening {
    listener: Listener,
    credentials: Option<Credentials>,
    hosts: Hosts,
    key: Key,
}

/// A connection that has not said which rank it is, or was not answered.
struct Guest {
    peer: Peer,
    /// Known of those that this end has dialled, and of others once they have said it.
    rank: Option<usize>,
    has_dialled: bool,
    has_heard: bool,
    until: Instant,
}

/// The ranks, while they connect.
struct Joining<'a> {
    listening: &'a Listening,
    rank: usize,
    ranks: &'a [(Endpoint, Key)],
    dials: Vec<(usize, Connecting)>,
    guests: Vec<Guest>,
    joined: Vec<Option<Peer>>,
    /// Why the last stranger was refused.
    refused: Option<String>,
}

impl Listening {
    /// Listens. Without credentials only processes of this user on this host get in, and with `plain` all.
    ///
    /// # Errors
    /// [`NetError::CredentialsNeeded`], [`NetError::EndpointInUse`], [`NetError::BadEndpoint`], [`NetError::Os`].
    pub fn bind(
        endpoint: &Endpoint,
        credentials: Option<Credentials>,
        plain: bool,
    ) -> Result<Self, NetError> {
        let is_open = credentials.is_some() || plain;
        let listener = Listener::bind(endpoint, is_open, KEEP_ALIVE).map_err(NetError::of_link)?;
        let mut key = Key::default();
        // Reads of so few bytes are never short.
        retry_on_intr(|| getrandom(&mut key, GetRandomFlags::empty()))
            .map_err(|error| NetError::os(endpoint.as_str(), "cannot draw a random number", error))?;
        let hosts = if is_open { Hosts::Any } else { Hosts::Loopback };
        Ok(Self { listener, credentials, hosts, key })
    }

    /// Where others connect to.
    pub fn endpoint(&self) -> &str {
        self.listener.local_endpoint()
    }

    /// What they have to show.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Connects with all other ranks. `ranks` has place and key of each, this one too.
    ///
    /// # Errors
    /// [`MeshError::Broken`]: a rank was not reached, refused or was refused, or did not come in time.
    pub fn join(
        &self,
        rank: usize,
        ranks: &[(Endpoint, Key)],
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Waited<Mesh>, MeshError> {
        if rank >= ranks.len() {
            return Err(MeshError::NoRank(rank, ranks.len()));
        }
        let begun = Instant::now();
        let dial = |(rank, (endpoint, _)): (usize, &(Endpoint, Key))| {
            (rank, Connecting::begin_to(self.hosts, endpoint, timeout, begun))
        };
        let mut joining = Joining {
            listening: self,
            rank,
            ranks,
            dials: ranks[..rank].iter().enumerate().map(dial).collect(),
            guests: Vec::new(),
            joined: ranks.iter().map(|_| None).collect(),
            refused: None,
        };
        loop {
            let now = Instant::now();
            joining.advance(now).map_err(MeshError::Broken)?;
            let missing = joining.missing();
            if missing.is_empty() {
                return Ok(Waited::Ready(Mesh::new(joining.joined)));
            }
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(MeshError::Broken(joining.late(&missing, timeout)));
            }
            let waited = joining.wait(left.min(TICK));
            waited.map_err(|error| MeshError::Broken(format!("cannot wait: {}", os_text(error))))?;
            // However many strangers come.
            if interrupted() {
                return Ok(Waited::Interrupted);
            }
        }
    }
}

impl Joining<'_> {
    fn missing(&self) -> Vec<usize> {
        (0..self.ranks.len()).filter(|&rank| rank != self.rank && self.joined[rank].is_none()).collect()
    }

    fn late(&mut self, missing: &[usize], timeout: Duration) -> String {
        let ranks: Vec<String> = missing.iter().map(usize::to_string).collect();
        let mut text =
            format!("rank {} has not come within {:.1} s", ranks.join(", "), timeout.as_secs_f64());
        if let Some(why) = &self.refused {
            text.push_str("; a connection was refused: ");
            text.push_str(why);
        }
        text
    }

    /// Does what goes now; the error names the rank that is not reached, or that refuses this one.
    fn advance(&mut self, now: Instant) -> Result<(), String> {
        let mut dialled = Vec::new();
        for (rank, attempt) in std::mem::take(&mut self.dials) {
            let mut attempt = attempt;
            match attempt.poll(now) {
                None => self.dials.push((rank, attempt)),
                Some(Ok(socket)) => dialled.push((rank, socket)),
                Some(Err(error)) => return Err(format!("rank {rank} is not reached: {}", error.of_link())),
            }
        }
        for (rank, socket) in dialled {
            let prepared = prepare_tcp(&socket, KEEP_ALIVE).map_err(os_text);
            let begun = prepared
                .and_then(|()| self.begin(socket, Some(rank), now).map_err(|error| error.to_string()));
            begun.map_err(|why| format!("rank {rank}: {why}"))?;
        }
        self.accept(now)?;
        for mut guest in std::mem::take(&mut self.guests) {
            match self.greet(&mut guest, now) {
                Ok(false) => self.guests.push(guest),
                Ok(true) => {
                    // Two that say the same are one rank too many.
                    let place = guest.rank.map(|rank| &mut self.joined[rank]);
                    place.map(|place| place.get_or_insert(guest.peer));
                }
                // A stranger must not keep the ranks from each other.
                Err(why) => match guest.rank.filter(|_| guest.has_dialled) {
                    Some(rank) => {
                        return Err(format!("rank {rank} at {}: {why}", self.ranks[rank].0.as_str()));
                    }
                    None => self.refused = Some(why),
                },
            }
        }
        Ok(())
    }

    fn accept(&mut self, now: Instant) -> Result<(), String> {
        while self.has_room() {
            match self.listening.listener.accept() {
                Accepted::Peer(socket) => {
                    if let Err(error) = self.begin(Arc::new(socket), None, now) {
                        self.refused = Some(error.to_string());
                    }
                }
                Accepted::Foreigner { .. } => self.refused = Some("it comes from another user".to_owned()),
                Accepted::NoPeer => break,
                Accepted::Gone => {}
                Accepted::Full(error) => {
                    return Err(format!(
                        "cannot accept connections: {}; raise the limit of open files (ulimit -n)",
                        os_text(error)
                    ));
                }
            }
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.guests.len() < self.ranks.len() + MORE_GUESTS
    }

    fn begin(&mut self, socket: Arc<OwnedFd>, rank: Option<usize>, now: Instant) -> Result<(), TlsError> {
        let has_dialled = rank.is_some();
        let mut peer = Peer::begin(socket, self.listening.credentials.as_ref(), has_dialled)?;
        if let Some(rank) = rank {
            peer.say(&self.greeting_to(rank).encode());
        }
        let until = now + GREETING;
        self.guests.push(Guest { peer, rank, has_dialled, has_heard: false, until });
        Ok(())
    }

    fn greeting_to(&self, rank: usize) -> Greeting {
        let [own, size] =
            [self.rank, self.ranks.len()].map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        Greeting { rank: own, size, key: self.ranks[rank].1 }
    }

    /// Whether both ends have greeted each other.
    fn greet(&self, guest: &mut Guest, now: Instant) -> Result<bool, String> {
        let conversed = guest.peer.converse();
        if !guest.has_heard
            && let Some(heard) = guest.peer.heard::<GREETING_BYTES>()
        {
            let greeting = Greeting::decode(&heard).map_err(|error| error.to_string())?;
            let rank = self.rank_of(&greeting, guest.rank)?;
            guest.has_heard = true;
            if guest.rank.replace(rank).is_none() {
                guest.peer.say(&self.greeting_to(rank).encode());
                return self.greet(guest, now);
            }
        }
        // A rank may have left the group since then: its calls say so.
        if guest.has_heard && guest.peer.has_said() {
            return Ok(true);
        }
        conversed.map_err(|(Failure::Lost(why) | Failure::Refused(why))| why)?;
        if guest.until <= now && !guest.has_dialled { Err(guest.peer.missing()) } else { Ok(false) }
    }

    /// The rank of a greeting that belongs to this group and is expected.
    fn rank_of(&self, greeting: &Greeting, dialled: Option<usize>) -> Result<usize, String> {
        let rank = greeting.rank as usize;
        let is_expected = match dialled {
            Some(dialled) => rank == dialled,
            None => rank > self.rank && self.joined.get(rank).is_some_and(Option::is_none),
        };
        if greeting.key != self.listening.key || greeting.size as usize != self.ranks.len() || !is_expected {
            return Err("it is no rank of this group".to_owned());
        }
        Ok(rank)
    }

    /// Waits until something can be done, or the time is over.
    fn wait(&self, timeout: Duration) -> Result<(), Errno> {
        let waitables: Vec<_> = self.dials.iter().filter_map(|(_, attempt)| attempt.waitable()).collect();
        let mut sources = vec![source(self.listening.listener.as_fd(), self.has_room(), false)];
        sources.extend(waitables.iter().map(|(fd, write)| source(fd.as_fd(), !write, *write)));
        sources.extend(
            self.guests.iter().map(|guest| source(guest.peer.as_fd(), true, guest.peer.is_blocked())),
        );
        match poll(&mut sources, Some(&timespec(timeout))) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn source(fd: BorrowedFd<'_>, read: bool, write: bool) -> PollFd<'_> {
    let mut interest = PollFlags::empty();
    interest.set(PollFlags::IN, read);
    interest.set(PollFlags::OUT, write);
    PollFd::from_borrowed_fd(fd, interest)
}
