//! Connections in virtual time: in order, with a delay, and with cuts during which what was sent waits.

use std::collections::{BTreeMap, VecDeque};

use softs_proto::broker::PeerId;

/// Microseconds since the start.
pub(crate) type Time = u64;
pub(crate) type Node = usize;

/// What is on its way.
#[derive(Debug)]
pub(crate) enum Segment {
    /// The other end may accept.
    Dial,
    /// The other end has accepted.
    Accepted,
    Bytes(Vec<u8>),
    /// Bytes of a sample, which all are the sequence number of what the slot had when the kernel took them.
    Body {
        sample: u64,
        from: u64,
        to: u64,
    },
    /// The other end has closed.
    Closed,
}

#[derive(Debug)]
pub(crate) struct Connection {
    /// The end that has dialled, and the other one.
    pub(crate) nodes: [Node; 2],
    /// Their names of it; none once that end has closed it, or has not accepted it yet.
    pub(crate) names: [Option<PeerId>; 2],
    /// To each end.
    pub(crate) on_way: [VecDeque<(Time, Segment)>; 2],
    /// The network has lost all that it knew of it: nothing arrives any more, and no end is told.
    pub(crate) is_lost: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Network {
    pub(crate) connections: BTreeMap<u64, Connection>,
    last: u64,
    /// One way, by pair of nodes.
    pub(crate) delay: BTreeMap<(Node, Node), Time>,
    /// Until when nothing arrives, by direction.
    pub(crate) cut_until: BTreeMap<(Node, Node), Time>,
}

impl Network {
    pub(crate) fn dial(&mut self, now: Time, from: Node, to: Node, name: PeerId) {
        self.last += 1;
        let connection = Connection {
            nodes: [from, to],
            names: [Some(name), None],
            on_way: Default::default(),
            is_lost: false,
        };
        self.connections.insert(self.last, connection);
        self.send(now, self.last, 1, Segment::Dial);
    }

    /// The connection that a node calls so, and which end of it the node is.
    pub(crate) fn find(&self, node: Node, name: PeerId) -> Option<(u64, usize)> {
        self.connections.iter().find_map(|(&key, connection)| {
            let end =
                (0..2).find(|&end| connection.nodes[end] == node && connection.names[end] == Some(name))?;
            Some((key, end))
        })
    }

    /// Sends to one of the ends.
    pub(crate) fn send(&mut self, now: Time, key: u64, to: usize, segment: Segment) {
        let connection = self.connections.get_mut(&key).unwrap();
        let (sender, receiver) = (connection.nodes[1 - to], connection.nodes[to]);
        let pair = (sender.min(receiver), sender.max(receiver));
        // What goes by another connection is sooner or later there.
        let at = now + self.delay.get(&pair).copied().unwrap_or(100) * (2 + key % 3) / 2;
        connection.on_way[to].push_back((at, segment));
    }

    /// A node closes its end.
    pub(crate) fn close(&mut self, now: Time, node: Node, name: PeerId) {
        let Some((key, end)) = self.find(node, name) else { return };
        self.connections.get_mut(&key).unwrap().names[end] = None;
        self.send(now, key, 1 - end, Segment::Closed);
    }

    fn arrives_at(&self, connection: &Connection, to: usize) -> Option<Time> {
        let (at, _) = connection.on_way[to].front().filter(|_| !connection.is_lost)?;
        let direction = (connection.nodes[1 - to], connection.nodes[to]);
        Some(self.cut_until.get(&direction).map_or(*at, |until| *until.max(at)))
    }

    /// What arrives next, and when: the time, the connection and its end. `is_awake`: which nodes take something.
    pub(crate) fn next(&self, is_awake: impl Fn(Node) -> bool) -> Option<(Time, u64, usize)> {
        let arrivals = self.connections.iter().flat_map(|(&key, connection)| {
            [0, 1].map(|to| {
                let at = self.arrives_at(connection, to).filter(|_| is_awake(connection.nodes[to]));
                at.map(|at| (at, key, to))
            })
        });
        arrivals.flatten().min()
    }

    pub(crate) fn take(&mut self, key: u64, to: usize) -> Segment {
        self.connections.get_mut(&key).unwrap().on_way[to].pop_front().unwrap().1
    }

    /// Drops connections that have no end any more.
    pub(crate) fn sweep(&mut self) {
        self.connections.retain(|_, c| {
            c.names.iter().any(Option::is_some)
                || c.on_way.iter().any(|way| way.iter().any(|(_, s)| matches!(s, Segment::Dial)))
        });
    }
}
