//! Lists in a payload. What their announced lengths can make us reserve is bounded.

use super::error::WireError;
use super::reader::Reader;

/// An array of integers.
pub(super) fn uints(reader: &mut Reader<'_>, what: &str) -> Result<Vec<u64>, WireError> {
    list(reader, what, 1, |reader| reader.uint(what))
}

/// An array that holds the parts of each triple, one after the other.
pub(super) fn flat_triples(reader: &mut Reader<'_>, what: &str) -> Result<Vec<(u64, u64, u64)>, WireError> {
    let len = reader.array(what)?;
    if len % 3 != 0 {
        return Err(reader.error(what, &format!("need triples, have {len} numbers")));
    }
    let mut triples = Vec::with_capacity(len / 3);
    for _ in 0..len / 3 {
        triples.push((reader.uint(what)?, reader.uint(what)?, reader.uint(what)?));
    }
    Ok(triples)
}

/// An array of values of at least `min_bytes` bytes each, which bounds what its announced length can make us reserve.
pub(super) fn list<'a, T>(
    reader: &mut Reader<'a>,
    what: &str,
    min_bytes: usize,
    mut value: impl FnMut(&mut Reader<'a>) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    let len = reader.array(what)?;
    let mut values = Vec::with_capacity(len.min(reader.remaining() / min_bytes));
    for _ in 0..len {
        values.push(value(reader)?);
    }
    Ok(values)
}

/// An array of at most `max` values.
pub(super) fn short_list<'a, T>(
    reader: &mut Reader<'a>,
    what: &str,
    max: usize,
    mut value: impl FnMut(&mut Reader<'a>) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    let len = reader.array(what)?;
    if len > max {
        return Err(reader.error(what, &format!("{len} elements, at most {max} allowed")));
    }
    let mut values = Vec::with_capacity(len.min(reader.remaining() / size_of::<T>()));
    for _ in 0..len {
        values.push(value(reader)?);
    }
    Ok(values)
}
