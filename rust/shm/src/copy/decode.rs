//! Parts of slots that are not copied as they are: pieces are read once, decoded in memory of ours, and copied to where they go.

use super::foreign_bytes::ForeignBytes;

/// How the bytes of a part become those of a row. What they mean is not known here.
pub trait Decode: Sync {
    /// Bytes of the smallest piece that can be decoded by itself, and those that it becomes; the last one may be shorter.
    fn piece(&self) -> (usize, usize);

    /// How many bytes become `decoded` bytes; `None` where none do.
    fn encoded_len(&self, decoded: usize) -> Option<usize>;

    /// Decodes whole pieces, and the last one. `first_piece` is the number of the first.
    ///
    /// # Errors
    /// Why `encoded` cannot be decoded.
    fn decode(&self, first_piece: usize, encoded: &[u8], out: &mut [u8]) -> Result<(), String>;
}

/// Fits into the nearest cache, together with what it becomes.
const PIECES_LEN: usize = 8 << 10;

/// Memory for the pieces of one row after the other.
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
    /// It cannot be read.
    Read(E),
    /// It is not what it should be.
    Malformed(String),
}

/// Decodes one row into all of `out`. `read` copies encoded bytes from a place on.
///
/// # Errors
/// Part of `out` may have been written then.
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
