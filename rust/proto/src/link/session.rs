//! All links of one host: connections, handshakes, and which connection is the session with which host.
//!
//! A host dials an address while there is no session with the host that has answered there last: HELLO, WELCOME, which
//! tells the dialler the host and names the session, and BEGIN, which proves that the dialler is still there, so a HELLO
//! that was long on its way ends no session. BEGIN replaces the session before, which is closed first. Where both ends dial
//! at once, the dial of the host with the lower number holds: the other end gives up its own, once for each such dial.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::connection::{Connection, Phase};
use super::frames::{FIRST_OF_SERVICES, FRAME_BYTES, Frame, Received};
use super::identity::HostId;
use super::liveness::Due;
use super::peer::{Dial, Peer};
use super::rights::Rights;
use crate::broker::PeerId;
use crate::framing::{MessageError, Outbox, Shape};
use crate::limits::{HANDSHAKE_TIMEOUT, MAX_LINK_HANDSHAKES, MAX_LINKED_HOSTS};

/// Why a connection ends of which the handshake took longer than it may.
pub const TOO_LATE: &str = "the handshake took too long";

/// Why connections end that another one of the same two hosts has made needless.
const NEEDLESS: [&str; 2] = ["the dial of the other end holds", "a newer session has begun"];

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
    me: HostId,
    n_sessions: u64,
    n_dials: u64,
    /// The addresses to dial, in the order in which they were named.
    dials: Vec<Dial>,
    peers: BTreeMap<HostId, Peer>,
    connections: FxHashMap<PeerId, Connection>,
    /// Handshakes of accepted connections that are not over.
    n_handshakes: usize,
    closing: VecDeque<PeerId>,
    events: VecDeque<Event>,
}

impl Sessions {
    /// Without connections.
    #[must_use]
    pub fn new(me: HostId) -> Self {
        Self {
            me,
            n_sessions: 0,
            n_dials: 0,
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

    /// The number of an address to dial now, and the name of the connection. WELCOME may take as long as the handshake of an
    /// accepted connection, as many hosts may dial one at once; the driver does not wait as long for a connection.
    pub fn poll_dial(&mut self, now: Instant) -> Option<(usize, PeerId)> {
        let (number, dial) =
            self.dials.iter_mut().enumerate().find(|(_, dial)| dial.is_due(now, &self.peers))?;
        // Names of accepted connections are the driver's: even ones are not used here.
        let id = PeerId(2 * self.n_dials + 1);
        self.n_dials += 1;
        dial.connection = Some(id);
        self.insert(id, Phase::Dialled(number), now + HANDSHAKE_TIMEOUT);
        Some((number, id))
    }

    /// A dial has connected, and each end knows the other one's certificate if they have some.
    pub fn connected(&mut self, id: PeerId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Phase::Dialled(number) = connection.phase {
            Frame::Hello(self.me).encode(&mut connection.outbox);
            connection.phase = Phase::Greeting(number);
        }
    }

    /// The certificate of the other end gives it no more than these rights. Due before its first bytes are taken.
    pub fn restrict(&mut self, id: PeerId, rights: Rights) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.rights = rights;
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
            Phase::Accepted | Phase::Ending(None, _) => return,
        };
        let Some(peer) = self.peers.get_mut(&host) else { return };
        peer.next.take_if(|next| *next == id);
        if peer.is_current(id) {
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

    /// Ends a connection; its peer is told why.
    pub fn refuse(&mut self, now: Instant, id: PeerId, why: &str) {
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
                Phase::Begun(host) => Some(host),
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
        if let Some(current) = self.peer_of(id).and_then(|peer| peer.current.as_mut())
            && current.connection == id
        {
            current.liveness.heard();
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
            Phase::Dialled(_) | Phase::Ending(..) => false,
            Phase::Greeting(..) | Phase::Accepted | Phase::Welcomed(..) => true,
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

    /// The host of the session of which this is the connection.
    #[must_use]
    pub fn host_of(&self, id: PeerId) -> Option<HostId> {
        match self.connections.get(&id)?.phase {
            Phase::Begun(host) if self.peers.get(&host).is_some_and(|peer| peer.is_current(id)) => Some(host),
            _ => None,
        }
    }

    /// The connection of the session with a host.
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

    /// Why a connection has become no session, where `why` ends it if nothing did before; none where it was one, or is
    /// needless.
    #[must_use]
    pub fn failure<'a>(&'a self, id: PeerId, why: &'a str) -> Option<&'a str> {
        let why = match &self.connections.get(&id)?.phase {
            Phase::Begun(_) | Phase::Ending(Some(_), _) => return None,
            Phase::Ending(None, why) => why,
            _ => why,
        };
        (!NEEDLESS.contains(&why)).then_some(why)
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
            let id = current.connection;
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            if matches!(connection.phase, Phase::Ending(..)) {
                continue;
            }
            match current.liveness.poll(now, is_owed(host)) {
                Some(Due::Ask) => Frame::Ping.encode(&mut connection.outbox),
                Some(Due::Lost) => lost.push(id),
                None => {}
            }
        }
        for id in lost {
            self.end(now, id, "it does not answer");
        }
    }

    /// When [`Self::handle_timeout`] and [`Self::poll_dial`] should be called even if nothing happens.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        let peers = self.peers.values().map(|peer| Some(peer.current.as_ref()?.liveness.next_at()));
        let dials = self.dials.iter().map(|dial| dial.at(&self.peers));
        peers
            .chain(dials)
            .chain(self.connections.values().map(|connection| connection.deadline))
            .flatten()
            .min()
    }

    fn handle(&mut self, now: Instant, id: PeerId, frame: Frame) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        match (frame, &connection.phase) {
            (Frame::End(why), _) => self.end(now, id, &why),
            (Frame::Hello(them), Phase::Accepted) => return self.welcome(id, them),
            (Frame::Welcome(host, session), &Phase::Greeting(number)) => {
                return self.answered(now, id, number, (host, session));
            }
            (Frame::Begin(session), &Phase::Welcomed(host, ours)) if session == ours => {
                self.begin(now, id, host);
            }
            (Frame::Ping, Phase::Begun(host)) => {
                connection.is_asked = true;
                if let Some(current) = self.peers.get_mut(host).and_then(|peer| peer.current.as_mut()) {
                    current.liveness.kept(now);
                }
            }
            (Frame::Pong, Phase::Begun(_)) => {}
            _ => return Err(MessageError::Malformed("handshake").to_string()),
        }
        Ok(())
    }

    fn welcome(&mut self, id: PeerId, host: HostId) -> Result<(), String> {
        self.know(host)?;
        self.n_sessions += 1;
        if let Some(connection) = self.connections.get_mut(&id) {
            Frame::Welcome(self.me, self.n_sessions).encode(&mut connection.outbox);
            connection.phase = Phase::Welcomed(host, self.n_sessions);
        }
        Ok(())
    }

    /// A host has answered at an address: its session begins, unless it has a better connection.
    fn answered(
        &mut self,
        now: Instant,
        id: PeerId,
        number: usize,
        (host, session): (HostId, u64),
    ) -> Result<(), String> {
        let has_session = !self.know(host)?.is_idle();
        self.dials[number].host = Some(host);
        if has_session {
            return Err(NEEDLESS[1].to_owned());
        }
        let rivals =
            self.connections.values_mut().filter(|c| matches!(c.phase, Phase::Welcomed(to, _) if to == host));
        // Each is given way to once: if nothing comes of it, it is dead.
        let gives_way = rivals
            .map(|rival| !std::mem::replace(&mut rival.has_right_of_way, true))
            .fold(false, |a, b| a | b);
        if gives_way && self.me > host {
            return Err(NEEDLESS[0].to_owned());
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            Frame::Begin(session).encode(&mut connection.outbox);
        }
        self.begin(now, id, host);
        Ok(())
    }

    /// The handshake of a connection is over: it is the session, at the latest when that before was closed.
    fn begin(&mut self, now: Instant, id: PeerId, host: HostId) {
        let (Some(peer), Some(connection)) = (self.peers.get_mut(&host), self.connections.get_mut(&id))
        else {
            return;
        };
        let handshake = std::mem::replace(&mut connection.phase, Phase::Begun(host));
        connection.deadline = None;
        let next = peer.next.take();
        self.dials
            .iter_mut()
            .filter(|dial| dial.connection == Some(id))
            .for_each(|dial| dial.connection = None);
        self.leave_handshake(&handshake);
        // Whatever else was on its way to a session with this host would end the new one.
        let welcomed =
            self.connections.iter().filter(|(_, c)| matches!(c.phase, Phase::Welcomed(to, ..) if to == host));
        let others: Vec<_> = welcomed.map(|(&other, _)| other).chain(next).collect();
        for other in others {
            self.refuse(now, other, NEEDLESS[1]);
        }
        let Some(peer) = self.peers.get_mut(&host) else { return };
        match &peer.current {
            None => {
                peer.begin(now, id);
                self.events.push_back(Event::Began(host));
            }
            Some(current) => {
                let before = current.connection;
                peer.next = Some(id);
                self.refuse(now, before, NEEDLESS[1]);
            }
        }
    }

    fn insert(&mut self, id: PeerId, phase: Phase, deadline: Instant) {
        self.connections.insert(id, Connection::new(phase, deadline));
    }

    /// Nothing more is taken from a connection, and the driver is to close it.
    fn end(&mut self, now: Instant, id: PeerId, why: &str) {
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
    fn know(&mut self, host: HostId) -> Result<&mut Peer, String> {
        if host == self.me {
            return Err("it is this host itself".to_owned());
        }
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

    fn leave_handshake(&mut self, phase: &Phase) {
        self.n_handshakes -= usize::from(phase.is_unproven());
    }

    fn peer_of(&mut self, id: PeerId) -> Option<&mut Peer> {
        match self.connections.get(&id)?.phase {
            Phase::Begun(host) => self.peers.get_mut(&host),
            _ => None,
        }
    }
}
