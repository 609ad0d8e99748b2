//! A msgpack reader over one payload that borrows from it and trusts no length in it.
//!
//! Nothing recurses, so depth costs nothing; a list is never believed to be longer than the bytes that are left.

use rmp::Marker;

use super::error::WireError;
use crate::limits::{MAX_ERROR_TEXT_BYTES, MAX_ID_BYTES};

/// A position in one payload.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    /// Command of the message, for error texts.
    message: &'static str,
}

/// The first bytes of a value: all of a scalar or a string, only the length of a container.
#[derive(Clone, Copy, Debug)]
enum Head<'a> {
    Nil,
    Bool(bool),
    Uint(u64),
    Negative(i64),
    Float(f64),
    Str(&'a [u8]),
    Bin,
    Ext,
    Array(usize),
    Map(usize),
}

impl<'a> Reader<'a> {
    /// Reads `payload`, which belongs to a message of that command.
    pub(super) fn new(message: &'static str, payload: &'a [u8]) -> Self {
        Self { rest: payload, message }
    }

    /// Bytes not read yet; no list can have more elements than that.
    pub(super) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// A non-negative integer, whatever its encoding.
    #[inline]
    pub(super) fn uint(&mut self, what: &str) -> Result<u64, WireError> {
        // The encodings that packers choose; the rest goes the long way.
        match *self.rest {
            [n @ 0..0x80, ref rest @ ..] => {
                self.rest = rest;
                Ok(u64::from(n))
            }
            [0xcd, a, b, ref rest @ ..] => {
                self.rest = rest;
                Ok(u64::from(u16::from_be_bytes([a, b])))
            }
            [0xce, a, b, c, d, ref rest @ ..] => {
                self.rest = rest;
                Ok(u64::from(u32::from_be_bytes([a, b, c, d])))
            }
            _ => match self.head(what)? {
                Head::Uint(n) => Ok(n),
                head => Err(self.mismatch(what, "a non-negative integer", head)),
            },
        }
    }

    /// An integer of at most 32 bits.
    pub(super) fn uint32(&mut self, what: &str) -> Result<u32, WireError> {
        let n = self.uint(what)?;
        u32::try_from(n).map_err(|_| self.error(what, &format!("need at most {}, have {n}", u32::MAX)))
    }

    /// `true` or `false`; no integer counts as one.
    pub(super) fn bool(&mut self, what: &str) -> Result<bool, WireError> {
        match self.head(what)? {
            Head::Bool(value) => Ok(value),
            head => Err(self.mismatch(what, "a bool", head)),
        }
    }

    /// Any number.
    pub(super) fn number(&mut self, what: &str) -> Result<f64, WireError> {
        match self.head(what)? {
            Head::Float(value) => Ok(value),
            Head::Uint(n) => Ok(n as f64),
            Head::Negative(n) => Ok(n as f64),
            head => Err(self.mismatch(what, "a number", head)),
        }
    }

    /// A string of any length.
    #[inline]
    pub(super) fn str(&mut self, what: &str) -> Result<&'a str, WireError> {
        if let Some(bytes) = self.short_str() {
            return self.utf8(what, bytes);
        }
        match self.head(what)? {
            Head::Str(bytes) => self.utf8(what, bytes),
            head => Err(self.mismatch(what, "a str", head)),
        }
    }

    /// A string or nil.
    pub(super) fn optional_str(&mut self, what: &str) -> Result<Option<&'a str>, WireError> {
        match self.head(what)? {
            Head::Nil => Ok(None),
            Head::Str(bytes) => self.utf8(what, bytes).map(Some),
            head => Err(self.mismatch(what, "a str or nil", head)),
        }
    }

    /// The name of a product, an order or a medium: a string of at most [`MAX_ID_BYTES`].
    #[inline]
    pub(super) fn id(&mut self, what: &str) -> Result<&'a str, WireError> {
        let id = self.str(what)?;
        if id.len() > MAX_ID_BYTES {
            return Err(self.error(what, &format!("{} bytes, at most {MAX_ID_BYTES} allowed", id.len())));
        }
        Ok(id)
    }

    /// A text for people, cut where ours are cut.
    pub(super) fn text(&mut self, what: &str) -> Result<&'a str, WireError> {
        self.str(what).map(cut)
    }

    /// The start of an array: its length, at most the bytes that are left.
    pub(super) fn array(&mut self, what: &str) -> Result<usize, WireError> {
        match self.head(what)? {
            Head::Array(len) => self.plausible(what, len, len),
            head => Err(self.mismatch(what, "an array", head)),
        }
    }

    /// The start of an array that must have `need` elements.
    pub(super) fn tuple(&mut self, what: &str, need: usize) -> Result<(), WireError> {
        let have = self.array(what)?;
        if have != need {
            return Err(self.error(what, &format!("need {need} elements, have {have}")));
        }
        Ok(())
    }

    /// Whether the next value is an array that begins with a string.
    pub(super) fn is_array_of_str_next(&self) -> bool {
        let mut ahead = Self { rest: self.rest, message: self.message };
        matches!(ahead.head_of(), Ok(Head::Array(1..))) && matches!(ahead.head_of(), Ok(Head::Str(_)))
    }

    /// A map; `field` is given each key and must read or skip its value.
    #[inline]
    pub(super) fn map(
        &mut self,
        what: &str,
        mut field: impl FnMut(&mut Self, &'a [u8]) -> Result<(), WireError>,
    ) -> Result<(), WireError> {
        let len = match self.head(what)? {
            Head::Map(len) => self.plausible(what, len, len.saturating_mul(2))?,
            head => return Err(self.mismatch(what, "a map", head)),
        };
        for _ in 0..len {
            if let Some(key) = self.short_str() {
                field(self, key)?;
                continue;
            }
            match self.head("a key")? {
                Head::Str(key) => field(self, key)?,
                head => return Err(self.mismatch("a key", "a str", head)),
            }
        }
        Ok(())
    }

    /// One value that does not matter, however deep: `values` counts what is still to come instead of recursing.
    pub(super) fn skip(&mut self, key: &[u8]) -> Result<(), WireError> {
        let mut values = 1_usize;
        while values > 0 {
            // An attacker's key is only made into text when there is something to complain about.
            let head = self.head_of().map_err(|()| self.truncated(&String::from_utf8_lossy(key)))?;
            let children = match head {
                Head::Array(len) => len,
                Head::Map(len) => len.saturating_mul(2),
                _ => 0,
            };
            values = (values - 1).saturating_add(children);
        }
        Ok(())
    }

    /// One whole value, as it stands.
    pub(super) fn raw(&mut self, what: &str) -> Result<&'a [u8], WireError> {
        let start = self.rest;
        self.skip(what.as_bytes())?;
        Ok(&start[..start.len() - self.rest.len()])
    }

    /// The payload must end here.
    #[inline]
    pub(super) fn end(&self) -> Result<(), WireError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(self.error("payload", &format!("{} bytes after its end", self.rest.len())))
    }

    /// A complaint about a part of this message.
    #[cold]
    pub(super) fn error(&self, what: &str, text: &str) -> WireError {
        WireError(format!("{}: {}: {text}", self.message, crate::text::cut(what, MAX_NAME_IN_ERROR)))
    }

    /// The complaint about a key that the message does not have.
    #[cold]
    pub(super) fn unknown(&self, key: &[u8]) -> WireError {
        WireError(format!("{}: unknown field {}", self.message, quoted(key)))
    }

    /// The complaint about all fields that are absent.
    #[cold]
    pub(super) fn missing(&self, fields: &[(&str, bool)]) -> WireError {
        let absent: Vec<_> =
            fields.iter().filter(|(_, present)| !present).map(|(name, _)| format!("{name:?}")).collect();
        WireError(format!("{}: missing {}", self.message, absent.join(", ")))
    }

    #[inline]
    fn head(&mut self, what: &str) -> Result<Head<'a>, WireError> {
        self.head_of().map_err(|()| self.truncated(what))
    }

    /// Reads the next head; `Err` at the end of the payload and on the one byte that msgpack never uses.
    #[inline]
    fn head_of(&mut self) -> Result<Head<'a>, ()> {
        let [marker] = self.take()?;
        Ok(match Marker::from_u8(marker) {
            Marker::FixPos(n) => Head::Uint(u64::from(n)),
            Marker::FixNeg(n) => Head::Negative(i64::from(n)),
            Marker::FixStr(len) => Head::Str(self.bytes(usize::from(len))?),
            Marker::Str8 => self.len8().and_then(|len| self.bytes(len)).map(Head::Str)?,
            Marker::Str16 => self.len16().and_then(|len| self.bytes(len)).map(Head::Str)?,
            Marker::Str32 => self.len32().and_then(|len| self.bytes(len)).map(Head::Str)?,
            Marker::U8 => Head::Uint(self.take().map(u8::from_be_bytes)?.into()),
            Marker::U16 => Head::Uint(self.take().map(u16::from_be_bytes)?.into()),
            Marker::U32 => Head::Uint(self.take().map(u32::from_be_bytes)?.into()),
            Marker::U64 => Head::Uint(self.take().map(u64::from_be_bytes)?),
            Marker::I8 => signed(self.take().map(i8::from_be_bytes)?.into()),
            Marker::I16 => signed(self.take().map(i16::from_be_bytes)?.into()),
            Marker::I32 => signed(self.take().map(i32::from_be_bytes)?.into()),
            Marker::I64 => signed(self.take().map(i64::from_be_bytes)?),
            Marker::F32 => Head::Float(self.take().map(f32::from_be_bytes)?.into()),
            Marker::F64 => Head::Float(self.take().map(f64::from_be_bytes)?),
            Marker::Null => Head::Nil,
            Marker::True => Head::Bool(true),
            Marker::False => Head::Bool(false),
            Marker::FixArray(len) => Head::Array(usize::from(len)),
            Marker::Array16 => Head::Array(self.len16()?),
            Marker::Array32 => Head::Array(self.len32()?),
            Marker::FixMap(len) => Head::Map(usize::from(len)),
            Marker::Map16 => Head::Map(self.len16()?),
            Marker::Map32 => Head::Map(self.len32()?),
            Marker::Bin8 => self.len8().and_then(|len| self.bytes(len)).map(|_| Head::Bin)?,
            Marker::Bin16 => self.len16().and_then(|len| self.bytes(len)).map(|_| Head::Bin)?,
            Marker::Bin32 => self.len32().and_then(|len| self.bytes(len)).map(|_| Head::Bin)?,
            // An extension has one byte of type before its data.
            Marker::FixExt1 => self.bytes(2).map(|_| Head::Ext)?,
            Marker::FixExt2 => self.bytes(3).map(|_| Head::Ext)?,
            Marker::FixExt4 => self.bytes(5).map(|_| Head::Ext)?,
            Marker::FixExt8 => self.bytes(9).map(|_| Head::Ext)?,
            Marker::FixExt16 => self.bytes(17).map(|_| Head::Ext)?,
            Marker::Ext8 => self.len8().and_then(|len| self.bytes(len + 1)).map(|_| Head::Ext)?,
            Marker::Ext16 => self.len16().and_then(|len| self.bytes(len + 1)).map(|_| Head::Ext)?,
            Marker::Ext32 => {
                self.len32().and_then(|len| self.bytes(len.saturating_add(1))).map(|_| Head::Ext)?
            }
            Marker::Reserved => return Err(()),
        })
    }

    /// The next value, if it is a string with the usual lengths of keys and ids: the short way.
    #[inline]
    fn short_str(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = match *self.rest {
            [marker @ 0xa0..0xc0, ref rest @ ..] => (usize::from(marker & 0x1f), rest),
            [0xd9, len, ref rest @ ..] => (usize::from(len), rest),
            _ => return None,
        };
        let (bytes, rest) = rest.split_at_checked(len)?;
        self.rest = rest;
        Some(bytes)
    }

    #[inline]
    fn take<const N: usize>(&mut self) -> Result<[u8; N], ()> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(())?;
        self.rest = rest;
        Ok(*head)
    }

    #[inline]
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], ()> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(())?;
        self.rest = rest;
        Ok(head)
    }

    fn len8(&mut self) -> Result<usize, ()> {
        self.take().map(|bytes| usize::from(u8::from_be_bytes(bytes)))
    }

    fn len16(&mut self) -> Result<usize, ()> {
        self.take().map(|bytes| usize::from(u16::from_be_bytes(bytes)))
    }

    fn len32(&mut self) -> Result<usize, ()> {
        self.take().map(|bytes| u32::from_be_bytes(bytes) as usize)
    }

    fn utf8(&self, what: &str, bytes: &'a [u8]) -> Result<&'a str, WireError> {
        std::str::from_utf8(bytes).map_err(|_| self.error(what, "not UTF-8"))
    }

    /// A container of `len` elements needs at least `bytes` bytes.
    fn plausible(&self, what: &str, len: usize, bytes: usize) -> Result<usize, WireError> {
        if bytes > self.rest.len() {
            return Err(
                self.error(what, &format!("{len} elements announced, {} bytes left", self.rest.len()))
            );
        }
        Ok(len)
    }

    #[cold]
    fn truncated(&self, what: &str) -> WireError {
        self.error(what, "the payload is cut off or is not msgpack")
    }

    #[cold]
    fn mismatch(&self, what: &str, need: &str, head: Head<'_>) -> WireError {
        let have = match head {
            Head::Nil => "nil",
            Head::Bool(_) => "a bool",
            Head::Uint(_) => "an integer",
            Head::Negative(n) => return self.error(what, &format!("need {need}, have {n}")),
            Head::Float(_) => "a float",
            Head::Str(_) => "a str",
            Head::Bin => "bin",
            Head::Ext => "an extension",
            Head::Array(_) => "an array",
            Head::Map(_) => "a map",
        };
        self.error(what, &format!("need {need}, have {have}"))
    }
}

/// `text`, at most [`MAX_ERROR_TEXT_BYTES`] of it.
pub(super) fn cut(text: &str) -> &str {
    crate::text::cut(text, MAX_ERROR_TEXT_BYTES)
}

/// Bytes from a peer, readable and short.
pub(super) fn quoted(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes[..bytes.len().min(MAX_NAME_IN_ERROR)].escape_ascii())
}

/// Bytes of a peer's own words that an error text repeats.
const MAX_NAME_IN_ERROR: usize = 64;

fn signed(n: i64) -> Head<'static> {
    u64::try_from(n).map_or(Head::Negative(n), Head::Uint)
}
