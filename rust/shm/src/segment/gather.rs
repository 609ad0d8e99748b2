//! [`Segment::gather`]: copies or decodes the same part of many slots into the rows of an array.

use super::handle::Segment;
use super::ragged::RaggedRows;
use crate::SegmentError;
use crate::copy::{CachePolicy, Decode, DecodeError, ForeignBytes, Pieces, decode_row_in};

/// A part of each slot, and the destination of its rows.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// Offset of the part in each slot.
    pub start: u64,
    /// Bytes of a row.
    pub row_len: usize,
    /// The rows, one after the other.
    pub out: ForeignBytes<'a>,
    /// Decodes the parts into rows; without it they are copied.
    pub decoder: Option<&'a dyn Decode>,
}

impl Segment {
    /// Copies or decodes each of `slots` into the rows from `first_row` on. `ragged`: the tensors of varying length;
    /// [`Segment::measure`] has laid out these rows.
    ///
    /// # Errors
    /// As [`Segment::read_to`]; [`SegmentError::OutOfBounds`] also where there is no such row, or a part is not
    /// within a slot; [`SegmentError::Malformed`] where a part cannot be decoded. Some rows may have been written.
    pub fn gather(
        &self,
        slots: &[u32],
        first_row: usize,
        targets: &[Rows<'_>],
        ragged: Option<&RaggedRows<'_>>,
    ) -> Result<(), SegmentError> {
        let fixed_len: usize = targets.iter().map(|rows| rows.out.len()).sum();
        let ragged_len = ragged.map_or(0, |ragged| ragged.expected_len(first_row + slots.len()));
        let policy = CachePolicy::for_batch(fixed_len.saturating_add(ragged_len));
        let (slot_size, slot_stride) = (self.slot_size(), self.slot_stride());
        for rows in targets {
            let outside = || SegmentError::OutOfBounds {
                name: self.address().to_owned(),
                offset: rows.start,
                len: rows.row_len as u64,
                size: slot_size,
            };
            let part_len = match rows.decoder {
                None => rows.row_len,
                Some(decoder) => decoder.encoded_len(rows.row_len).ok_or_else(outside)?,
            };
            if rows.start.checked_add(part_len as u64).is_none_or(|end| end > slot_size) {
                return Err(outside());
            }
            let mut pieces = rows.decoder.map(|decoder| (decoder, Pieces::new(decoder, rows.row_len)));
            for (&slot, row) in slots.iter().zip(first_row..) {
                let at = row.checked_mul(rows.row_len);
                let out = at.and_then(|at| rows.out.part(at, rows.row_len)).ok_or_else(outside)?;
                match &mut pieces {
                    None => self.copy_to(u64::from(slot) * slot_stride + rows.start, out, policy)?,
                    Some((decoder, pieces)) => self.decode_to(slot, rows.start, pieces, *decoder, out)?,
                }
            }
        }
        ragged.map_or(Ok(()), |ragged| self.gather_ragged(slots, first_row, ragged, policy))
    }

    fn decode_to(
        &self,
        slot: u32,
        start: u64,
        pieces: &mut Pieces,
        decoder: &dyn Decode,
        out: ForeignBytes<'_>,
    ) -> Result<(), SegmentError> {
        let at = u64::from(slot) * self.slot_stride() + start;
        let read = |from: usize, piece: &mut [u8]| self.read(at + from as u64, piece);
        decode_row_in(pieces, decoder, read, out).map_err(|error| match error {
            DecodeError::Read(error) => error,
            DecodeError::Malformed(why) => {
                SegmentError::Malformed { name: self.address().to_owned(), slot, start, why }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;

    fn gathered(n_slots: u32, slot_size: usize, slots: &[u32]) -> (Vec<u8>, Vec<u8>) {
        let segment = Segment::create_shm(None, slot_size as u64, u64::from(n_slots)).unwrap();
        for slot in 0..n_slots {
            let sample: Vec<u8> = (0..slot_size).map(|i| (slot as usize * 7 + i / 1000) as u8).collect();
            segment.write_slot(u64::from(slot) * slot_size as u64, &sample).unwrap();
        }
        let row_len = slot_size - 3;
        let mut out = vec![0; (slots.len() + 1) * row_len];
        let expected: Vec<u8> = std::iter::repeat_n(0, row_len)
            .chain(
                slots
                    .iter()
                    .flat_map(|&slot| (2..slot_size - 1).map(move |i| (slot as usize * 7 + i / 1000) as u8)),
            )
            .collect();
        {
            let len = out.len();
            let start = NonNull::new(out.as_mut_ptr()).unwrap();
            // SAFETY: M6: `out` is not used before the copy is over.
            let bytes = unsafe { ForeignBytes::new(NonNull::slice_from_raw_parts(start, len), &()) };
            let beyond =
                segment.gather(slots, 2, &[Rows { start: 2, row_len, out: bytes, decoder: None }], None);
            assert!(matches!(beyond, Err(SegmentError::OutOfBounds { .. })), "one row too many");
            let outside =
                segment.gather(slots, 0, &[Rows { start: 4, row_len, out: bytes, decoder: None }], None);
            assert!(matches!(outside, Err(SegmentError::OutOfBounds { .. })), "beyond the slot");
            segment.gather(slots, 1, &[Rows { start: 2, row_len, out: bytes, decoder: None }], None).unwrap();
        }
        segment.unlink().unwrap();
        (out, expected)
    }

    #[test]
    fn rows_are_the_parts_of_the_slots_in_small_batches_and_in_large_ones() {
        for (n_slots, slot_size, slots) in
            [(4, 10, vec![3, 0, 2]), (9, 1 << 20, vec![8, 1, 0, 5, 3, 7, 2, 4, 6]), (2, 6 << 20, vec![1, 0])]
        {
            let (out, expected) = gathered(n_slots, slot_size, &slots);
            let row_len = slot_size - 3;
            assert!(out[row_len..] == expected[row_len..], "{n_slots} slots of {slot_size}");
        }
    }

    /// Decodes two bytes into three; 0xff is malformed.
    struct Thirds;

    impl Decode for Thirds {
        fn piece(&self) -> (usize, usize) {
            (2, 3)
        }

        fn encoded_len(&self, decoded: usize) -> Option<usize> {
            decoded.is_multiple_of(3).then(|| decoded / 3 * 2)
        }

        fn decode(&self, first_piece: usize, encoded: &[u8], out: &mut [u8]) -> Result<(), String> {
            for (i, (pair, out)) in encoded.chunks(2).zip(out.chunks_mut(3)).enumerate() {
                if pair.contains(&0xff) {
                    return Err(format!("pair {}", first_piece + i));
                }
                out.copy_from_slice(&[pair[0], pair[1], pair[0] ^ pair[1]]);
            }
            Ok(())
        }
    }

    #[test]
    fn rows_are_decoded_piece_by_piece() {
        let (n_slots, n_pairs, start) = (5_u32, 150_000, 3);
        let slot_size = start + 2 * n_pairs;
        let segment = Segment::create_shm(None, slot_size as u64, u64::from(n_slots)).unwrap();
        let byte = |slot: u32, i: usize| (slot as usize * 31 + i * 7 + i / 1000) as u8 % 0xfe;
        for slot in 0..n_slots {
            let sample: Vec<u8> = (0..slot_size).map(|i| byte(slot, i)).collect();
            segment.write_slot(u64::from(slot) * slot_size as u64, &sample).unwrap();
        }
        let slots = [4, 0, 2, 3];
        let mut out = vec![0; 5 * 3 * n_pairs];
        let len = out.len();
        let place = NonNull::slice_from_raw_parts(NonNull::new(out.as_mut_ptr()).unwrap(), len);
        // SAFETY: M6: `out` is not used before the copies are over.
        let bytes = unsafe { ForeignBytes::new(place, &()) };
        let rows = |start, row_len| [Rows { start, row_len, out: bytes, decoder: Some(&Thirds) }];
        segment.gather(&slots, 1, &rows(start as u64, 3 * n_pairs), None).unwrap();
        for (start, row_len) in [(start as u64 + 1, 3 * n_pairs), (u64::MAX, 3), (0, 4)] {
            // Of slot 0, which another slot follows.
            let outside = segment.gather(&[0], 0, &rows(start, row_len), None);
            assert!(matches!(outside, Err(SegmentError::OutOfBounds { .. })), "{start} {row_len}");
        }
        segment.write(2 * slot_size as u64 + start as u64 + 2 * 140_000, &[0xff]).unwrap();
        let malformed = segment.gather(&[2], 0, &rows(start as u64, 3 * n_pairs), None).unwrap_err();
        let wanted = SegmentError::Malformed {
            name: segment.address().to_owned(),
            slot: 2,
            start: start as u64,
            why: "pair 140000".to_owned(),
        };
        assert_eq!(malformed, wanted);
        segment.unlink().unwrap();
        for (row, slot) in slots.iter().enumerate() {
            for pair in 0..n_pairs {
                let (a, b) = (byte(*slot, start + 2 * pair), byte(*slot, start + 2 * pair + 1));
                let at = (row + 1) * 3 * n_pairs + 3 * pair;
                assert_eq!(out[at..at + 3], [a, b, a ^ b], "row {row}, pair {pair}");
            }
        }
    }
}
