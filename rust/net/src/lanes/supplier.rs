//! The supplier's lanes: its way into the segment of one client.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use softs_proto::supplier::LaneId;
use softs_shm::{AttachPolicy, Identity, LaneSupplier, Liveness, ProcessWatch, Segment};

use super::doorbell::{Doorbell, RemoteDoorbell};

/// Where a supplier opens the lanes that the broker offers it.
#[derive(Clone, Debug, Default)]
pub enum LanePolicy {
    /// Nowhere: it refuses all.
    #[default]
    None,
    /// Addresses name shared memory.
    Shm,
    /// Addresses name shared memory whose slots begin with tickets.
    Tickets,
    /// Addresses are paths of files that may be opened.
    File(AttachPolicy),
}

/// A segment that this supplier serves lanes of.
#[derive(Debug)]
pub(crate) struct AttachedSegment {
    pub(crate) address: Arc<str>,
    pub(crate) segment_id: u64,
    pub(crate) lanes: LaneSupplier,
    doorbell: RemoteDoorbell,
    /// Readable once the client's process has ended.
    client: ProcessWatch,
}

impl AttachedSegment {
    /// Opens the segment of an offered lane; why not, otherwise. That it has the segment id of the offer proves that
    /// the client and we see the same memory.
    pub(crate) fn open(
        policy: &LanePolicy,
        id: &LaneId,
        slot_size: u64,
        doorbell: &Doorbell,
    ) -> Result<Self, String> {
        let segment = match policy {
            LanePolicy::None => return Err("this supplier serves no lanes".to_owned()),
            LanePolicy::Shm => Segment::attach_shm(&id.address),
            LanePolicy::Tickets => Segment::attach_tickets(&id.address),
            LanePolicy::File(policy) => Segment::attach_file(Path::new(&*id.address), policy),
        };
        let segment = segment.map_err(|error| error.to_string())?;
        if !segment.is_native() || segment.segment_id() != id.segment_id {
            return Err("another segment lies there".to_owned());
        }
        if segment.slot_size() != slot_size {
            let theirs = segment.slot_size();
            return Err(format!("slot_size differs: this supplier has {slot_size}, the client {theirs}"));
        }
        let identity = Identity::current().map_err(|error| error.to_string())?;
        let lanes = LaneSupplier::attach(Arc::new(segment), identity, doorbell.number())
            .map_err(|error| error.to_string())?;
        let (client, doorbell_fd) = lanes.client();
        let watch = watch_client(&client)?;
        let doorbell = RemoteDoorbell::open(client.pid, doorbell_fd)
            .map_err(|error| format!("cannot open its client's doorbell: {error}"))?;
        // A doorbell that was opened while the client ran is not one of a later process with its number.
        if watch.has_ended() {
            return Err("its client is dead".to_owned());
        }
        Ok(Self { address: id.address.clone(), segment_id: id.segment_id, lanes, doorbell, client: watch })
    }

    /// Whether it is the segment of this lane.
    pub(crate) fn holds(&self, id: &LaneId) -> bool {
        self.segment_id == id.segment_id && self.address == id.address
    }

    /// So many samples are there: wakes the client if it sleeps until then.
    pub(crate) fn note_made(&self, n: u64) {
        self.wake_after(u32::try_from(n).unwrap_or(u32::MAX));
    }

    /// Wakes the client if it sleeps: there is something that only it can see to.
    pub(crate) fn wake_client(&self) {
        self.wake_after(u32::MAX);
    }

    fn wake_after(&self, n_ended: u32) {
        if self.lanes.must_wake_client(n_ended) {
            self.doorbell.ring();
        }
    }

    /// Readable once the client's process has ended.
    pub(crate) fn client(&self) -> BorrowedFd<'_> {
        self.client.as_fd()
    }

    /// Whether orders can still come: the client's process runs, and the file holds its segment.
    pub(crate) fn is_in_use(&self) -> bool {
        !self.client.has_ended() && self.lanes.is_current()
    }
}

fn watch_client(client: &Identity) -> Result<ProcessWatch, String> {
    match ProcessWatch::open(client) {
        Liveness::Alive(watch) => Ok(watch),
        Liveness::Dead => Err("its client is dead".to_owned()),
        Liveness::Unknown(errno) => Err(format!("cannot watch its client {}: {errno}", client.pid)),
    }
}
