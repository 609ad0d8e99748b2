//! What medium a client has, and which ones a supplier can write to.

use super::error::WireError;
use super::reader::Reader;
use super::writer;

/// A kind of medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MediumKind {
    /// Not known, as for peers of softs, or one of the user's.
    #[default]
    Unknown = 0,
    /// Shared memory.
    Shm = 1,
    /// A file. Other hosts may share it.
    File = 2,
    /// Memory that is reached by TCP.
    Tcp = 3,
    /// Memory of a device, by tickets in shared memory.
    Tickets = 4,
    /// Shared memory or a file, of suppliers that write to both.
    ShmOrFile = 5,
    /// Shared memory, of the link to other hosts as a supplier: it has samples made there.
    Link = 6,
    /// Shared memory of the link as a client: it orders for other hosts.
    Linked = 7,
}

impl MediumKind {
    /// Whether a supplier that writes to this kind can write to that one, as far as is known.
    fn reaches(self, client: Self) -> bool {
        match (self, client) {
            // From one host to the next one, and no further (N1).
            (Self::Link, theirs) => theirs == Self::Shm,
            (mine, Self::Linked) => matches!(mine, Self::Shm | Self::ShmOrFile),
            (Self::Unknown, _) | (_, Self::Unknown) | (Self::ShmOrFile, Self::Shm | Self::File) => true,
            (mine, theirs) => mine == theirs,
        }
    }
}

impl std::fmt::Display for MediumKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Unknown => "a medium of its own",
            Self::Shm => "shared memory",
            Self::File => "a file",
            Self::Tcp => "a TCP medium",
            Self::Tickets => "a CudaIpcMedium",
            Self::ShmOrFile => "shared memory or a file",
            Self::Link => "shared memory, for suppliers of other hosts",
            Self::Linked => "shared memory, for clients of other hosts",
        })
    }
}

/// The medium of a client, or what a supplier can write to. Suppliers that cannot serve a client get no orders of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MediumProfile {
    /// Its kind.
    pub kind: MediumKind,
    /// The host, and there the memory that its processes share; 0: not known.
    pub host: u64,
    /// Bytes of one slot; 0: not known.
    pub slot_size: u64,
}

/// Why a supplier cannot serve a client.
#[derive(Clone, Copy)]
enum Obstacle {
    Kind,
    SlotSize,
    Host,
}

impl MediumProfile {
    /// Whether a supplier with this profile can serve a client with that one, as far as is known.
    #[must_use]
    pub fn can_serve(&self, client: &Self) -> bool {
        self.obstacle(client).is_none()
    }

    /// Why a supplier with this profile cannot serve a client with that one.
    #[must_use]
    pub fn why_not(&self, client: &Self) -> Option<String> {
        Some(match self.obstacle(client)? {
            Obstacle::Kind => format!("it writes to {}, and the client has {}", self.kind, client.kind),
            Obstacle::SlotSize => {
                let (mine, theirs) = (self.slot_size, client.slot_size);
                format!("slot_size differs: this supplier has {mine}, the client {theirs}")
            }
            Obstacle::Host => {
                "it is on another host, or sees another /dev/shm; join the hosts by a link".to_owned()
            }
        })
    }

    fn obstacle(&self, client: &Self) -> Option<Obstacle> {
        let differs = |mine: u64, theirs: u64| mine != 0 && theirs != 0 && mine != theirs;
        let needs_host = matches!(client.kind, MediumKind::Shm | MediumKind::Tickets | MediumKind::Linked);
        if !self.kind.reaches(client.kind) {
            Some(Obstacle::Kind)
        } else if differs(self.slot_size, client.slot_size) {
            Some(Obstacle::SlotSize)
        } else {
            (needs_host && self.kind != MediumKind::Unknown && differs(self.host, client.host))
                .then_some(Obstacle::Host)
        }
    }
}

pub(super) fn decode(payload: &[u8]) -> Result<MediumProfile, WireError> {
    let mut reader = Reader::new("MEDIUM", payload);
    reader.tuple("payload", 3)?;
    let kind = match reader.uint("kind")? {
        1 => MediumKind::Shm,
        2 => MediumKind::File,
        3 => MediumKind::Tcp,
        4 => MediumKind::Tickets,
        5 => MediumKind::ShmOrFile,
        6 => MediumKind::Link,
        7 => MediumKind::Linked,
        // A kind of a later version.
        _ => MediumKind::Unknown,
    };
    let profile = MediumProfile { kind, host: reader.uint("host")?, slot_size: reader.uint("slot_size")? };
    reader.end()?;
    Ok(profile)
}

pub(super) fn encode(out: &mut Vec<u8>, profile: MediumProfile) {
    writer::array(out, 3);
    writer::uint(out, profile.kind as u64);
    writer::uint(out, profile.host);
    writer::uint(out, profile.slot_size);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supplier_serves_what_it_can_reach_and_what_is_not_known() {
        let profile = |kind, host, slot_size| MediumProfile { kind, host, slot_size };
        let shm = profile(MediumKind::Shm, 7, 64);
        for (client, can) in [
            (shm, true),
            (MediumProfile::default(), true),
            (profile(MediumKind::Shm, 0, 0), true),
            (profile(MediumKind::Unknown, 8, 64), true),
            (profile(MediumKind::Shm, 8, 64), false),
            (profile(MediumKind::Shm, 7, 65), false),
            (profile(MediumKind::Tickets, 7, 64), false),
            (profile(MediumKind::Tcp, 7, 64), false),
        ] {
            assert_eq!((shm.can_serve(&client), client.can_serve(&shm)), (can, can), "{client:?}");
        }
        for kind in [MediumKind::File, MediumKind::Tcp] {
            assert!(profile(kind, 7, 64).can_serve(&profile(kind, 8, 64)), "{kind:?} reaches other hosts");
        }
        assert!(MediumProfile::default().can_serve(&shm));
        let both = profile(MediumKind::ShmOrFile, 7, 64);
        for (client, can) in [
            (shm, true),
            (profile(MediumKind::Shm, 8, 64), false),
            (profile(MediumKind::File, 8, 64), true),
            (profile(MediumKind::Tcp, 7, 64), false),
        ] {
            assert_eq!(both.can_serve(&client), can, "{client:?}");
        }
        let (link, linked) = (profile(MediumKind::Link, 7, 0), profile(MediumKind::Linked, 7, 64));
        for (supplier, client, can) in [
            (link, shm, true),
            (link, profile(MediumKind::Shm, 8, 64), false),
            (link, profile(MediumKind::File, 7, 64), false),
            (link, MediumProfile::default(), false),
            (link, linked, false),
            (shm, linked, true),
            (both, linked, true),
            (profile(MediumKind::Shm, 8, 64), linked, false),
            (MediumProfile::default(), linked, false),
        ] {
            assert_eq!(supplier.can_serve(&client), can, "{supplier:?} {client:?}");
        }
    }
}
