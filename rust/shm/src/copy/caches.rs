//! The caches of this machine, as Linux describes them.

use std::fs;
use std::sync::OnceLock;
use std::thread;

/// Where the system does not tell, as in some virtual machines.
const USUAL: u64 = 32 << 20;
/// What is believed, at least, and at most for each processor: virtual machines with a few processors of a host may tell
/// of the caches of the whole host, which other machines use, too.
const LEAST: u64 = 4 << 20;
const MOST_PER_PROCESSOR: u64 = 64 << 20;

/// Bytes of the largest cache that a core uses.
pub(super) fn largest_cache() -> u64 {
    static LARGEST: OnceLock<u64> = OnceLock::new();
    *LARGEST.get_or_init(|| {
        let size =
            |index| fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size"));
        let sizes = (0..8).filter_map(|index| parse_size(&size(index).ok()?));
        let n_processors = thread::available_parallelism().map_or(1, |n| n.get() as u64);
        believed(sizes.max().unwrap_or(USUAL), n_processors)
    })
}

fn believed(told: u64, n_processors: u64) -> u64 {
    told.min(MOST_PER_PROCESSOR.saturating_mul(n_processors)).max(LEAST)
}

/// The bytes in a text such as `32768K`.
fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (number, unit) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(number) if text.ends_with('K') => (number, 1 << 10),
        Some(number) if text.ends_with('M') => (number, 1 << 20),
        Some(number) => (number, 1 << 30),
        None => (text, 1),
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_caches_are_read() {
        let sizes = ["32K\n", "1024K", "36M", "1G", "512", "", "K", "-1K", "12T", "99999999999999999999K"];
        let expected = [
            Some(32 << 10),
            Some(1 << 20),
            Some(36 << 20),
            Some(1 << 30),
            Some(512),
            None,
            None,
            None,
            None,
            None,
        ];
        assert_eq!(sizes.map(parse_size), expected);
        assert!(largest_cache() >= LEAST);
    }

    #[test]
    fn a_machine_with_few_processors_has_no_cache_of_a_whole_host() {
        let mib = |told: u64, n_processors| believed(told << 20, n_processors) >> 20;
        assert_eq!(
            [(480, 2), (480, 240), (32, 2), (96, 16), (1, 8)].map(|(told, n)| mib(told, n)),
            [128, 480, 32, 96, 4]
        );
    }
}
