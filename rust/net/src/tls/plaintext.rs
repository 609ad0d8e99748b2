//! [`Plaintext`]: bytes to be encrypted, wherever they are.

use softs_shm::ForeignBytes;

/// A part of what is to be sent.
pub trait Plaintext {
    /// Number of bytes.
    fn n_bytes(&self) -> usize;

    /// Copies the bytes from `at` on, as many as `out` has; both are within the part.
    fn copy_to(&self, at: usize, out: &mut [u8]);
}

impl Plaintext for &[u8] {
    fn n_bytes(&self) -> usize {
        self.len()
    }

    fn copy_to(&self, at: usize, out: &mut [u8]) {
        out.copy_from_slice(&self[at..at + out.len()]);
    }
}

/// Memory of a slot: it is read once, so the peer gets what was authenticated, whatever is written meanwhile.
impl Plaintext for ForeignBytes<'_> {
    fn n_bytes(&self) -> usize {
        (*self).len()
    }

    fn copy_to(&self, at: usize, out: &mut [u8]) {
        if let Some(part) = self.part(at, out.len()) {
            ForeignBytes::copy_to(part, out);
        }
    }
}
