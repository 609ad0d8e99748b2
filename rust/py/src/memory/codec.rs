//! `_core.Codec` and `_core.TopK`: encodings, applied to the memory of Python.

use std::sync::Arc;

use pyo3::prelude::*;
use softs_codec::{Cast, CodecError, Float, Indices, Int8, Scratch};
use softs_shm::{Decode, DecodeError, ForeignBytes, decode_row};

use crate::errors::raise;
use crate::memory::buffer::{self, Buffer, Source};

/// Shorter rows take less time than giving up the GIL and getting it back.
const DETACH_LEN: usize = 64 << 10;
/// Values that are encoded together: they fit into the nearest cache, with what they become.
const PIECES_LEN: usize = 8 << 10;

/// An encoding that goes through a tensor once.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct Codec {
    codec: softs_codec::Codec,
}

#[pymethods]
impl Codec {
    #[staticmethod]
    fn cast(py: Python<'_>, dtype: &str, stored: &str) -> PyResult<Self> {
        let cast = Float::named(dtype).zip(Float::named(stored)).and_then(|(from, to)| Cast::new(from, to));
        let refused = || format!("a cast cannot store {dtype} as {stored}");
        cast.map(|cast| Self { codec: softs_codec::Codec::Cast(cast) })
            .ok_or_else(|| raise(py, "ConfigError", refused()))
    }

    #[staticmethod]
    fn int8(py: Python<'_>, dtype: &str, block: usize, scale: &str) -> PyResult<Self> {
        let int8 = Float::named(dtype).zip(Float::named(scale)).and_then(|(d, s)| Int8::new(d, block, s));
        let refused = || {
            let (least, most) = (Int8::MIN_BLOCK, Int8::MAX_BLOCK);
            format!(
                "int8 needs float32, float16 or bfloat16, a block from {least} to {most} and a scale of float32 or float16, \
                 have {dtype}, {block} and {scale}"
            )
        };
        int8.map(|int8| Self { codec: softs_codec::Codec::Int8(int8) })
            .ok_or_else(|| raise(py, "ConfigError", refused()))
    }

    #[staticmethod]
    fn indices(py: Python<'_>, row_len: u32) -> PyResult<Self> {
        let refused = || format!("indices need a row of 1 to {} elements, have {row_len}", i32::MAX);
        Indices::new(row_len)
            .map(|indices| Self { codec: softs_codec::Codec::Indices(indices) })
            .ok_or_else(|| raise(py, "ConfigError", refused()))
    }

    fn encoded_len(&self, py: Python<'_>, n_bytes: usize) -> PyResult<usize> {
        let refused = || raise(py, "ConfigError", format!("{n_bytes} bytes are no whole elements"));
        self.codec.encoded_len(n_bytes).ok_or_else(refused)
    }

    fn encode(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        outs: Vec<Bound<'_, PyAny>>,
        offset: usize,
    ) -> PyResult<()> {
        let (values, outs) = (Buffer::new(values)?, writable(&outs)?);
        let rows = rows_of(py, values.foreign(), outs.len())?;
        let len = self.codec.encoded_len(row_len(&rows));
        let parts = parts_of(py, &outs, offset, len)?;
        let codec = &self.codec;
        let encode =
            || rows.iter().zip(&parts).try_for_each(|(values, out)| encode_row(codec, *values, *out));
        let done = if values.foreign().len() >= DETACH_LEN { py.detach(encode) } else { encode() };
        done.map_err(|error| raise(py, "ConfigError", error.to_string()))
    }

    fn decode(
        &self,
        py: Python<'_>,
        sources: Vec<Bound<'_, PyAny>>,
        offset: usize,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let out = Buffer::writable(out)?;
        let rows = rows_of(py, out.foreign(), sources.len())?;
        let sources = sources.iter().map(Source::new).collect::<PyResult<Vec<_>>>()?;
        let len = self.codec.encoded_len(row_len(&rows));
        let parts = sources
            .iter()
            .map(|source| source.foreign().part(offset, len?))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| does_not_fit(py, offset, len))?;
        let decode = || {
            parts.iter().zip(&rows).try_for_each(|(part, out)| {
                let read = |at, piece: &mut [u8]| {
                    let there = part.part(at, piece.len()).ok_or(())?;
                    there.copy_to(piece);
                    Ok(())
                };
                decode_row(self, read, *out)
            })
        };
        let done = if out.foreign().len() >= DETACH_LEN { py.detach(decode) } else { decode() };
        done.map_err(|error| match error {
            DecodeError::Read(()) => does_not_fit(py, offset, len),
            DecodeError::Malformed(why) => {
                raise(py, "WireError", format!("a sample cannot be decoded from byte {offset} on: {why}"))
            }
        })
    }
}

impl Codec {
    /// For a thread that decodes without Python.
    pub(crate) fn decoder(&self) -> Arc<dyn Decode + Send + Sync> {
        Arc::new(Self { codec: self.codec })
    }
}

impl Decode for Codec {
    fn piece(&self) -> (usize, usize) {
        let piece = self.codec.piece();
        (piece.encoded, piece.decoded)
    }

    fn encoded_len(&self, decoded: usize) -> Option<usize> {
        self.codec.encoded_len(decoded)
    }

    fn decode(&self, first_piece: usize, encoded: &[u8], out: &mut [u8]) -> Result<(), String> {
        let first = first_piece * self.codec.piece().n;
        buffer::decode(&self.codec, first, encoded, out).map_err(|error| error.to_string())
    }
}

/// The largest logits of rows.
#[pyclass(frozen, module = "softs_fast._core")]
pub(crate) struct TopK {
    top: softs_codec::TopK,
}

#[pymethods]
impl TopK {
    #[new]
    fn new(py: Python<'_>, dtype: &str, row_len: u32, k: usize) -> PyResult<Self> {
        let top = Float::named(dtype).and_then(|dtype| softs_codec::TopK::new(dtype, row_len, k));
        let refused = || {
            format!("topk needs float32, float16 or bfloat16 and k from 1 to {row_len}, have {dtype} and {k}")
        };
        top.map(|top| Self { top }).ok_or_else(|| raise(py, "ConfigError", refused()))
    }

    /// Encodes the rows of `values` that go to each of `outs`: there all values, then all indices, then all
    /// log-sum-exps.
    fn encode(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        outs: Vec<Bound<'_, PyAny>>,
        offset: usize,
    ) -> PyResult<()> {
        let (values, outs) = (Buffer::new(values)?, writable(&outs)?);
        let samples = rows_of(py, values.foreign(), outs.len())?;
        let sample_len = row_len(&samples);
        let lens = self.top.encoded_lens();
        let n = sample_len / self.top.row_len();
        let len = sample_len.is_multiple_of(self.top.row_len()).then(|| n * lens.iter().sum::<usize>());
        let parts = parts_of(py, &outs, offset, len)?;
        let encode = || {
            let mut scratch = Scratch::default();
            let mut row = vec![0; self.top.row_len()];
            let mut encoded = lens.map(|len| vec![0; len]);
            for (sample, out) in samples.iter().zip(&parts) {
                for i in 0..n {
                    let Some(values) = sample.part(i * row.len(), row.len()) else { return };
                    values.copy_to(&mut row);
                    buffer::encode_row(
                        &self.top,
                        &row,
                        encoded.each_mut().map(Vec::as_mut_slice),
                        &mut scratch,
                    );
                    let mut start = 0;
                    for piece in &encoded {
                        if let Some(place) = out.part(start + i * piece.len(), piece.len()) {
                            place.fill_from(piece);
                        }
                        start += n * piece.len();
                    }
                }
            }
        };
        if values.foreign().len() >= DETACH_LEN {
            py.detach(encode)
        } else {
            encode()
        }
        Ok(())
    }
}

fn encode_row(
    codec: &softs_codec::Codec,
    values: ForeignBytes<'_>,
    out: ForeignBytes<'_>,
) -> Result<(), CodecError> {
    let piece = codec.piece();
    let n = (PIECES_LEN / piece.decoded).max(1);
    let (n_in, n_out) = ((n * piece.decoded).min(values.len()), (n * piece.encoded).min(out.len()));
    let (mut from, mut to) = (vec![0; n_in], vec![0; n_out]);
    for i in 0..values.len().div_ceil(n_in.max(1)) {
        let (at_in, at_out) = (i * n_in, i * n_out);
        let (n_in, n_out) = (n_in.min(values.len() - at_in), n_out.min(out.len() - at_out));
        let (Some(there), Some(place)) = (values.part(at_in, n_in), out.part(at_out, n_out)) else { break };
        there.copy_to(&mut from[..n_in]);
        buffer::encode(codec, i * n * piece.n, &from[..n_in], &mut to[..n_out])?;
        place.fill_from(&to[..n_out]);
    }
    Ok(())
}

fn writable(outs: &[Bound<'_, PyAny>]) -> PyResult<Vec<Buffer>> {
    outs.iter().map(Buffer::writable).collect()
}

/// The n equal parts of some bytes.
fn rows_of<'a>(py: Python<'_>, bytes: ForeignBytes<'a>, n: usize) -> PyResult<Vec<ForeignBytes<'a>>> {
    let row_len = bytes.len().checked_div(n).filter(|len| len * n == bytes.len());
    let rows = row_len.and_then(|len| (0..n).map(|i| bytes.part(i * len, len)).collect());
    rows.ok_or_else(|| {
        raise(py, "ConfigError", format!("tensors of {} bytes are not {n} samples", bytes.len()))
    })
}

fn row_len(rows: &[ForeignBytes<'_>]) -> usize {
    rows.first().map_or(0, |row| row.len())
}

fn parts_of<'a>(
    py: Python<'_>,
    buffers: &'a [Buffer],
    offset: usize,
    len: Option<usize>,
) -> PyResult<Vec<ForeignBytes<'a>>> {
    let parts = buffers.iter().map(|buffer| buffer.foreign().part(offset, len?)).collect::<Option<Vec<_>>>();
    parts.ok_or_else(|| does_not_fit(py, offset, len))
}

fn does_not_fit(py: Python<'_>, offset: usize, len: Option<usize>) -> PyErr {
    let what = len.map_or("what is no whole number of elements".to_owned(), |len| format!("{len} bytes"));
    raise(py, "ConfigError", format!("{what} at byte {offset} does not fit into the samples"))
}
