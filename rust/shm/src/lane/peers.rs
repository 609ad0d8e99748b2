//! The table of attached suppliers, and the entry of the client.

use super::area::{Area, ClientEntry, Header, SupplierEntry};
use super::atomics::Ordering;
use super::doorbell;
use crate::copy::CachePolicy;
use crate::process::Identity;
use crate::segment::N_LANES;

/// A supplier that is attached to the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supplier {
    /// Its index in the table, below [`crate::MAX_SUPPLIERS`].
    pub index: u32,
    /// Number of this use of the index.
    pub generation: u32,
    /// Its process.
    pub identity: Identity,
    /// The descriptor of its doorbell, in its process.
    pub doorbell_fd: u32,
}

impl Supplier {
    /// Whether both are the same use of the same index, whatever else the table contains by now.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        (self.index, self.generation) == (other.index, other.generation)
    }
}

impl ClientEntry {
    pub(crate) fn register(&self, identity: Identity, doorbell_fd: u32) {
        self.pid.store(identity.pid, Ordering::Relaxed);
        self.start.store(identity.start, Ordering::Relaxed);
        self.pid_ns.store(identity.pid_ns, Ordering::Relaxed);
        self.doorbell_fd.store(doorbell_fd, Ordering::Relaxed);
        // SYNC(client-known): pairs with `read`; the identity is complete.
        self.ready.store(1, Ordering::Release);
    }

    /// The client's process and its doorbell, once it has lanes.
    pub(crate) fn read(&self) -> Option<(Identity, u32)> {
        // SYNC(client-known): pairs with `register`.
        if self.ready.load(Ordering::Acquire) != 1 {
            return None;
        }
        let identity = Identity {
            pid: self.pid.load(Ordering::Relaxed),
            start: self.start.load(Ordering::Relaxed),
            pid_ns: self.pid_ns.load(Ordering::Relaxed),
        };
        Some((identity, self.doorbell_fd.load(Ordering::Relaxed)))
    }

    /// Sets how suppliers should write the slots.
    pub(crate) fn advise(&self, policy: CachePolicy) {
        self.streaming.store(u32::from(policy == CachePolicy::Streaming), Ordering::Relaxed);
    }

    /// How suppliers should write the slots; it affects only speed.
    pub(crate) fn cache_policy(&self) -> CachePolicy {
        if self.streaming.load(Ordering::Relaxed) == 1 { CachePolicy::Streaming } else { CachePolicy::Cached }
    }

    /// The client has no more lanes.
    pub(crate) fn retire(&self) {
        self.ready.store(0, Ordering::Relaxed);
    }
}

impl SupplierEntry {
    /// The registered supplier, if there is one.
    pub(crate) fn read(&self, index: u32) -> Option<Supplier> {
        // SYNC(entry-taken): pairs with `register`; later reads do not return values of an earlier use.
        let generation = self.generation.load(Ordering::Acquire);
        // SYNC(supplier-known): pairs with `register`.
        if self.ready.load(Ordering::Acquire) != 1 {
            return None;
        }
        let identity = self.holder()?;
        Some(Supplier { index, generation, identity, doorbell_fd: self.doorbell_fd.load(Ordering::Relaxed) })
    }

    fn holder(&self) -> Option<Identity> {
        let holder = self.holder.load(Ordering::Relaxed);
        let pid_ns = self.pid_ns.load(Ordering::Relaxed);
        (holder != 0).then_some(Identity { pid: (holder >> 32) as u32, start: holder as u32, pid_ns })
    }

    /// Takes the entry if it is free, or if it is that of a process that was killed while it registered.
    fn register(&self, identity: Identity, doorbell_fd: u32) -> bool {
        let left = match self.holder() {
            None => 0,
            Some(holder) => {
                if self.ready.load(Ordering::Relaxed) == 1 || holder.is_alive() {
                    return false;
                }
                pack(holder)
            }
        };
        // SYNC(entry-freed): pairs with `free`; the last holder no longer writes here.
        let taken =
            self.holder.compare_exchange(left, pack(identity), Ordering::Acquire, Ordering::Relaxed).is_ok();
        if taken {
            // SYNC(entry-taken): pairs with `read`; the last use is over.
            self.generation.fetch_add(1, Ordering::Release);
            self.pid_ns.store(identity.pid_ns, Ordering::Relaxed);
            self.doorbell_fd.store(doorbell_fd, Ordering::Relaxed);
            self.locked.store(0, Ordering::Relaxed);
            self.reached.store(0, Ordering::Relaxed);
            for counter in &self.counters {
                counter.store(0, Ordering::Relaxed);
            }
            // SYNC(supplier-known): pairs with `read`; the identity is complete.
            self.ready.store(1, Ordering::Release);
        }
        taken
    }

    fn free(&self) {
        self.ready.store(0, Ordering::Relaxed);
        // SYNC(entry-freed): pairs with `register`.
        self.holder.store(0, Ordering::Release);
    }
}

/// Takes a free entry, and locks it; `None` when all are in use.
pub(crate) fn register(area: &Area, identity: Identity, doorbell_fd: u32) -> Option<Supplier> {
    let index = area.suppliers().iter().position(|entry| entry.register(identity, doorbell_fd))? as u32;
    let entry = &area.suppliers()[index as usize];
    let generation = entry.generation.load(Ordering::Relaxed);
    // The owner's own file has no locks that the owner could see.
    if !area.segment().is_owner() && area.segment().lock_until_closed(area.lock_of(index)) {
        // SYNC(entry-locked): pairs with `has_closed`; the lock is held.
        entry.locked.store(1, Ordering::Release);
    }
    changed(area.header());
    Some(Supplier { index, generation, identity, doorbell_fd })
}

/// Whether a supplier is in the table still: its entry was neither freed nor taken by another one.
pub(crate) fn is_registered(area: &Area, index: u32, generation: u32) -> bool {
    area.suppliers().get(index as usize).is_some_and(|entry| {
        entry.generation.load(Ordering::Relaxed) == generation && entry.ready.load(Ordering::Relaxed) == 1
    })
}

/// Whether a supplier has closed the segment without leaving the table. It replaced its program (`exec`), or ended, and
/// writes to no slot any more.
pub(crate) fn has_closed(area: &Area, supplier: &Supplier) -> bool {
    let Some(entry) = area.suppliers().get(supplier.index as usize) else { return false };
    // SYNC(entry-locked): pairs with `register`; the supplier has taken the lock before.
    entry.locked.load(Ordering::Acquire) == 1
        && !area.segment().is_locked_elsewhere(area.lock_of(supplier.index))
        // What was read is of this use of the entry, and not of a later one that has no lock yet.
        && is_registered(area, supplier.index, supplier.generation)
}

/// Records that the client can wake a supplier.
pub(crate) fn note_reached(area: &Area, supplier: &Supplier) {
    if let Some(entry) = area.suppliers().get(supplier.index as usize) {
        entry.reached.store(supplier.generation, Ordering::Relaxed);
    }
}

/// Whether the client can wake a supplier.
pub(crate) fn is_reached(area: &Area, index: u32, generation: u32) -> bool {
    area.suppliers()[index as usize].reached.load(Ordering::Relaxed) == generation
}

/// Frees the entry of a supplier that holds no claim. Does nothing where another supplier has it, of this segment or of
/// one that was made in its place.
pub(crate) fn leave(area: &Area, supplier: &Supplier) {
    let is_theirs = |entry: &SupplierEntry| entry.holder() == Some(supplier.identity);
    if is_registered(area, supplier.index, supplier.generation) {
        free(area, supplier.index, is_theirs);
    }
}

/// Frees the entry of a dead supplier that has lost its claims, whatever it contains by now, unless it was taken
/// again.
pub(crate) fn bury(area: &Area, supplier: &Supplier) {
    free(area, supplier.index, |entry| entry.generation.load(Ordering::Relaxed) == supplier.generation);
}

fn free(area: &Area, index: u32, is_theirs: impl FnOnce(&SupplierEntry) -> bool) {
    let entry = area.suppliers().get(index as usize);
    let Some(entry) = entry.filter(|entry| is_theirs(entry)) else { return };
    for lane in 0..N_LANES {
        area.ring(lane).leave(index);
    }
    doorbell::end_wait(&area.header().suppliers_waiting.word, index);
    entry.free();
    changed(area.header());
}

fn changed(header: &Header) {
    // SYNC(table-changed): pairs with `version`; a process that sees the number sees the table.
    header.table_version.word.fetch_add(1, Ordering::Release);
}

/// A number that changes when a supplier enters or leaves the table.
pub(crate) fn version(area: &Area) -> u64 {
    // SYNC(table-changed): pairs with `changed`.
    area.header().table_version.word.load(Ordering::Acquire)
}

/// All suppliers that are registered.
pub(crate) fn registered(area: &Area) -> impl Iterator<Item = Supplier> + '_ {
    area.suppliers().iter().enumerate().filter_map(|(index, entry)| entry.read(index as u32))
}

fn pack(identity: Identity) -> u64 {
    u64::from(identity.pid) << 32 | u64::from(identity.start)
}
