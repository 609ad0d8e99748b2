//! The random numbers of a case, and what they damage.

/// xorshift64*: cases are the same on every machine.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        // Neighbouring seeds must not give similar sequences, and zero is not allowed.
        Self((seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 32) as usize * n) >> 32
    }

    /// Frames with some of their bytes changed, dropped or doubled.
    pub(crate) fn damaged(&mut self, frames: &[u8]) -> Vec<u8> {
        let mut bytes = frames.to_vec();
        for _ in 0..self.below(4) {
            let at = self.below(bytes.len());
            match self.below(4) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = [0, 0xff, 0x7f, 0x80][self.below(4)],
                2 => bytes.truncate(at + 1),
                _ => bytes.extend_from_within(at..),
            }
        }
        bytes
    }
}
