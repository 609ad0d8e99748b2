//! The handshake of a session, and of the further connections that join it.

use std::time::Instant;

use super::connection::Phase;
use super::frames::{Frame, Width};
use super::identity::HostId;
use super::peer::Current;
use super::session::{Event, NEEDLESS, Sessions};
use crate::broker::PeerId;
use crate::framing::MessageError;
use crate::limits::MAX_LINK_CONNECTIONS;

impl Sessions {
    pub(super) fn handle(&mut self, now: Instant, id: PeerId, frame: Frame) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        match (frame, &connection.phase) {
            (Frame::End(why), _) => self.end(now, id, &why),
            (Frame::Hello(them), Phase::Accepted) => return self.welcome(id, them),
            (Frame::Welcome(host, session, width), &Phase::Greeting(number)) => {
                return self.answered(now, id, number, (host, session, width));
            }
            (Frame::Begin(session), &Phase::Welcomed(host, ours)) if session == ours => {
                self.begin(now, id, host);
            }
            (Frame::Join(number, key), Phase::Accepted) => {
                connection.is_further = true;
                return self.host_by(id, number).and_then(|host| self.join(id, host, key));
            }
            (Frame::Joined, &Phase::Joining(host, key)) => return self.join(id, host, key),
            (Frame::Ping, Phase::Begun(_) | Phase::Joined(_)) => {
                connection.is_asked = true;
                self.current_of(id).into_iter().for_each(|current| current.liveness.kept(now));
            }
            (Frame::Pong, &Phase::Begun(host)) => {
                let ((number, n), key) = (std::mem::take(&mut connection.joins), connection.width.key);
                self.joins.extend((0..n).map(|_| (number, host, key)));
            }
            (Frame::Pong, Phase::Joined(_)) => {}
            _ => return Err(MessageError::Malformed("handshake").to_string()),
        }
        Ok(())
    }

    fn welcome(&mut self, id: PeerId, number: HostId) -> Result<(), String> {
        let host = self.host_by(id, number)?;
        self.know(host)?;
        self.n_sessions += 1;
        if let Some(connection) = self.connections.get_mut(&id) {
            Frame::Welcome(self.me, self.n_sessions, connection.width).encode(&mut connection.outbox);
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
        (host_number, session, theirs): (HostId, u64, Width),
    ) -> Result<(), String> {
        let host = self.host_by(id, host_number)?;
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
        if gives_way && self.me > host_number {
            return Err(NEEDLESS[0].to_owned());
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            Frame::Begin(session).encode(&mut connection.outbox);
            let n = connection.width.connections.max(theirs.connections).min(MAX_LINK_CONNECTIONS);
            connection.width.key = theirs.key;
            if theirs.key != 0 && n > 1 {
                // BEGIN may be lost at first: none is to join before it is there, which PONG proves.
                Frame::Ping.encode(&mut connection.outbox);
                connection.joins = (number, n - 1);
            }
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

    /// A connection joins the session with a host, as both ends have said.
    fn join(&mut self, id: PeerId, host: HostId, key: u64) -> Result<(), String> {
        let fingerprint = |id| self.connections.get(&id).map(|connection| connection.fingerprint);
        let first = self.session_by(host, key).filter(|first| fingerprint(*first) == fingerprint(id));
        let first = first.ok_or("it joins a session that is over, or that of another certificate")?;
        match self.current_of(first) {
            Some(current) if current.n_connections() < MAX_LINK_CONNECTIONS as usize => current.join(id),
            _ => return Err(format!("a session has {MAX_LINK_CONNECTIONS} connections at most")),
        }
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let handshake = std::mem::replace(&mut connection.phase, Phase::Joined(host));
        connection.deadline = None;
        if handshake.is_unproven() {
            Frame::Joined.encode(&mut connection.outbox);
        }
        self.leave_handshake(&handshake);
        Ok(())
    }

    /// The host that says this number, by its certificate.
    fn host_by(&self, id: PeerId, number: HostId) -> Result<HostId, String> {
        if number == self.me {
            return Err("it is this host itself".to_owned());
        }
        let fingerprint = self.connections.get(&id).map_or(0, |connection| connection.fingerprint);
        Ok(HostId(number.0 ^ fingerprint))
    }

    /// The first connection of the session with a host that has this key.
    pub(super) fn session_by(&self, host: HostId, key: u64) -> Option<PeerId> {
        self.session(host).filter(|first| key != 0 && self.connections[first].width.key == key)
    }

    /// Ends the session with a host, and tells it why: its own connections may all be there.
    pub(super) fn end_session(&mut self, now: Instant, host: HostId, why: &str) {
        if let Some(first) = self.session(host) {
            self.refuse(now, first, why);
        }
    }

    /// Connections of the session with a host.
    pub(crate) fn n_connections(&self, host: HostId) -> u32 {
        let current = self.peers.get(&host).and_then(|peer| peer.current.as_ref());
        current.map_or(0, |current| current.n_connections() as u32)
    }

    /// Whether it has not joined the session of another one.
    #[must_use]
    pub(crate) fn is_first(&self, id: PeerId) -> bool {
        self.first_of(id) == id
    }

    /// The first connection of the session that this one has joined; else itself.
    pub(super) fn first_of(&self, id: PeerId) -> PeerId {
        let Some(Phase::Joined(host)) = self.connections.get(&id).map(|it| &it.phase) else { return id };
        self.peers.get(host).and_then(|peer| peer.current.as_ref()).map_or(id, |current| current.connection)
    }

    /// The session of which this is a connection.
    pub(super) fn current_of(&mut self, id: PeerId) -> Option<&mut Current> {
        let first = self.first_of(id);
        let Phase::Begun(host) = self.connections.get(&first)?.phase else { return None };
        self.peers.get_mut(&host)?.current.as_mut().filter(|current| current.connection == first)
    }
}
