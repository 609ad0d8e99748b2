//! `/proc/PID/stat`: when a process started.

use std::fs;

/// The fields of `/proc/PID/stat` that are used here.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) pid: u32,
    /// When the process started, in ticks since the boot.
    pub(crate) start: u64,
}

impl Stat {
    pub(crate) fn parse(stat: &[u8]) -> Option<Self> {
        let stat =
            str::from_utf8(stat.trim_ascii_end()).map_or_else(|_| String::from_utf8_lossy(stat), Into::into);
        // The name of the program may contain spaces and parentheses; no field after it does.
        let (pid, _) = stat.split_once(' ')?;
        let (_, rest) = stat.rsplit_once(") ")?;
        // Field 22, where the first one after the name is field 3.
        let start = rest.split(' ').nth(19)?.parse().ok()?;
        Some(Self { pid: pid.parse().ok()?, start })
    }
}

/// When a process started, in ticks since the boot; `None` where it cannot be read.
#[must_use]
pub fn start_of(pid: u32) -> Option<u64> {
    Some(Stat::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)?.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_names_do_not_confuse_the_parser() {
        let tail = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 7 0 4294967299 99";
        for name in ["cat", "a b", "a) R 1 1", ") ) ((", ""] {
            let stat = Stat::parse(format!("77 ({name}) {tail}\n").as_bytes());
            assert_eq!(stat, Some(Stat { pid: 77, start: 4_294_967_299 }), "{name}");
        }
        for bad in ["", "77", "77 (x) S", "x (x) S 1 2", "77 (x S 1 2 3"] {
            assert_eq!(Stat::parse(bad.as_bytes()), None, "{bad}");
        }
        assert!(Stat::parse(&[b"7 (\xff\xfe) ", tail.as_bytes()].concat()).is_some());
    }
}
