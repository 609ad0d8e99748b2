//! Connections between hosts: in order, with delay, jitter, rate and loss, and with cuts during which what was sent
//! waits.

use std::collections::VecDeque;
use std::ops::Range;

use softs_proto::broker::PeerId;

use crate::model::{MS, Options, Random, SECOND, Time};
use crate::segment::Sample;

/// A retransmission takes so long at least.
const LEAST_RETRANSMISSION: Time = 200 * MS;
/// Bytes of the headers of a packet.
const HEADER_BYTES: u64 = 66;

/// What is on its way.
#[derive(Debug)]
pub(crate) enum Packet {
    Dial,
    Accepted,
    Bytes(Vec<u8>),
    /// The header of a piece, and the bytes of the sample behind it.
    Piece(Vec<u8>, Sample, u64, u64),
    Closed,
    /// A message of the program beside the simulation: its tag and its bytes.
    Guest(u64, u64),
}

impl Packet {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Piece(header, _, from, to) => header.len() as u64 + to - from,
            Self::Guest(_, bytes) => *bytes,
            Self::Dial | Self::Accepted | Self::Closed => 0,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    /// The end that has dialled, and the other one.
    pub(crate) hosts: [usize; 2],
    /// Their names of it, while they have it open.
    pub(crate) names: [Option<PeerId>; 2],
    /// To each end, and when the last of it arrives.
    pub(crate) on_way: [VecDeque<Packet>; 2],
    arrival: [Time; 2],
    /// No end is told, and nothing arrives any more.
    pub(crate) is_lost: bool,
}

/// Nothing arrives from these hosts at those until then.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub(crate) until: Time,
    pub(crate) from: Range<usize>,
    pub(crate) to: Range<usize>,
}

#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) connections: Vec<Connection>,
    pub(crate) cuts: Vec<Cut>,
    /// When the lines of each host are free: to the network, and from it.
    free: Vec<[Time; 2]>,
    /// Bytes that have left each host, and have reached it.
    pub(crate) carried: Vec<[u64; 2]>,
}

impl Network {
    pub(crate) fn new(n_hosts: usize) -> Self {
        let (free, carried) = (vec![[0; 2]; n_hosts], vec![[0; 2]; n_hosts]);
        Self { connections: Vec::new(), cuts: Vec::new(), free, carried }
    }

    /// A new connection, before [`Packet::Dial`] is sent.
    pub(crate) fn dial(&mut self, from: usize, to: usize, name: PeerId) -> usize {
        let key = self.join((from, to));
        self.connections[key].names[0] = Some(name);
        key
    }

    /// A new connection of two hosts, of which links know nothing.
    pub(crate) fn join(&mut self, (from, to): (usize, usize)) -> usize {
        self.connections.push(Connection {
            hosts: [from, to],
            names: [None; 2],
            on_way: Default::default(),
            arrival: [0; 2],
            is_lost: false,
        });
        self.connections.len() - 1
    }

    /// Sends to one of the ends; when it arrives.
    pub(crate) fn send(
        &mut self,
        now: Time,
        options: &Options,
        random: &mut Random,
        (key, to): (usize, usize),
        segment: Packet,
    ) -> Time {
        let connection = &mut self.connections[key];
        let (sender, receiver) = (connection.hosts[1 - to], connection.hosts[to]);
        let bytes = segment.len() + HEADER_BYTES;
        let takes = bytes * SECOND / options.rate;
        let left = self.free[sender][0].max(now) + takes;
        let is_near = sender / options.hosts_per_rack == receiver / options.hosts_per_rack;
        let delay = if is_near { options.delay / 5 } else { options.delay };
        let is_lost = options.losses.is_some_and(|n| random.one_in(n));
        let stall = if is_lost { LEAST_RETRANSMISSION.max(2 * delay) } else { 0 };
        // The line of the receiver takes them while they arrive.
        let reached = (left + delay + random.below(delay / 5 + 1)).max(self.free[receiver][1] + takes);
        (self.free[sender][0], self.free[receiver][1]) = (left, reached);
        self.carried[sender][0] += bytes;
        self.carried[receiver][1] += bytes;
        connection.arrival[to] = connection.arrival[to].max(reached + stall);
        connection.on_way[to].push_back(segment);
        connection.arrival[to]
    }

    /// Until when nothing arrives at an end.
    pub(crate) fn blocked_until(&self, key: usize, to: usize) -> Time {
        let hosts = self.connections[key].hosts;
        let (from, to) = (hosts[1 - to], hosts[to]);
        let of_it = self.cuts.iter().filter(|cut| cut.from.contains(&from) && cut.to.contains(&to));
        of_it.map(|cut| cut.until).max().unwrap_or(0)
    }
}
