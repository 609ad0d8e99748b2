//! The control block: the last 4096 bytes of a segment, with its kind, sizes and names. See `docs/segment.md`.

use std::mem::offset_of;
use std::os::fd::BorrowedFd;

use super::access::read_all;
use super::layout::{BLOCK_LEN, Layout};
use super::ragged_layout::{RaggedLayout, RaggedTensor};

/// First bytes of a control block.
pub const MAGIC: [u8; 8] = *b"SLSEGMNT";
/// The layout described in `docs/segment.md`.
pub const LAYOUT_VERSION: u32 = 6;
const NAME_CAP: usize = 256;
/// Ragged tensors of which a block tells.
pub(crate) const RAGGED_CAP: usize = 128;

/// The block in the segment, all integers little-endian.
///
/// It is never mapped as a struct, only encoded and decoded field by field; the type fixes the offsets.
#[repr(C)]
struct Block {
    magic: [u8; 8],
    version: u32,
    kind: u32,
    slot_size: u64,
    n_slots: u64,
    segment_id: u64,
    owner_pid: u32,
    public_len: u16,
    hidden_len: u16,
    gap: u64,
    slot_stride: u64,
    public: [u8; NAME_CAP],
    hidden: [u8; NAME_CAP],
    n_ragged: u64,
    values_at: u64,
    ragged: [[u64; 2]; RAGGED_CAP],
    epoch: u64,
    room: [u8; BLOCK_LEN as usize - 600 - 16 * RAGGED_CAP],
}

const _: () = {
    assert!(size_of::<Block>() == BLOCK_LEN as usize);
    assert!(offset_of!(Block, magic) == 0);
    assert!(offset_of!(Block, version) == 8);
    assert!(offset_of!(Block, kind) == 12);
    assert!(offset_of!(Block, slot_size) == 16);
    assert!(offset_of!(Block, n_slots) == 24);
    assert!(offset_of!(Block, segment_id) == 32);
    assert!(offset_of!(Block, owner_pid) == 40);
    assert!(offset_of!(Block, public_len) == 44);
    assert!(offset_of!(Block, hidden_len) == 46);
    assert!(offset_of!(Block, gap) == 48);
    assert!(offset_of!(Block, slot_stride) == 56);
    assert!(offset_of!(Block, public) == 64);
    assert!(offset_of!(Block, hidden) == 320);
    assert!(offset_of!(Block, n_ragged) == 576);
    assert!(offset_of!(Block, values_at) == 584);
    assert!(offset_of!(Block, ragged) == 592);
    assert!(offset_of!(Block, epoch) == 2640);
    assert!(offset_of!(Block, room) == 2648);
};

/// Offset of the version in the block; it is written last.
pub(crate) const VERSION_AT: u64 = offset_of!(Block, version) as u64;
/// Offset of the segment's random number in the block.
pub(crate) const SEGMENT_ID_AT: u64 = offset_of!(Block, segment_id) as u64;
/// Offset of the epoch in the block, which is 0 at first.
pub(crate) const EPOCH_AT: u64 = offset_of!(Block, epoch) as u64;

/// Kind of a segment; the sweep removes shared memory only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    Shm = 1,
    File = 2,
    /// Shared memory with slots that begin with tickets. Of each slot only the first [`BLOCK_LEN`] bytes exist from
    /// the start.
    Tickets = 3,
}

/// The contents of a control block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) kind: Kind,
    pub(crate) layout: Layout,
    pub(crate) segment_id: u64,
    pub(crate) owner_pid: u32,
    /// The name that peers use; empty for files.
    pub(crate) public: Vec<u8>,
    /// The second link; empty for files.
    pub(crate) hidden: Vec<u8>,
    /// Where the ragged tensors of samples are, if there are some and the client has said so.
    pub(crate) ragged: Option<RaggedLayout>,
}

impl Control {
    /// The block with its version still 0, which no reader accepts.
    pub(crate) fn encode_unpublished(&self) -> [u8; BLOCK_LEN as usize] {
        let mut block = [0; BLOCK_LEN as usize];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(offset_of!(Block, magic), &MAGIC);
        put(offset_of!(Block, kind), &(self.kind as u32).to_le_bytes());
        put(offset_of!(Block, slot_size), &self.layout.slot_size.to_le_bytes());
        put(offset_of!(Block, slot_stride), &self.layout.slot_stride.to_le_bytes());
        put(offset_of!(Block, n_slots), &self.layout.n_slots.to_le_bytes());
        put(offset_of!(Block, gap), &self.layout.gap.to_le_bytes());
        put(offset_of!(Block, segment_id), &self.segment_id.to_le_bytes());
        put(offset_of!(Block, owner_pid), &self.owner_pid.to_le_bytes());
        for (name, len_at, at) in [
            (&self.public, offset_of!(Block, public_len), offset_of!(Block, public)),
            (&self.hidden, offset_of!(Block, hidden_len), offset_of!(Block, hidden)),
        ] {
            // Names come from directory entries, which have 255 bytes at most.
            let kept = &name[..name.len().min(NAME_CAP)];
            put(len_at, &(kept.len() as u16).to_le_bytes());
            put(at, kept);
        }
        if let Some(ragged) = &self.ragged {
            put(offset_of!(Block, n_ragged), &(ragged.tensors().len() as u64).to_le_bytes());
            put(offset_of!(Block, values_at), &(ragged.values_at() as u64).to_le_bytes());
            for (i, tensor) in ragged.tensors().iter().enumerate() {
                let sizes = [tensor.step_len, tensor.max_length].map(|size| (size as u64).to_le_bytes());
                put(offset_of!(Block, ragged) + 16 * i, sizes.as_flattened());
            }
        }
        block
    }

    /// Reads the last block of a file of `file_len` bytes.
    ///
    /// `Ok(None)` when it is not a control block, the reason when it is one that cannot be used.
    pub(crate) fn decode(block: &[u8; BLOCK_LEN as usize], file_len: u64) -> Result<Option<Self>, String> {
        if block[..MAGIC.len()] != MAGIC {
            return Ok(None);
        }
        match u32_at(block, offset_of!(Block, version)) {
            LAYOUT_VERSION => {}
            0 => return Err("its owner has not finished it".to_owned()),
            version => {
                return Err(format!(
                    "layout version {version}, this softs-fast knows {LAYOUT_VERSION}: both peers must be of the same version"
                ));
            }
        }
        let kind = match u32_at(block, offset_of!(Block, kind)) {
            1 => Kind::Shm,
            2 => Kind::File,
            3 => Kind::Tickets,
            kind => return Err(format!("unknown kind {kind}")),
        };
        let layout = Layout {
            slot_size: u64_at(block, offset_of!(Block, slot_size)),
            slot_stride: u64_at(block, offset_of!(Block, slot_stride)),
            n_slots: u64_at(block, offset_of!(Block, n_slots)),
            gap: u64_at(block, offset_of!(Block, gap)),
        };
        let is_aligned = layout.gap.is_multiple_of(BLOCK_LEN)
            && (kind != Kind::Tickets || layout.slot_stride.is_multiple_of(BLOCK_LEN));
        if layout.slot_size == 0
            || layout.slot_stride < layout.slot_size
            || layout.n_slots == 0
            || !is_aligned
            || layout.checked_file_len() != Some(file_len)
        {
            return Err(format!(
                "{} slots of {} bytes, {} apart, do not make a file of {file_len} bytes",
                layout.n_slots, layout.slot_size, layout.slot_stride
            ));
        }
        let name = |len_at: usize, at: usize| {
            let len = usize::from(u16_at(block, len_at));
            if len > NAME_CAP {
                return Err(format!("a name of {len} bytes"));
            }
            Ok(block[at..at + len].to_vec())
        };
        Ok(Some(Self {
            kind,
            layout,
            segment_id: u64_at(block, offset_of!(Block, segment_id)),
            owner_pid: u32_at(block, offset_of!(Block, owner_pid)),
            public: name(offset_of!(Block, public_len), offset_of!(Block, public))?,
            hidden: name(offset_of!(Block, hidden_len), offset_of!(Block, hidden))?,
            ragged: ragged_of(block, layout.slot_size)?,
        }))
    }
}

fn ragged_of(block: &[u8; BLOCK_LEN as usize], slot_size: u64) -> Result<Option<RaggedLayout>, String> {
    let n = u64_at(block, offset_of!(Block, n_ragged));
    if n == 0 {
        return Ok(None);
    }
    let layout = || {
        let size = |at: usize| usize::try_from(u64_at(block, at)).ok();
        let tensors = (0..usize::try_from(n).ok().filter(|n| *n <= RAGGED_CAP)?).map(|i| {
            let at = offset_of!(Block, ragged) + 16 * i;
            Some(RaggedTensor { name: i.to_string(), step_len: size(at)?, max_length: size(at + 8)? })
        });
        let layout = RaggedLayout::new(size(offset_of!(Block, values_at))?, tensors.collect::<Option<_>>()?);
        layout.filter(|layout| layout.max_len() as u64 == slot_size)
    };
    let wrong = || format!("{n} ragged tensors that do not make samples of {slot_size} bytes");
    layout().map(Some).ok_or_else(wrong)
}

/// Reads the control block of a file; `None` when it has none.
pub(crate) fn read_control(file: BorrowedFd<'_>, file_len: u64) -> Result<Option<Control>, String> {
    // A control block begins at a multiple of its length, after at least one byte of slots.
    if file_len < 2 * BLOCK_LEN || !file_len.is_multiple_of(BLOCK_LEN) {
        return Ok(None);
    }
    let mut block = [0; BLOCK_LEN as usize];
    read_all(file, file_len - BLOCK_LEN, &mut block).map_err(|errno| errno.to_string())?;
    Control::decode(&block, file_len)
}

fn bytes_at<const N: usize>(block: &[u8; BLOCK_LEN as usize], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&block[at..at + N]);
    bytes
}

fn u16_at(block: &[u8; BLOCK_LEN as usize], at: usize) -> u16 {
    u16::from_le_bytes(bytes_at(block, at))
}

fn u32_at(block: &[u8; BLOCK_LEN as usize], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(block, at))
}

fn u64_at(block: &[u8; BLOCK_LEN as usize], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(block, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn control() -> Control {
        Control {
            kind: Kind::Shm,
            layout: Layout { slot_size: 100, slot_stride: 100, n_slots: 50, gap: 0 },
            segment_id: 0x0123_4567_89ab_cdef,
            owner_pid: 77,
            public: b"sl_0123456789abcdef".to_vec(),
            hidden: b".sl_fedcba9876543210".to_vec(),
            ragged: None,
        }
    }

    /// 100 bytes at most: two lengths, and tensors of 40 and 44 bytes.
    fn ragged() -> Control {
        let tensor =
            |i: usize, step_len, max_length| RaggedTensor { name: i.to_string(), step_len, max_length };
        let layout = RaggedLayout::new(16, vec![tensor(0, 4, 10), tensor(1, 11, 4)]);
        Control { ragged: layout, ..control() }
    }

    fn published(control: &Control) -> [u8; BLOCK_LEN as usize] {
        let mut block = control.encode_unpublished();
        block[8..12].copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
        block
    }

    #[test]
    fn an_encoded_block_decodes_to_the_same() {
        for control in [control(), ragged()] {
            let block = published(&control);
            assert_eq!(Control::decode(&block, control.layout.file_len()), Ok(Some(control)));
        }
    }

    #[test]
    fn an_unpublished_block_is_refused() {
        let control = control();
        assert!(Control::decode(&control.encode_unpublished(), control.layout.file_len()).is_err());
    }

    #[test]
    fn hostile_blocks_are_refused() {
        let control = control();
        let good = published(&control);
        let len = control.layout.file_len();
        let with = |at: usize, bytes: &[u8]| {
            let mut block = good;
            block[at..at + bytes.len()].copy_from_slice(bytes);
            Control::decode(&block, len)
        };
        assert_eq!(with(0, b"X"), Ok(None), "a block with another magic is not a control block");
        let older = with(8, &1_u32.to_le_bytes()).unwrap_err();
        assert!(older.contains("layout version 1, this softs-fast knows 6"), "{older}");
        let mut uneven = good;
        uneven[48] = 1;
        assert!(Control::decode(&uneven, len + 1).is_err(), "a gap that is not a multiple of a page");
        assert!(with(48, &(u64::MAX - 4095).to_le_bytes()).is_err(), "overflow of the gap");
        assert!(with(48, &4096_u64.to_le_bytes()).is_err(), "a gap beyond the file");
        assert!(with(12, &4_u32.to_le_bytes()).is_err(), "another kind");
        assert!(with(12, &3_u32.to_le_bytes()).is_err(), "slots of tickets that are not multiples of a page");
        assert!(with(16, &0_u64.to_le_bytes()).is_err(), "no bytes");
        assert!(with(16, &101_u64.to_le_bytes()).is_err(), "slots that overlap");
        assert!(with(56, &u64::MAX.to_le_bytes()).is_err(), "overflow of the product");
        assert!(with(24, &(u64::MAX / 100).to_le_bytes()).is_err(), "overflow of the sum");
        assert!(with(56, &200_u64.to_le_bytes()).is_err(), "longer than the file");
        assert!(with(56, &99_u64.to_le_bytes()).is_err(), "slots that overlap");
        assert!(with(44, &257_u16.to_le_bytes()).is_err(), "a name longer than its field");
        assert!(Control::decode(&good, len + BLOCK_LEN).is_err(), "shorter than the file");
        let good = published(&ragged());
        for (at, number) in [(576, 1), (576, 3), (576, 129), (576, u64::MAX), (584, 15), (584, 17)] {
            let mut block = good;
            block[at..at + 8].copy_from_slice(&number.to_le_bytes());
            let why = Control::decode(&block, len).unwrap_err();
            assert!(why.contains("ragged tensors that do not make samples of 100 bytes"), "{at}: {why}");
        }
        for (at, number) in [(592, u64::MAX), (600, u64::MAX), (600, 11)] {
            let mut block = good;
            block[at..at + 8].copy_from_slice(&number.to_le_bytes());
            assert!(Control::decode(&block, len).is_err(), "{at}");
        }
    }

    proptest! {
        #[test]
        fn no_block_makes_the_decoder_panic_or_return_wrong_sizes(
            noise in prop::collection::vec(any::<u8>(), 624),
            file_len in any::<u64>(),
            keep_head in any::<bool>(),
        ) {
            let mut block = [0; BLOCK_LEN as usize];
            block[..624].copy_from_slice(&noise);
            if keep_head {
                block[..16].copy_from_slice(&published(&control())[..16]);
            }
            if let Ok(Some(control)) = Control::decode(&block, file_len) {
                prop_assert_eq!(control.layout.file_len(), file_len);
            }
        }
    }
}
