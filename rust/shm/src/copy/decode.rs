//! Decoding of rows: pieces are read once, decoded in private memory, and copied to their destination.

use super::foreign_bytes::ForeignBytes;

/// A codec that turns the bytes of a part into those of a row.
pub trait Decode: Sync {
    /// Encoded and decoded bytes of the smallest piece that can be decoded by itself; the last piece may be shorter.
    fn piece(&self) -> (usize, usize);

    /// The number of encoded bytes of `decoded` bytes; `None` where no whole elements make them.
    fn encoded_len(&self, decoded: usize) -> Option<usize>;

    /// Decodes whole pieces, and the last one. `first_piece` is the number of the first one.
    ///
    /// # Errors
    /// Why `encoded` cannot be decoded.
    fn decode(&self, first_piece: usize, encoded: &[u8], out: &mut [u8]) -> Result<(), String>;
}

/// Encoded and decoded bytes together fit into the L1 cache.
const PIECES_LEN: usize = 8 << 10;

/// Buffers for pieces, used again for each row.
#[derive(Debug)]
pub(crate) struct Pieces {
    encoded: Vec<u8>,
    decoded: Vec<u8>,
    /// Pieces that are decoded together.
    n: usize,
}

impl Pieces {
    /// For rows of `row_len` bytes.
    pub(crate) fn new(decoder: &dyn Decode, row_len: usize) -> Self {
        let (encoded, decoded) = decoder.piece();
        let n_row = row_len.div_ceil(decoded.max(1));
        let n = (PIECES_LEN / decoded.max(1)).clamp(1, n_row.max(1));
        Self { encoded: vec![0; n * encoded], decoded: vec![0; n * decoded], n }
    }
}

/// Why a row was not decoded.
#[derive(Debug)]
pub enum DecodeError<E> {
    /// The encoded bytes cannot be read.
    Read(E),
    /// The encoded bytes are malformed.
    Malformed(String),
}

/// Decodes one row into all of `out`. `read` copies encoded bytes from an offset on.
///
/// # Errors
/// Part of `out` may have been written.
pub fn decode_row<E>(
    decoder: &dyn Decode,
    read: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    out: ForeignBytes<'_>,
) -> Result<(), DecodeError<E>> {
    decode_row_in(&mut Pieces::new(decoder, out.len()), decoder, read, out)
}

pub(crate) fn decode_row_in<E>(
    pieces: &mut Pieces,
    decoder: &dyn Decode,
    mut read: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    out: ForeignBytes<'_>,
) -> Result<(), DecodeError<E>> {
    let (mut from, mut to, mut first) = (0, 0, 0);
    while to < out.len() {
        let n_out = (out.len() - to).min(pieces.decoded.len());
        let n_in = decoder.encoded_len(n_out).filter(|n| *n <= pieces.encoded.len());
        let place = n_in.and_then(|n_in| pieces.encoded.get_mut(..n_in)).zip(out.part(to, n_out));
        let Some(((encoded, place), decoded)) = place.zip(pieces.decoded.get_mut(..n_out)) else {
            return Err(DecodeError::Malformed(format!("{} bytes are no whole elements", out.len())));
        };
        read(from, encoded).map_err(DecodeError::Read)?;
        decoder.decode(first, encoded, decoded).map_err(DecodeError::Malformed)?;
        place.fill_from(decoded);
        (from, to, first) = (from + encoded.len(), to + n_out, first + pieces.n);
    }
    Ok(())
}
