//! All links of one host: connections, handshakes, and which connection is the session with which host.
//!
//! A host dials an address while there is no session with the host that has answered there last: HELLO, WELCOME, which
//! tells the dialler the host and names the session, and BEGIN, which proves that the dialler is still there, so a HELLO
//! that was long on its way ends no session. BEGIN replaces the session before, which is closed first. Where both ends dial
//! at once, the dial of the host with the lower number holds: the other end gives up its own, once for each such dial. The
//! dialler then dials the further connections of the session; it ends with any that has joined it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::connection::{Connection, Phase};
use super::frames::{FIRST_OF_SERVICES, FRAME_BYTES, Frame, Received, Width};
use super::identity::HostId;
use super::liveness::Due;
use super::peer::{Current, Dial, Peer};
use super::rights::Rights;
use crate::broker::PeerId;
use crate::framing::{Outbox, Shape};
use crate::limits::{HANDSHAKE_TIMEOUT, MAX_LINK_HANDSHAKES, MAX_LINKED_HOSTS};

/// Why a connection ends of which the handshake took longer than it may.
pub const TOO_LATE: &str = "the handshake took too long";

/// Why connections end that another one of the same two hosts has made needless.
pub(super) const NEEDLESS: [&str; 2] = ["the dial of the other end holds", "a newer session has begun"];

/// What has become of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It begins.
    Began(HostId),
    /// Its connection is closed; why.
    Ended(HostId, String),
}

/// The state machine.
#[derive(Debug)]
pub struct Sessions {
    pub(super) me: HostId,
    pub(super) n_sessions: u64,
    n_dials: u64,
    /// Further connections to dial: the number of an address, the host there, and the key of its session.
    pub(super) joins: VecDeque<(usize, HostId, u64)>,
    /// The addresses to dial, in the order in which they were named.
    pub(super) dials: Vec<Dial>,
    pub(super) peers: BTreeMap<HostId, Peer>,
    pub(super) connections: FxHashMap<PeerId, Connection>,
    /// Handshakes of accepted connections that are not over.
    n_handshakes: usize,
    closing: VecDeque<PeerId>,
    pub(super) events: VecDeque<Event>,
}

impl Sessions {
    /// Without connections.
    #[must_use]
    pub fn new(me: HostId) -> Self {
        Self {
            me,
            n_sessions: 0,
            n_dials: 0,
            joins: VecDeque::new(),
            dials: Vec::new(),
            peers: BTreeMap::new(),
            connections: FxHashMap::default(),
            n_handshakes: 0,
            closing: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Dials one more address from now on, while there is no session with the host there. The first is number 0.
    pub fn want(&mut self, now: Instant) {
        self.dials.push(Dial::new(now));
    }

    /// How many connections this end wants its session with the other one to have, and the key that further ones show
    /// if this end was dialled. Due before [`Self::connected`], or the first bytes.
    pub fn widen(&mut self, id: PeerId, width: Width) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.width = width;
        }
    }

    /// The number of an address to dial now, and the name of the connection. WELCOME may take as long as the handshake of an
    /// accepted connection, as many hosts may dial one at once; the driver does not wait as long for a connection.
    pub fn poll_dial(&mut self, now: Instant) -> Option<(usize, PeerId)> {
        // Names of accepted connections are the driver's: even ones are not used here.
        let id = PeerId(2 * self.n_dials + 1);
        let due = self.dials.iter_mut().enumerate().find(|(_, dial)| dial.is_due(now, &self.peers));
        let (number, phase) = if let Some((number, dial)) = due {
            dial.connection = Some(id);
            (number, Phase::Dialled(number))
        } else {
            let (number, host, key) = loop {
                let join = self.joins.pop_front()?;
                if self.session_by(join.1, join.2).is_some() {
                    break join;
                }
            };
            (number, Phase::Joining(host, key))
        };
        self.n_dials += 1;
        self.insert(id, phase, now + HANDSHAKE_TIMEOUT);
        Some((number, id))
    }

    /// A dial has connected, and each end knows the other one's certificate if they have some.
    pub fn connected(&mut self, id: PeerId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match connection.phase {
            Phase::Dialled(number) => {
                Frame::Hello(self.me).encode(&mut connection.outbox);
                connection.phase = Phase::Greeting(number);
            }
            Phase::Joining(_, key) => Frame::Join(self.me, key).encode(&mut connection.outbox),
            _ => {}
        }
    }

    /// The certificate of the other end gives it no more than these rights. Due before its first bytes are taken.
    pub fn restrict(&mut self, id: PeerId, rights: Rights) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.rights = rights;
        }
    }

    /// A hash of the other end's certificate by a key that no other process knows. A host is that of its certificate, too:
    /// under the number of another one it is a host of its own. Due as [`Self::restrict`] is.
    pub fn certified(&mut self, id: PeerId, fingerprint: u64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.fingerprint = fingerprint;
        }
    }

    /// What the other end may do; nothing where there is no such connection.
    #[must_use]
    pub fn rights(&self, id: PeerId) -> Rights {
        self.connections.get(&id).map_or(Rights::NONE, |connection| connection.rights)
    }

    /// A connection was accepted, under a name of the driver's: an even number that it has not used before. `false`: it
    /// is to be closed, too many have not ended their handshake.
    pub fn accepted(&mut self, now: Instant, id: PeerId) -> bool {
        let has_room = self.n_handshakes < MAX_LINK_HANDSHAKES;
        if has_room {
            self.n_handshakes += 1;
            self.insert(id, Phase::Accepted, now + HANDSHAKE_TIMEOUT);
        }
        has_room
    }

    /// Whether a connection was accepted and has not ended its handshake.
    #[must_use]
    pub fn is_unproven(&self, id: PeerId) -> bool {
        self.connections.get(&id).is_some_and(|connection| connection.phase.is_unproven())
    }

    /// A connection is closed: the kernel neither reads nor writes memory for it any more.
    pub fn disconnected(&mut self, now: Instant, id: PeerId, why: &str) {
        let Some(connection) = self.connections.remove(&id) else { return };
        self.leave_handshake(&connection.phase);
        let (host, why) = match connection.phase {
            Phase::Dialled(number) | Phase::Greeting(number) => return self.end_dial(now, number, id),
            Phase::Welcomed(host, _) => return self.forget(host),
            Phase::Begun(host) => (host, why.to_owned()),
            Phase::Ending(Some(host), why) => (host, why),
            // Without it the session goes on, with fewer than it might have.
            Phase::Joining(..) | Phase::Accepted | Phase::Ending(None, _) => return,
            Phase::Joined(host) => return self.end_session(now, host, why),
        };
        let Some(peer) = self.peers.get_mut(&host) else { return };
        peer.next.take_if(|next| *next == id);
        if peer.is_current(id) {
            for joined in peer.current.iter().flat_map(Current::joined) {
                self.connections.remove(&joined);
            }
            let was_steady = peer.end(now);
            self.dials
                .iter_mut()
                .filter(|dial| dial.host == Some(host))
                .for_each(|dial| dial.rest(now, was_steady));
            self.events.push_back(Event::Ended(host, why));
            if let Some(next) = peer.next.take() {
                peer.begin(now, next);
                self.events.push_back(Event::Began(host));
            }
        }
        self.forget(host);
    }

    /// The further connections of the session of which this is the first one: the driver closes them before it.
    #[must_use]
    pub fn joined(&self, id: PeerId) -> Vec<PeerId> {
        let Some(Phase::Begun(host) | Phase::Ending(Some(host), _)) =
            self.connections.get(&id).map(|connection| &connection.phase)
        else {
            return Vec::new();
        };
        let current = self.peers.get(host).and_then(|peer| peer.current.as_ref());
        current.filter(|it| it.connection == id).map_or_else(Vec::new, |it| it.joined().collect())
    }

    /// Ends a connection, or the session that it has joined; its peer is told why.
    pub fn refuse(&mut self, now: Instant, id: PeerId, why: &str) {
        let id = self.first_of(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            Frame::End(why.to_owned()).encode(&mut connection.outbox);
            self.end(now, id, why);
        }
    }

    /// Takes bytes of a connection up to the end of the next frame of a service; of a frame in bulk up to the end of its
    /// head. Nothing is taken while bytes in bulk are left, or where [`Self::wants_bytes`] says no.
    pub fn receive(
        &mut self,
        now: Instant,
        id: PeerId,
        bytes: &mut &[u8],
        shape: impl Fn(u8) -> Shape,
    ) -> Option<Received<'_>> {
        let own = Shape::Whole(FRAME_BYTES);
        self.heard(id);
        while !bytes.is_empty() && self.wants_bytes(id) && self.bulk_left(id) == 0 {
            let connection = self.connections.get_mut(&id)?;
            let host = match connection.phase {
                Phase::Begun(host) | Phase::Joined(host) => Some(host),
                _ => None,
            };
            let mut reader = std::mem::take(&mut connection.reader);
            let shape = |kind| if host.is_none() || kind < FIRST_OF_SERVICES { own } else { shape(kind) };
            let handled = match reader.take(bytes, shape) {
                Ok(None) => {
                    self.connections.get_mut(&id)?.reader = reader;
                    continue;
                }
                Ok(Some((kind, ..))) if kind >= FIRST_OF_SERVICES && host.is_some() => {
                    let connection = self.connections.get_mut(&id)?;
                    connection.reader = reader;
                    let (kind, payload, left) = connection.reader.current()?;
                    return Some(Received { host: host?, kind, payload, left });
                }
                Ok(Some((kind, payload, _))) => Frame::decode(kind, payload)
                    .map_err(|error| error.to_string())
                    .and_then(|frame| self.handle(now, id, frame)),
                Err(error) => Err(error.to_string()),
            };
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.reader = reader;
            }
            if let Err(why) = handled {
                self.refuse(now, id, &why);
            }
        }
        None
    }

    fn heard(&mut self, id: PeerId) {
        if let Some(current) = self.current_of(id) {
            current.heard(id);
        }
    }

    /// Bytes in bulk that are next on a connection.
    #[must_use]
    pub fn bulk_left(&self, id: PeerId) -> usize {
        self.connections.get(&id).map_or(0, |connection| connection.reader.left())
    }

    /// `n` of them were stored.
    pub fn stored(&mut self, id: PeerId, n: usize) {
        self.heard(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.reader.took(n);
        }
    }

    /// Whether a connection should be read: not once it is to be closed, nor before the session before was closed.
    #[must_use]
    pub fn wants_bytes(&self, id: PeerId) -> bool {
        self.connections.get(&id).is_some_and(|connection| match connection.phase {
            Phase::Begun(host) => self.peers.get(&host).is_some_and(|peer| peer.is_current(id)),
            Phase::Joined(host) => self.session(host).is_some(),
            Phase::Dialled(_) | Phase::Ending(..) => false,
            Phase::Greeting(..) | Phase::Accepted | Phase::Welcomed(..) | Phase::Joining(..) => true,
        })
    }

    /// What the session itself has to write to a connection.
    pub fn outbox(&mut self, id: PeerId) -> Option<&mut Outbox> {
        let connection = self.connections.get_mut(&id)?;
        if std::mem::take(&mut connection.is_asked) {
            Frame::Pong.encode(&mut connection.outbox);
        }
        Some(&mut connection.outbox)
    }

    /// The host of the session of which this is a connection.
    #[must_use]
    pub fn host_of(&self, id: PeerId) -> Option<HostId> {
        match self.connections.get(&id)?.phase {
            Phase::Begun(host) if self.peers.get(&host).is_some_and(|peer| peer.is_current(id)) => Some(host),
            Phase::Joined(host) => self.session(host).map(|_| host),
            _ => None,
        }
    }

    /// The first connection of the session with a host.
    #[must_use]
    pub fn session(&self, host: HostId) -> Option<PeerId> {
        let current = self.peers.get(&host)?.current.as_ref()?;
        let is_open = matches!(self.connections.get(&current.connection)?.phase, Phase::Begun(_));
        is_open.then_some(current.connection)
    }

    /// A connection to close after its outbox was written as far as that goes at once; then comes
    /// [`Self::disconnected`].
    pub fn poll_closing(&mut self) -> Option<PeerId> {
        self.closing.pop_front()
    }

    /// What a connection has not become, and why, where `why` ends it if nothing did before; none where it has, or is
    /// needless.
    #[must_use]
    pub fn failure<'a>(&'a self, id: PeerId, why: &'a str) -> Option<(&'static str, &'a str)> {
        let connection = self.connections.get(&id)?;
        let what = if connection.is_further { "further connection" } else { "session" };
        let why = match &connection.phase {
            Phase::Begun(_) | Phase::Joined(_) | Phase::Ending(Some(_), _) => return None,
            Phase::Ending(None, why) => why,
            _ => why,
        };
        (!NEEDLESS.contains(&why)).then_some((what, why))
    }

    /// What has become of sessions.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Time has passed; to be called after everything that has arrived was read. `is_owed`: whether this end waits for
    /// a host.
    pub fn handle_timeout(&mut self, now: Instant, is_owed: impl Fn(HostId) -> bool) {
        let late: Vec<_> = self
            .connections
            .iter()
            .filter(|(_, c)| c.deadline.is_some_and(|at| at <= now))
            .map(|(&id, _)| id)
            .collect();
        for id in late {
            self.refuse(now, id, TOO_LATE);
        }
        let mut lost = Vec::new();
        for (&host, peer) in &mut self.peers {
            let Some(current) = &mut peer.current else { continue };
            let first = self.connections.get(&current.connection);
            if first.is_none_or(|connection| matches!(connection.phase, Phase::Ending(..))) {
                continue;
            }
            for (id, due) in current.poll(now, is_owed(host)) {
                match (due, self.connections.get_mut(&id)) {
                    (Due::Ask, Some(connection)) => Frame::Ping.encode(&mut connection.outbox),
                    (Due::Ask, None) => {}
                    (Due::Lost, _) => lost.push(host),
                }
            }
        }
        for host in lost {
            self.end_session(now, host, "it does not answer");
        }
    }

    /// When [`Self::handle_timeout`] and [`Self::poll_dial`] should be called even if nothing happens.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        let peers = self.peers.values().map(|peer| peer.current.as_ref().map(Current::next_at));
        let dials = self.dials.iter().map(|dial| dial.at(&self.peers));
        peers
            .chain(dials)
            .chain(self.connections.values().map(|connection| connection.deadline))
            .flatten()
            .min()
    }

    fn insert(&mut self, id: PeerId, phase: Phase, deadline: Instant) {
        self.connections.insert(id, Connection::new(phase, deadline));
    }

    /// Nothing more is taken from a connection, or from the session that it has joined, and the driver is to close it.
    pub(super) fn end(&mut self, now: Instant, id: PeerId, why: &str) {
        let id = self.first_of(id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let host = match connection.phase {
            Phase::Ending(..) => return,
            Phase::Begun(host) => Some(host),
            _ => None,
        };
        connection.deadline = None;
        let phase = std::mem::replace(&mut connection.phase, Phase::Ending(host, why.to_owned()));
        self.leave_handshake(&phase);
        self.closing.push_back(id);
        match phase {
            Phase::Dialled(number) | Phase::Greeting(number) => self.end_dial(now, number, id),
            Phase::Welcomed(host, _) => self.forget(host),
            _ => {}
        }
    }

    fn end_dial(&mut self, now: Instant, number: usize, id: PeerId) {
        if let Some(dial) = self.dials.get_mut(number)
            && dial.connection.take_if(|connection| *connection == id).is_some()
        {
            dial.rest(now, false);
        }
    }

    /// What is known of a host.
    pub(super) fn know(&mut self, host: HostId) -> Result<&mut Peer, String> {
        if self.peers.len() >= MAX_LINKED_HOSTS && !self.peers.contains_key(&host) {
            // Nothing but its patience is lost with a host that is not connected.
            let others = self.peers.iter().filter(|(_, peer)| peer.is_idle());
            let idle = others.map(|(&other, _)| other).find(|other| !self.has_connection(*other));
            let idle = idle.ok_or("this host takes no further link")?;
            self.peers.remove(&idle);
        }
        Ok(self.peers.entry(host).or_default())
    }

    /// Drops what is known of a host once no connection is, or may become, its session; not that it needs patience.
    fn forget(&mut self, host: HostId) {
        let is_nothing = self.peers.get(&host).is_some_and(|peer| peer.is_idle() && !peer.is_patient());
        if is_nothing && !self.has_connection(host) {
            self.peers.remove(&host);
        }
    }

    fn has_connection(&self, host: HostId) -> bool {
        let is_its_own = |connection: &Connection| matches!(connection.phase, Phase::Welcomed(to, _) | Phase::Begun(to) if to == host);
        self.connections.values().any(is_its_own)
    }

    pub(super) fn leave_handshake(&mut self, phase: &Phase) {
        self.n_handshakes -= usize::from(phase.is_unproven());
    }
}
