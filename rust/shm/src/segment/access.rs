//! [`Access`]: reads and writes of a segment, through a mapping, or through the file where a mapping could raise
//! SIGBUS (M4).

use std::os::fd::BorrowedFd;

use rustix::io::{Errno, pread, pwrite, retry_on_intr};

use super::map::Map;
use crate::copy::{CachePolicy, ForeignBytes};

/// How the bytes of a segment are accessed.
#[derive(Debug)]
pub(crate) enum Access {
    /// All blocks of the file exist.
    Mapped(Map),
    /// Some blocks of the slots do not exist yet. The mapping is for existing blocks; everything else uses `pread`
    /// and `pwrite`, as `Direct` does.
    Sparse(Map),
    /// The file may have holes, or is not one of softs-fast: `pread` and `pwrite` return an error where a mapping
    /// would raise SIGBUS.
    Direct,
}

impl Access {
    /// The mapping, if there is one.
    pub(crate) fn map(&self) -> Option<&Map> {
        match self {
            Self::Mapped(map) | Self::Sparse(map) => Some(map),
            Self::Direct => None,
        }
    }

    /// The mapping, if all of it may be written to. It is read-only in a fork of the process that attached (M9).
    fn writable(&self) -> Option<&Map> {
        match self {
            Self::Mapped(map) if map.is_writable() => Some(map),
            _ => None,
        }
    }

    /// Sets `len` bytes at `at` to `byte`.
    pub(crate) fn fill(&self, file: BorrowedFd<'_>, at: u64, len: u64, byte: u8) -> Result<(), Errno> {
        match self.writable() {
            Some(map) => fits(map.fill(index(at)?, index(len)?, byte)),
            None => write_all(file, at, &vec![byte; index(len)?]),
        }
    }

    /// Writes `data` at `at`. `INVAL` when it does not fit into the mapping.
    pub(crate) fn write(
        &self,
        file: BorrowedFd<'_>,
        at: u64,
        data: &[u8],
        policy: CachePolicy,
    ) -> Result<(), Errno> {
        match self.writable() {
            Some(map) => fits(map.write(index(at)?, data, policy)),
            None => write_all(file, at, data),
        }
    }

    /// As [`Self::write`].
    pub(crate) fn write_from(
        &self,
        file: BorrowedFd<'_>,
        at: u64,
        data: ForeignBytes<'_>,
        policy: CachePolicy,
    ) -> Result<(), Errno> {
        match self.writable() {
            Some(map) => fits(map.write_from(index(at)?, data, policy)),
            None => write_all(file, at, &data.to_vec()),
        }
    }

    /// Fills `out` from `at`.
    pub(crate) fn read(&self, file: BorrowedFd<'_>, at: u64, out: &mut [u8]) -> Result<(), Errno> {
        match self {
            Self::Mapped(map) => fits(map.read(index(at)?, out)),
            Self::Sparse(_) | Self::Direct => read_all(file, at, out),
        }
    }

    /// As [`Self::read`].
    pub(crate) fn read_to(
        &self,
        file: BorrowedFd<'_>,
        at: u64,
        out: ForeignBytes<'_>,
        policy: CachePolicy,
    ) -> Result<(), Errno> {
        match self {
            Self::Mapped(map) => fits(map.read_to(index(at)?, out, policy)),
            Self::Sparse(_) | Self::Direct => {
                let mut copy = vec![0; out.len()];
                read_all(file, at, &mut copy)?;
                out.fill_from(&copy);
                Ok(())
            }
        }
    }
}

/// Writes all of `data` to the file.
pub(crate) fn write_all(file: BorrowedFd<'_>, mut at: u64, mut data: &[u8]) -> Result<(), Errno> {
    while !data.is_empty() {
        let n = retry_on_intr(|| pwrite(file, data, at))?;
        if n == 0 {
            return Err(Errno::NOSPC);
        }
        data = &data[n..];
        at += n as u64;
    }
    Ok(())
}

/// Fills all of `out` from the file. `NODATA` when it ends before.
pub(crate) fn read_all(file: BorrowedFd<'_>, mut at: u64, mut out: &mut [u8]) -> Result<(), Errno> {
    while !out.is_empty() {
        let n = retry_on_intr(|| pread(file, &mut *out, at))?;
        if n == 0 {
            return Err(Errno::NODATA);
        }
        out = &mut out[n..];
        at += n as u64;
    }
    Ok(())
}

fn index(at: u64) -> Result<usize, Errno> {
    usize::try_from(at).map_err(|_| Errno::INVAL)
}

fn fits(done: bool) -> Result<(), Errno> {
    if done { Ok(()) } else { Err(Errno::INVAL) }
}
