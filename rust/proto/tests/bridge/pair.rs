//! A student's host and teachers' hosts, with memory for connections.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use softs_proto::bridge::{Asked, Bridges, Fate, Output, RaggedTensor, SampleLayout};
use softs_proto::broker::PeerId;
use softs_proto::client::{LaneRef, Lanes, SlotId};
use softs_proto::link::{HostId, Width};

use crate::lane_model::{Claim, ModelLanes};

pub(crate) type Machine = Bridges<Claim, ModelLanes>;

pub(crate) const PRODUCT: u32 = 0;
pub(crate) const LENGTH: u64 = 600_000;
/// The supplier that the ingress is, and that of the teacher.
pub(crate) const INGRESS: u64 = 1;
pub(crate) const TEACHER: u64 = 2;

/// That of samples that all have so many bytes.
pub(crate) fn fixed(bytes: u64) -> SampleLayout {
    SampleLayout::new(bytes, [].into()).unwrap()
}

pub(crate) fn layout() -> SampleLayout {
    fixed(LENGTH)
}

/// That of samples with one ragged tensor of bytes, in slots as large.
pub(crate) fn ragged() -> SampleLayout {
    SampleLayout::new(8, [RaggedTensor { step_bytes: 1, max_length: LENGTH - 8 }].into()).unwrap()
}

pub(crate) fn machine(host: u64) -> Machine {
    Bridges::new(HostId(host))
}

pub(crate) fn product() -> Arc<str> {
    Arc::from("p")
}

/// Host 1 with a student: the client has `n` orders in its lane, from sequence number 100 on.
pub(crate) fn student(n: u32) -> (Machine, ModelLanes, LaneRef) {
    let mut lanes = ModelLanes::new(1, 64);
    let lane = lanes.open("p").unwrap();
    assert!(lanes.attach(INGRESS, lane));
    assert!((0..n).all(|slot| lanes.place(lane, slot, 100 + u64::from(slot))));
    (machine(1), lanes, lane)
}

/// A teachers' host that makes what it is asked for in so many slots.
pub(crate) struct Teachers {
    pub(crate) machine: Machine,
    pub(crate) lanes: ModelLanes,
    pub(crate) lane: LaneRef,
    pub(crate) n_slots: u32,
}

/// Such a host, and its lanes.
pub(crate) fn teacher(host: u64, n_slots: u32) -> (Teachers, ModelLanes) {
    let mut lanes = ModelLanes::new(1, 64);
    let lane = lanes.open("p").unwrap();
    assert!(lanes.attach(TEACHER, lane));
    (Teachers { machine: machine(host), lanes: lanes.clone(), lane, n_slots }, lanes)
}

/// The names that both ends give to their connection.
pub(crate) const DIALLED: PeerId = PeerId(1);
pub(crate) const ACCEPTED: PeerId = PeerId(2);
/// What further connections of a session show.
pub(crate) const KEY: u64 = 77;

/// Two hosts with a session, of which the first has dialled.
pub(crate) struct Pair {
    pub(crate) now: Instant,
    pub(crate) ends: [Machine; 2],
    /// The names that both ends give to each connection.
    pub(crate) names: Vec<[PeerId; 2]>,
    /// What each has stored, by slot.
    pub(crate) stored: BTreeMap<SlotId, u64>,
}

impl Pair {
    /// A session.
    pub(crate) fn new(first: Machine, second: Machine) -> Self {
        Self::wide([1; 2], first, second)
    }

    /// A session of which both ends want so many connections.
    pub(crate) fn wide(wanted: [u32; 2], mut first: Machine, second: Machine) -> Self {
        first.sessions().want(Instant::now());
        let (ends, names, stored) = ([first, second], Vec::new(), BTreeMap::new());
        let mut pair = Self { now: Instant::now(), ends, names, stored };
        while let Some((_, dialled)) = pair.ends[0].sessions().poll_dial(pair.now) {
            let names = [dialled, PeerId(2 * (1 + pair.names.len() as u64))];
            assert!(pair.ends[1].sessions().accepted(pair.now, names[1]));
            for end in 0..2 {
                let width = Width { connections: wanted[end], key: [0, KEY][end] };
                pair.ends[end].sessions().widen(names[end], width);
            }
            pair.ends[0].sessions().connected(dialled);
            pair.names.push(names);
            pair.pump();
        }
        assert_eq!(pair.names[0], [DIALLED, ACCEPTED]);
        pair
    }

    /// The hosts of `student` and `teacher` with a bridge, number 0.
    pub(crate) fn bridged(student: Machine, teachers: Teachers) -> Self {
        Self::bridged_by(&layout(), student, teachers)
    }

    /// The same, for samples of a layout.
    pub(crate) fn bridged_by(layout: &SampleLayout, student: Machine, teachers: Teachers) -> Self {
        Self::bridged_wide(1, layout, student, teachers)
    }

    /// The same, by so many connections.
    pub(crate) fn bridged_wide(n: u32, layout: &SampleLayout, student: Machine, teachers: Teachers) -> Self {
        let Teachers { machine, lanes, lane, n_slots } = teachers;
        let mut pair = Self::wide([1, n], student, machine);
        assert_eq!(pair.ends[0].add_ingress(HostId(2), &product(), layout), Some(0));
        pair.pump();
        let asked = pair.ends[1].poll_asked();
        assert_eq!(asked, Some(Asked { number: PRODUCT, product: product(), layout: layout.clone() }));
        pair.ends[1].set_lane(PRODUCT, lanes, lane, n_slots);
        pair.teach();
        pair.pump();
        pair
    }

    /// Moves all that there is both ways.
    pub(crate) fn pump(&mut self) {
        loop {
            let (to_second, to_first) = (self.carry(0), self.carry(1));
            if !to_second && !to_first {
                return;
            }
        }
    }

    /// Moves what one end has to the other one; whether it had something.
    pub(crate) fn carry(&mut self, from: usize) -> bool {
        (0..self.names.len()).fold(false, |any, at| any | self.carry_by(at, from, usize::MAX))
    }

    /// The same by one of their connections, so often at most.
    pub(crate) fn carry_by(&mut self, at: usize, from: usize, most: usize) -> bool {
        let names = self.names[at];
        let mut moved = false;
        for _ in 0..most {
            let Some(output) = self.ends[from].poll_output(names[from]) else { break };
            moved = true;
            let (there, name) = (&mut self.ends[1 - from], names[1 - from]);
            match output {
                Output::Frames(bytes) => there.receive(self.now, name, &mut &bytes[..]),
                Output::Piece(piece) => {
                    there.receive(self.now, name, &mut &piece.header[..]);
                    let (claim, offset, left) = there.piece(name).expect("it was posted");
                    assert_eq!((offset, left as u64), (piece.from, piece.to - piece.from));
                    *self.stored.entry(claim.slot).or_default() += left as u64;
                    claim.stated.set(Some(piece.to));
                    there.stored(self.now, name, left);
                    self.ends[from].sent(&piece);
                }
            }
        }
        moved
    }

    /// The second end looks at its lane.
    pub(crate) fn teach(&mut self) {
        self.ends[1].handle_lanes(PRODUCT, &mut |_| Ok(LENGTH));
    }

    /// The student's end claims what it may; how many.
    pub(crate) fn claim(&mut self, lanes: &ModelLanes) -> usize {
        let room = self.ends[0].room(self.now, HostId(2), 0).orders;
        let claims: Vec<_> = (0..room).map_while(|_| lanes.claim(INGRESS)).collect();
        let n = claims.len();
        for claim in claims {
            let sequence = claim.sequence;
            self.ends[0].claimed(self.now, HostId(2), 0, claim, sequence);
        }
        n
    }

    /// How claims of the student's end have ended, by sequence number.
    pub(crate) fn ended(&mut self) -> Vec<(u64, Fate)> {
        std::iter::from_fn(|| self.ends[0].poll_ended()).map(|(claim, fate)| (claim.sequence, fate)).collect()
    }

    /// Why an end closes its connection, if it does, as it tells its peer.
    pub(crate) fn end_of(&mut self, end: usize) -> Option<String> {
        let name = [DIALLED, ACCEPTED][end];
        let closing = self.ends[end].sessions().poll_closing()?;
        assert_eq!(closing, name);
        let Some(Output::Frames(bytes)) = self.ends[end].poll_output(name) else {
            return Some(String::new());
        };
        Some(String::from_utf8_lossy(&bytes[5..]).into_owned())
    }
}
