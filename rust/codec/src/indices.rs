//! [`Indices`]: indices into a row, in as few bytes as possible.

use crate::{CodecError, Piece};

/// Integers below the length of a row, int64 as torch needs them: stored as uint16 if the row has at most 65536
/// elements, else as int32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indices {
    len: u32,
}

/// Largest length of a row: its indices are stored as int32.
const MAX_LEN: u32 = i32::MAX as u32;
/// Number of values of uint16.
const SHORT: u32 = 1 << 16;

impl Indices {
    /// `None` if the row is empty, or longer than int32 can count.
    #[must_use]
    pub fn new(len: u32) -> Option<Self> {
        (1..=MAX_LEN).contains(&len).then_some(Self { len })
    }

    /// Bytes of one index as it is stored.
    #[must_use]
    pub fn n_bytes(self) -> usize {
        if self.len <= SHORT { 2 } else { 4 }
    }

    pub(crate) fn piece(self) -> Piece {
        Piece { n: 1, decoded: 8, encoded: self.n_bytes() }
    }

    /// Stores one index that must be within the row.
    pub(crate) fn store(self, index: u32, out: &mut [u8]) {
        match self.n_bytes() {
            2 => out.copy_from_slice(&(index as u16).to_ne_bytes()),
            _ => out.copy_from_slice(&index.to_ne_bytes()),
        }
    }

    #[inline(always)]
    pub(crate) fn encode(self, first: usize, values: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        let values = values.as_chunks().0;
        for (i, (value, out)) in values.iter().zip(out.chunks_exact_mut(self.n_bytes())).enumerate() {
            let index = i64::from_ne_bytes(*value);
            match u32::try_from(index) {
                Ok(index) if index < self.len => self.store(index, out),
                _ => return Err(CodecError::BadIndex { at: first + i, index, len: self.len }),
            }
        }
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn decode(self, first: usize, encoded: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        let out = out.as_chunks_mut().0;
        match self.n_bytes() {
            2 => self.each(first, encoded.as_chunks().0, out, |bytes| u32::from(u16::from_ne_bytes(bytes))),
            _ => self.each(first, encoded.as_chunks().0, out, u32::from_ne_bytes),
        }
    }

    #[inline(always)]
    fn each<const N: usize>(
        self,
        first: usize,
        encoded: &[[u8; N]],
        out: &mut [[u8; 8]],
        load: impl Fn([u8; N]) -> u32,
    ) -> Result<(), CodecError> {
        let mut all_within = true;
        for (bytes, out) in encoded.iter().zip(out) {
            let index = load(*bytes);
            all_within &= index < self.len;
            *out = i64::from(index).to_ne_bytes();
        }
        if all_within {
            return Ok(());
        }
        // A second pass, only for the text of the error.
        let bad = encoded.iter().map(|bytes| load(*bytes)).enumerate().find(|(_, index)| *index >= self.len);
        let (i, index) = bad.unwrap_or_default();
        Err(CodecError::BadIndex { at: first + i, index: i64::from(index), len: self.len })
    }
}
