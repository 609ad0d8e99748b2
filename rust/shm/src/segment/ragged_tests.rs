//! Tensors of varying length: what is written to a batch, and slots with any bytes.

use std::ptr::NonNull;
use std::sync::Arc;

use super::ragged::RaggedRows;
use super::ragged_layout::{RaggedLayout, RaggedTensor};
use crate::copy::ForeignBytes;
use crate::{Segment, SegmentError};

const N_SLOTS: u32 = 5;
/// Fills memory that a gather may not write to.
const POISON: u8 = 0xee;

fn layout() -> RaggedLayout {
    let tensor =
        |name: &str, step_len, max_length| RaggedTensor { name: name.to_owned(), step_len, max_length };
    // 16 bytes of lengths, and 3 of a tensor of fixed size.
    RaggedLayout::new(19, vec![tensor("ids", 4, 10), tensor("states", 6, 7)]).unwrap()
}

/// The memory of a batch.
struct Memory {
    n: usize,
    offsets: Vec<u8>,
    values: [Vec<u8>; 2],
}

impl Memory {
    fn new(n: usize) -> Self {
        let offsets = vec![POISON; layout().offsets_len(n).unwrap()];
        Self { n, offsets, values: [vec![POISON; 40 * n], vec![POISON; 42 * n]] }
    }

    fn with<T>(&mut self, act: impl FnOnce(&RaggedRows<'_>) -> T) -> T {
        let [ids, states] = &mut self.values;
        let foreign = |bytes: &mut Vec<u8>| {
            let place = NonNull::slice_from_raw_parts(NonNull::new(bytes.as_mut_ptr()).unwrap(), bytes.len());
            // SAFETY: M6: the vectors are not used before `act` is over.
            unsafe { ForeignBytes::new(place, &()) }
        };
        let (offsets, values) = (foreign(&mut self.offsets), [foreign(ids), foreign(states)]);
        act(&RaggedRows { layout: &layout(), offsets, values: &values })
    }

    fn offsets(&self, tensor: usize) -> Vec<i64> {
        let (numbers, _) = self.offsets.as_chunks::<8>();
        numbers[tensor * (self.n + 1)..][..=self.n].iter().map(|number| i64::from_ne_bytes(*number)).collect()
    }
}

/// A segment with a sample in each slot; behind its last byte there is poison.
fn segment(lengths: &[[usize; 2]]) -> Segment {
    let slot_size = 19 + 40 + 42;
    let segment = Segment::create_shm(None, slot_size, u64::from(N_SLOTS)).unwrap();
    for (slot, [ids, states]) in lengths.iter().enumerate() {
        let mut sample = Vec::new();
        sample.extend(i64::try_from(*ids).unwrap().to_ne_bytes());
        sample.extend(i64::try_from(*states).unwrap().to_ne_bytes());
        sample.extend([1, 2, 3]);
        sample.extend(values(slot, 0, *ids * 4));
        sample.extend(values(slot, 1, *states * 6));
        sample.resize(usize::try_from(slot_size).unwrap(), POISON);
        segment.write_slot(slot as u64 * slot_size, &sample).unwrap();
    }
    segment
}

fn values(slot: usize, tensor: usize, len: usize) -> impl Iterator<Item = u8> {
    (0..len).map(move |i| (slot * 50 + tensor * 25 + i) as u8 % 0xe0)
}

#[test]
fn values_of_slots_are_laid_end_to_end_and_nothing_else_is_written() {
    let lengths = [[3, 0], [10, 7], [0, 0], [1, 2], [0, 7]];
    let segment = segment(&lengths);
    let slots = [4, 1, 2, 0, 3];
    let mut memory = Memory::new(6);
    // In two steps, as samples come.
    for (first_row, slots) in [(0, &slots[..2]), (2, &slots[2..])] {
        memory.with(|ragged| {
            segment.measure(slots, first_row, ragged).unwrap();
            segment.gather(slots, first_row, &[], Some(ragged)).unwrap();
        });
    }
    segment.unlink().unwrap();
    let unset = i64::from_ne_bytes([POISON; 8]);
    assert_eq!(memory.offsets(0), [0, 0, 10, 10, 13, 14, unset]);
    assert_eq!(memory.offsets(1), [0, 7, 14, 14, 14, 16, unset]);
    for (tensor, step_len) in [(0, 4), (1, 6)] {
        let mut expected: Vec<u8> = slots
            .iter()
            .flat_map(|&slot| values(slot as usize, tensor, lengths[slot as usize][tensor] * step_len))
            .collect();
        expected.resize(memory.values[tensor].len(), POISON);
        assert_eq!(memory.values[tensor], expected);
    }
}

#[test]
fn peers_know_how_many_bytes_a_sample_has() {
    let slot_size = 19 + 40 + 42;
    let owner = Segment::create_shm_apart(None, slot_size, 128, 2, Some(&layout())).unwrap();
    let peer = Arc::new(Segment::attach_shm(owner.address()).unwrap());
    let told = peer.ragged().unwrap();
    let sizes = |layout: &RaggedLayout| {
        let tensors = layout.tensors().iter().map(|tensor| (tensor.step_len, tensor.max_length));
        (layout.values_at(), tensors.collect::<Vec<_>>())
    };
    assert_eq!(sizes(told), sizes(owner.ragged().unwrap()));
    let slot = peer.view(128, slot_size).unwrap();
    for (lengths, expected) in [
        ([3, 5], Ok(19 + 12 + 30)),
        ([0, 0], Ok(19)),
        ([10, 7], Ok(101)),
        ([11, 0], Err("tensor \"0\" has length 11, need 0 to 10")),
        ([0, -1], Err("tensor \"1\" has length -1, need 0 to 7")),
    ] {
        owner.write(128, lengths.map(i64::to_ne_bytes).as_flattened()).unwrap();
        assert_eq!(told.sample_len(slot.bytes()), expected.map_err(str::to_owned));
    }
    assert!(told.sample_len(slot.bytes().part(0, 15).unwrap()).is_err());
    owner.unlink().unwrap();
    let plain = Segment::create_shm(None, slot_size, 2).unwrap();
    assert_eq!(Segment::attach_shm(plain.address()).unwrap().ragged(), None);
    plain.unlink().unwrap();
}

#[test]
fn the_layout_of_other_slots_or_of_too_many_tensors_is_not_told() {
    let error = Segment::create_shm_apart(None, 100, 100, 1, Some(&layout())).unwrap_err();
    assert!(
        matches!(error, SegmentError::Invalid(why) if why.contains("101 bytes at most, and slots have 100"))
    );
    let many: Vec<_> =
        (0..129).map(|i| RaggedTensor { name: i.to_string(), step_len: 1, max_length: 1 }).collect();
    let many = RaggedLayout::new(129 * 8, many).unwrap();
    let owner = Segment::create_shm_apart(None, 129 * 9, 129 * 9, 1, Some(&many)).unwrap();
    assert_eq!(owner.ragged(), None);
    owner.unlink().unwrap();
}

#[test]
fn a_length_that_no_sample_has_is_refused() {
    let segment = segment(&[[1, 1], [2, 2]]);
    for (at, length) in [(0, 11), (0, -1), (8, 8), (8, i64::MIN), (8, i64::MAX), (0, 1 << 40)] {
        segment.write(101, &2_i64.to_ne_bytes()).unwrap();
        segment.write(109, &2_i64.to_ne_bytes()).unwrap();
        segment.write(101 + at, &length.to_ne_bytes()).unwrap();
        let error = Memory::new(2).with(|ragged| segment.measure(&[0, 1], 0, ragged)).unwrap_err();
        let (name, max) = if at == 0 { ("ids", 10) } else { ("states", 7) };
        let why = format!("tensor {name:?} has length {length}, need 0 to {max}");
        let address = segment.address().to_owned();
        assert_eq!(error, SegmentError::Malformed { name: address, slot: 1, start: at, why });
    }
    segment.unlink().unwrap();
}

#[test]
fn offsets_that_were_changed_after_they_were_measured_lead_to_no_byte_beyond_a_slot() {
    let segment = segment(&[[1, 1]; 5]);
    let mut memory = Memory::new(3);
    for (row, offset) in [(1, 11), (1, -1), (2, i64::MAX), (2, 0), (1, 100)] {
        memory.with(|ragged| segment.measure(&[0, 1, 2], 0, ragged)).unwrap();
        memory.offsets[row * 8..][..8].copy_from_slice(&i64::to_ne_bytes(offset));
        let gathered = memory.with(|ragged| segment.gather(&[0, 1, 2], 0, &[], Some(ragged)));
        assert!(matches!(gathered, Err(SegmentError::OutOfBounds { .. })), "{row} {offset}: {gathered:?}");
    }
    let measured = memory.with(|ragged| segment.measure(&[0, 1], 2, ragged));
    assert!(matches!(measured, Err(SegmentError::OutOfBounds { .. })), "one row too many");
    segment.unlink().unwrap();
}

#[test]
fn slots_of_any_bytes_are_gathered_or_refused() {
    let segment = segment(&[]);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let (mut n_gathered, mut n_refused) = (0, 0);
    for _ in 0..3_000 {
        let mut sample: Vec<u8> = (0..101).map(|_| next() as u8).collect();
        for at in [0, 8] {
            let length = match next() % 4 {
                0 => i64::from_ne_bytes(next().to_ne_bytes()),
                _ => i64::try_from(next() % 12).unwrap() - 1,
            };
            sample[at..at + 8].copy_from_slice(&length.to_ne_bytes());
        }
        let slot = u32::try_from(next() % u64::from(N_SLOTS)).unwrap();
        segment.write_slot(u64::from(slot) * 101, &sample).unwrap();
        let mut memory = Memory::new(1);
        let measured = memory.with(|ragged| {
            segment.measure(&[slot], 0, ragged).and_then(|()| segment.gather(&[slot], 0, &[], Some(ragged)))
        });
        let stated = [0, 8].map(|at| i64::from_ne_bytes(sample[at..at + 8].try_into().unwrap()));
        let is_valid = (0..=10).contains(&stated[0]) && (0..=7).contains(&stated[1]);
        assert_eq!(measured.is_ok(), is_valid, "{stated:?}: {measured:?}");
        if is_valid {
            n_gathered += 1;
            let ids = usize::try_from(stated[0]).unwrap() * 4;
            let states = usize::try_from(stated[1]).unwrap() * 6;
            assert_eq!(memory.values[0][..ids], sample[19..][..ids]);
            assert_eq!(memory.values[1][..states], sample[19 + ids..][..states]);
            assert!(memory.values[0][ids..].iter().all(|byte| *byte == POISON));
        } else {
            n_refused += 1;
        }
    }
    segment.unlink().unwrap();
    assert!(n_gathered > 100 && n_refused > 100, "{n_gathered} {n_refused}");
}

#[test]
fn layouts_that_do_not_fit_are_refused() {
    let tensor = |step_len, max_length| RaggedTensor { name: String::new(), step_len, max_length };
    assert!(RaggedLayout::new(8, vec![]).is_none());
    assert!(RaggedLayout::new(15, vec![tensor(1, 1), tensor(1, 1)]).is_none(), "no room for the lengths");
    assert!(RaggedLayout::new(8, vec![tensor(usize::MAX, 2)]).is_none());
    assert!(RaggedLayout::new(usize::MAX, vec![tensor(1, 1)]).is_none());
    assert_eq!(RaggedLayout::new(8, vec![tensor(0, 5)]).unwrap().max_values_len(), 0);
    let segment = segment(&[]);
    let small = RaggedLayout::new(20, vec![tensor(82, 1)]).unwrap();
    let mut memory = Memory::new(1);
    let measured = memory.with(|ragged| segment.measure(&[0], 0, &RaggedRows { layout: &small, ..*ragged }));
    assert!(matches!(measured, Err(SegmentError::OutOfBounds { .. })), "larger than a slot");
    segment.unlink().unwrap();
}
