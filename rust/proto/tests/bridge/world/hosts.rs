//! What is on the hosts: students with slots, teachers with suppliers, and the memory that both have.

use std::collections::{BTreeMap, BTreeSet};

use softs_proto::bridge::Fate;
use softs_proto::broker::PeerId;
use softs_proto::client::{Ending, LaneRef, Lanes, SlotId};
use softs_proto::link::{Event, HostId};

use super::{MS, N_ORDERS, PRODUCT, Process, World};
use crate::lane_model::{Claim, ModelLanes};
use crate::network::{Node, Time};

/// A supplier: what it has claimed, and when its call ends.
pub(super) struct Supplier {
    pub(super) owner: u64,
    pub(super) call: Option<(Claim, Time)>,
}

pub(super) struct Student {
    pub(super) lanes: ModelLanes,
    pub(super) lane: LaneRef,
    /// The order in each slot.
    pub(super) slots: Vec<Option<u64>>,
    pub(super) next: u64,
    pub(super) again: Vec<u64>,
    pub(super) served: BTreeSet<u64>,
    pub(super) suppliers: Vec<Supplier>,
    /// What each slot has: the sample, and up to which byte.
    pub(super) memory: BTreeMap<SlotId, (u64, u64)>,
    /// As a supplier of its own lanes the link has this name, and another one after each restart.
    pub(super) ingress: u64,
    pub(super) bridges: Vec<(HostId, u32)>,
}

pub(super) struct Teacher {
    pub(super) lanes: ModelLanes,
    pub(super) lane: LaneRef,
    pub(super) n_slots: u32,
    pub(super) suppliers: Vec<Supplier>,
    pub(super) memory: BTreeMap<SlotId, u64>,
    pub(super) drained: bool,
}

impl World {
    pub(super) fn new_student(&mut self) -> Student {
        let mut lanes = ModelLanes::new(1, 64);
        let lane = lanes.open("p").unwrap();
        let n_local = self.random.below(3);
        let suppliers = (0..n_local).map(|_| self.new_supplier()).collect::<Vec<_>>();
        for supplier in &suppliers {
            lanes.attach(supplier.owner, lane);
        }
        let n_slots = 2 + self.random.below(30) as usize;
        Student {
            lanes,
            lane,
            slots: vec![None; n_slots],
            next: 0,
            again: Vec::new(),
            served: BTreeSet::new(),
            suppliers,
            memory: BTreeMap::new(),
            ingress: 0,
            bridges: Vec::new(),
        }
    }

    pub(super) fn new_supplier(&mut self) -> Supplier {
        self.names += 1;
        Supplier { owner: self.names, call: None }
    }

    /// Bytes of a sample have arrived: they go where the machine says (N4), as many as it says (N7).
    pub(super) fn store(&mut self, key: u64, name: PeerId, sample: u64, from: u64, to: u64) {
        let nodes = self.network.connections[&key].nodes;
        let node = *nodes.iter().find(|&&node| node < self.n_students).unwrap();
        let (length, now) = (self.length_of(sample), self.instant());
        let Process { machine, student, .. } = &mut self.nodes[node];
        let student = student.as_mut().unwrap();
        let mut at = from;
        while at < to {
            let Some((claim, offset, left)) = machine.piece(name) else { return };
            assert_eq!((offset, left as u64), (at, to - at), "seed {}: where they belong", self.seed);
            assert!(student.lanes.is_claimed(claim), "seed {}: written after its claim has ended", self.seed);
            assert_eq!(claim.sequence, sample, "seed {}: another order", self.seed);
            assert!(to <= length);
            let n = (1 + self.random.below(200_000)).min(to - at);
            let memory = student.memory.entry(claim.slot).or_insert((sample, 0));
            claim.stated.set(Some(length));
            *memory = if at == 0 { (sample, n) } else { (memory.0, memory.1 + n) };
            machine.stored(now, name, n as usize);
            at += n;
        }
    }

    pub(super) fn end_claims(&mut self, node: Node) {
        let Process { machine, student, .. } = &mut self.nodes[node];
        while let Some((claim, fate)) = machine.poll_ended() {
            let student = student.as_mut().unwrap();
            match fate {
                Fate::Written(bytes) => {
                    let found = student.memory.get(&claim.slot).copied();
                    assert_eq!(found, Some((claim.sequence, bytes)), "seed {}: torn", self.seed);
                    student.lanes.publish(&claim, Ok(()));
                    self.through_links += 1;
                }
                Fate::Failed(text) => student.lanes.publish(&claim, Err(&text)),
                Fate::Returned => {
                    student.lanes.unclaim(&claim);
                    self.n_returned += 1;
                }
            }
        }
        let layout = self.layout();
        let process = &mut self.nodes[node];
        while let Some(event) = process.machine.poll_event() {
            let is_right = match event {
                Event::Began(host) => {
                    self.n_sessions += 1;
                    if let Some(student) = &mut process.student {
                        let bridge = process.machine.add_ingress(host, &"p".into(), &layout);
                        student.bridges.extend(bridge.map(|bridge| (host, bridge)));
                    }
                    process.sessions.insert(host)
                }
                Event::Ended(host, _) => {
                    process
                        .student
                        .iter_mut()
                        .for_each(|one| one.bridges.retain(|(known, _)| *known != host));
                    process.sessions.remove(&host)
                }
            };
            assert!(is_right, "seed {}: sessions of one link overlap", self.seed);
        }
    }

    pub(super) fn use_student(&mut self, node: Node) {
        let now = self.instant();
        let length = self.length;
        let Process { machine, student, .. } = &mut self.nodes[node];
        let student = student.as_mut().unwrap();
        while let Some(event) = student.lanes.poll() {
            let sequence = student.slots[event.slot as usize].take().unwrap();
            match event.ending {
                Ending::Done => {
                    assert!(student.served.insert(sequence), "seed {}: {sequence} twice", self.seed);
                    let (sample, _) = student.memory[&event.slot];
                    assert_eq!(sample, sequence, "seed {}: the bytes of another order", self.seed);
                }
                Ending::Failed(_) | Ending::Lost => student.again.push(sequence),
            }
        }
        for slot in 0..student.slots.len() {
            if student.slots[slot].is_none() && (student.next < N_ORDERS || !student.again.is_empty()) {
                let sequence = student.again.pop().unwrap_or_else(|| {
                    student.next += 1;
                    student.next - 1
                });
                assert!(student.lanes.place(student.lane, slot as SlotId, sequence));
                student.slots[slot] = Some(sequence);
            }
        }
        for supplier in &mut student.suppliers {
            if let Some((claim, _)) = supplier.call.take_if(|(_, at)| *at <= self.now) {
                student.memory.insert(claim.slot, (claim.sequence, length));
                student.lanes.publish(&claim, Ok(()));
            }
            if supplier.call.is_none()
                && let Some(claim) = student.lanes.claim(supplier.owner)
            {
                supplier.call = Some((claim, self.now + 5 * MS + self.random.below(60 * MS)));
            }
        }
        let n_idle = student.suppliers.iter().filter(|supplier| supplier.call.is_none()).count();
        let (n_slots, n_local) = (student.slots.len() as u32, student.suppliers.len());
        let counts =
            student.bridges.iter().map(|&(host, bridge)| u64::from(machine.n_suppliers(host, bridge)));
        let n_suppliers = counts.sum();
        for &(host, bridge) in &student.bridges {
            machine.set_share(host, bridge, if n_local > 0 { n_slots / 2 } else { n_slots }, n_suppliers);
            for _ in 0..machine.room(now, host, bridge).orders {
                let Some(claim) = student.lanes.claim(student.ingress) else { break };
                let sequence = claim.sequence;
                machine.claimed(now, host, bridge, claim, sequence);
            }
            if n_idle > 0 && !student.lanes.has_orders() {
                machine.handle_idle_suppliers(now, host, bridge, n_idle);
            }
        }
    }

    pub(super) fn use_teacher(&mut self, node: Node) {
        let lengths: BTreeMap<SlotId, u64> = {
            let teacher = self.nodes[node].teacher.as_ref().unwrap();
            teacher.memory.iter().map(|(&slot, &sequence)| (slot, self.length_of(sequence))).collect()
        };
        let Process { machine, teacher, .. } = &mut self.nodes[node];
        let teacher = teacher.as_mut().unwrap();
        while let Some(asked) = machine.poll_asked() {
            assert_eq!(asked.number, PRODUCT);
            machine.set_lane(PRODUCT, teacher.lanes.clone(), teacher.lane, teacher.n_slots);
        }
        for supplier in &mut teacher.suppliers {
            if let Some((claim, _)) = supplier.call.take_if(|(_, at)| *at <= self.now) {
                let result = if self.random.below(30) == 0 { Err("it failed") } else { Ok(()) };
                teacher.lanes.publish(&claim, result);
            }
            if supplier.call.is_none()
                && let Some(claim) = teacher.lanes.claim(supplier.owner)
            {
                teacher.memory.insert(claim.slot, claim.sequence);
                supplier.call = Some((claim, self.now + MS + self.random.below(20 * MS)));
            }
        }
        machine.handle_lanes(PRODUCT, &mut |slot| Ok(lengths[&slot]));
    }
}
