//! msgpack as Python's `msgpack.packb(..., use_bin_type=True)` writes it: always the shortest form.

use rmp::Marker;

/// Appends an integer.
#[inline]
pub(super) fn uint(out: &mut Vec<u8>, n: u64) {
    match n {
        0..0x80 => out.push(n as u8),
        0x80..=0xff => out.extend_from_slice(&[Marker::U8.to_u8(), n as u8]),
        0x100..=0xffff => {
            let [a, b] = (n as u16).to_be_bytes();
            out.extend_from_slice(&[Marker::U16.to_u8(), a, b]);
        }
        0x1_0000..=0xffff_ffff => {
            let [a, b, c, d] = (n as u32).to_be_bytes();
            out.extend_from_slice(&[Marker::U32.to_u8(), a, b, c, d]);
        }
        _ => {
            let [a, b, c, d, e, f, g, h] = n.to_be_bytes();
            out.extend_from_slice(&[Marker::U64.to_u8(), a, b, c, d, e, f, g, h]);
        }
    }
}

/// Appends a string.
#[inline]
pub(super) fn str(out: &mut Vec<u8>, text: &str) {
    match text.len() {
        len @ 0..32 => out.push(Marker::FixStr(len as u8).to_u8()),
        len @ 32..=0xff => out.extend_from_slice(&[Marker::Str8.to_u8(), len as u8]),
        len => wide(out, [Marker::Str16, Marker::Str32], len),
    }
    out.extend_from_slice(text.as_bytes());
}

/// Appends a string, or nil.
pub(super) fn str_or_nil(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => str(out, text),
        None => out.push(Marker::Null.to_u8()),
    }
}

/// Starts an array of `len` values.
pub(super) fn array(out: &mut Vec<u8>, len: usize) {
    match len {
        0..16 => out.push(Marker::FixArray(len as u8).to_u8()),
        _ => wide(out, [Marker::Array16, Marker::Array32], len),
    }
}

/// A map under construction; its first byte counts the fields.
pub(super) struct Map<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

/// Appends a map: whatever `fields` adds, fewer than 16.
#[inline]
pub(super) fn map(out: &mut Vec<u8>, fields: impl FnOnce(&mut Map<'_>)) {
    let start = out.len();
    out.push(Marker::FixMap(0).to_u8());
    fields(&mut Map { out, start });
}

impl Map<'_> {
    /// Begins a field; its value is to be appended to what is returned.
    #[inline]
    pub(super) fn key(&mut self, key: &str) -> &mut Vec<u8> {
        debug_assert!(self.out[self.start] < Marker::FixMap(15).to_u8());
        self.out[self.start] += 1;
        str(self.out, key);
        self.out
    }

    pub(super) fn uint(&mut self, key: &str, value: u64) {
        uint(self.key(key), value);
    }

    pub(super) fn str(&mut self, key: &str, value: &str) {
        str(self.key(key), value);
    }

    pub(super) fn bool(&mut self, key: &str, value: bool) {
        self.key(key).push(if value { Marker::True.to_u8() } else { Marker::False.to_u8() });
    }

    /// A float of 64 bits.
    pub(super) fn float(&mut self, key: &str, value: f64) {
        let out = self.key(key);
        out.push(Marker::F64.to_u8());
        out.extend_from_slice(&value.to_be_bytes());
    }

    /// A field only where there is a value.
    pub(super) fn optional_uint(&mut self, key: &str, value: Option<u64>) {
        if let Some(value) = value {
            self.uint(key, value);
        }
    }

    /// A field only where there is a value.
    pub(super) fn optional_str(&mut self, key: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.str(key, value);
        }
    }
}

/// Appends an array; `write` appends one of its values.
#[inline]
pub(super) fn list<T>(out: &mut Vec<u8>, values: &[T], write: impl Fn(&mut Vec<u8>, &T)) {
    array(out, values.len());
    for value in values {
        write(out, value);
    }
}

/// Appends an array of integers.
#[inline]
pub(super) fn uints(out: &mut Vec<u8>, numbers: &[u64]) {
    list(out, numbers, |out, n| uint(out, *n));
}

/// Appends an array that holds the parts of each triple, one after the other.
pub(super) fn flat_triples(out: &mut Vec<u8>, triples: &[(u64, u64, u64)]) {
    array(out, 3 * triples.len());
    for &(a, b, c) in triples {
        uint(out, a);
        uint(out, b);
        uint(out, c);
    }
}

/// Appends an array of strings.
pub(super) fn strs<S: AsRef<str>>(out: &mut Vec<u8>, texts: &[S]) {
    list(out, texts, |out, text| str(out, text.as_ref()));
}

/// A length of 16 or 32 bits. No message has 4 GiB, so no length is cut.
fn wide(out: &mut Vec<u8>, [narrow, wide]: [Marker; 2], len: usize) {
    if let Ok(len) = u16::try_from(len) {
        out.push(narrow.to_u8());
        out.extend_from_slice(&len.to_be_bytes());
    } else {
        out.push(wide.to_u8());
        out.extend_from_slice(&(len as u32).to_be_bytes());
    }
}
