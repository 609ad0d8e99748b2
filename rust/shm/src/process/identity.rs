//! [`Identity`]: which process a number means. Numbers are reused, so the start of the process belongs to it.

use std::fs;

use rustix::io::Errno;

use super::stat::Stat;
use crate::SegmentError;

/// A process, in the form that other processes recognize.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Its number.
    pub pid: u32,
    /// When it started, in ticks since the boot; the low 32 bits.
    pub start: u32,
    /// The inode of its process-number namespace.
    pub pid_ns: u64,
}

impl Identity {
    /// This process.
    ///
    /// # Errors
    /// [`SegmentError::Io`] or [`SegmentError::Refused`] where `/proc` cannot be read or parsed.
    pub fn current() -> Result<Self, SegmentError> {
        let stat = fs::read("/proc/self/stat").map_err(|error| unreadable("/proc/self/stat", &error))?;
        let ns =
            fs::read_link("/proc/self/ns/pid").map_err(|error| unreadable("/proc/self/ns/pid", &error))?;
        let stat = Stat::parse(&stat);
        let pid_ns = ns.to_str().and_then(|ns| ns.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok());
        match stat.zip(pid_ns) {
            // The number in /proc is the one that other processes of this namespace see.
            Some((stat, pid_ns)) => Ok(Self { pid: stat.pid, start: stat.start as u32, pid_ns }),
            None => Err(SegmentError::Refused {
                name: "/proc/self".to_owned(),
                why: "it does not tell when this process started".to_owned(),
            }),
        }
    }
}

fn unreadable(name: &str, error: &std::io::Error) -> SegmentError {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    SegmentError::Io { what: "read", name: name.to_owned(), errno: errno.raw_os_error() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_of_this_process_is_constant() {
        let me = Identity::current().unwrap();
        assert_eq!((me.pid, me), (std::process::id(), Identity::current().unwrap()));
        assert!(me.pid_ns != 0);
    }
}
