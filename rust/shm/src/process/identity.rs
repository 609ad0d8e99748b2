//! Which process a number means: numbers are used again, so the time of its start belongs to it.

use std::fs;

use rustix::io::Errno;

use crate::SegmentError;

/// A process, as others can recognize it.
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
    /// [`SegmentError::Io`] or [`SegmentError::Refused`] where `/proc` does not say.
    pub fn current() -> Result<Self, SegmentError> {
        let stat = fs::read("/proc/self/stat").map_err(|error| unreadable("/proc/self/stat", &error))?;
        let ns =
            fs::read_link("/proc/self/ns/pid").map_err(|error| unreadable("/proc/self/ns/pid", &error))?;
        let stat = Stat::parse(&stat);
        let pid_ns = ns.to_str().and_then(|ns| ns.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok());
        match stat.zip(pid_ns) {
            // The number in /proc is the one that others in this namespace see.
            Some((stat, pid_ns)) => Ok(Self { pid: stat.pid, start: stat.start, pid_ns }),
            None => Err(SegmentError::Refused {
                name: "/proc/self".to_owned(),
                why: "it does not say when this process started".to_owned(),
            }),
        }
    }

    /// Whether it still runs, asked by a process of the same namespace. What `/proc` cannot tell counts as alive.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        match fs::read(format!("/proc/{}/stat", self.pid)) {
            Ok(stat) => Stat::parse(&stat).is_none_or(|stat| stat.start == self.start && !stat.is_dead()),
            // ESRCH: it ended while its file was open.
            Err(error) => !matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::SRCH)),
        }
    }
}

/// What is of use here in `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    pid: u32,
    state: u8,
    n_threads: u64,
    start: u32,
}

impl Stat {
    fn parse(stat: &[u8]) -> Option<Self> {
        let stat =
            str::from_utf8(stat.trim_ascii_end()).map_or_else(|_| String::from_utf8_lossy(stat), Into::into);
        // The name of the program may contain spaces and parentheses; no field after it does.
        let (pid, _) = stat.split_once(' ')?;
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let state = *fields.next()?.as_bytes().first()?;
        // Fields 20 and 22, where the state is 3.
        let n_threads = fields.nth(16)?.parse().ok()?;
        let start: u64 = fields.nth(1)?.parse().ok()?;
        Some(Self { pid: pid.parse().ok()?, state, n_threads, start: start as u32 })
    }

    /// A zombie runs no more, unless only its first thread has ended.
    fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x') && self.n_threads <= 1
    }
}

fn unreadable(name: &str, error: &std::io::Error) -> SegmentError {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    SegmentError::Io { what: "read", name: name.to_owned(), errno: errno.raw_os_error() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_itself_until_it_ends() {
        let me = Identity::current().unwrap();
        assert_eq!((me.pid, me), (std::process::id(), Identity::current().unwrap()));
        assert!(me.pid_ns != 0 && me.is_alive());
        let reused = Identity { start: me.start.wrapping_sub(1), ..me };
        assert!(!reused.is_alive(), "another process had that number before");

        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let stat = Stat::parse(&fs::read(format!("/proc/{}/stat", child.id())).unwrap()).unwrap();
        let other = Identity { pid: child.id(), start: stat.start, pid_ns: me.pid_ns };
        assert!(other.is_alive());
        child.kill().unwrap();
        while other.is_alive() {
            std::thread::yield_now();
        }
        assert!(
            fs::exists(format!("/proc/{}", child.id())).unwrap(),
            "dead already while nobody waited for it"
        );
        child.wait().unwrap();
        assert!(!other.is_alive());
    }

    #[test]
    fn names_of_programs_do_not_confuse() {
        let tail = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 7 0 4294967299 99";
        for name in ["cat", "a b", "a) R 1 1", ") ) ((", ""] {
            let stat = Stat::parse(format!("77 ({name}) {tail}\n").as_bytes());
            assert_eq!(stat, Some(Stat { pid: 77, state: b'S', n_threads: 7, start: 3 }), "{name}");
        }
        for bad in ["", "77", "77 (x) S", "x (x) S 1 2", "77 (x S 1 2 3"] {
            assert_eq!(Stat::parse(bad.as_bytes()), None, "{bad}");
        }
        assert!(Stat::parse(&[b"7 (\xff\xfe) ", tail.as_bytes()].concat()).is_some());
    }
}
