//! Which hosts there are.

/// A host, by a random number that its link draws when it starts: one that starts again is another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u64);
