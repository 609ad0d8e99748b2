//! The caches of this machine, as Linux describes them.

use std::fs;
use std::sync::OnceLock;

/// Where the system does not tell, as in some virtual machines.
const USUAL: u64 = 32 << 20;
/// What is believed: some virtual machines tell of the caches of a whole host.
const LEAST: u64 = 4 << 20;
const MOST: u64 = 512 << 20;

/// Bytes of the largest cache that a core uses.
pub(super) fn largest_cache() -> u64 {
    static LARGEST: OnceLock<u64> = OnceLock::new();
    *LARGEST.get_or_init(|| {
        let size =
            |index| fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size"));
        let sizes = (0..8).filter_map(|index| parse_size(&size(index).ok()?));
        sizes.max().map_or(USUAL, |largest| largest.clamp(LEAST, MOST))
    })
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
        assert!((LEAST..=MOST).contains(&largest_cache()));
    }
}
