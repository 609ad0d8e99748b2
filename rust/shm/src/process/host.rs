//! Which processes see the same shared memory.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::segment::SHM_DIR;

/// A number of this host and its shared memory: processes with different numbers do not see each other's segments, as
/// on two hosts, or in containers with a `/dev/shm` each. 0 where it cannot be determined.
#[must_use]
pub fn host_id() -> u64 {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let device = fs::metadata(SHM_DIR).ok().map(|shm| shm.dev());
    boot.zip(device).map_or(0, |(boot, device)| {
        // FNV-1a: the number must be the same in all builds.
        let bytes = boot.trim().bytes().chain(device.to_le_bytes());
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_host_is_constant() {
        assert!(host_id() != 0 && host_id() == host_id());
    }
}
