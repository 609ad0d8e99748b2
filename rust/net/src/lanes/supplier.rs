//! The supplier's lanes: its way into the segment of one client.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use softs_proto::supplier::LaneId;
use softs_shm::{
    AttachPolicy, Identity, LaneSupplier, Liveness, ProcessWatch, Segment, SegmentError, is_used_up,
};

use super::doorbell::{Doorbell, RemoteDoorbell};

/// Where a supplier opens the lanes that the broker offers it.
#[derive(Clone, Debug, Default)]
pub enum LanePolicy {
    /// Nowhere: it refuses all.
    #[default]
    None,
    /// Addresses name shared memory.
    Shm,
    /// Addresses name shared memory with a ticket at the start of each slot.
    Tickets,
    /// Addresses are paths of files that may be opened.
    File(AttachPolicy),
}

/// Why a lane is not served.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) why: String,
    /// Whether there may be room for it later.
    pub(crate) is_for_now: bool,
}

impl Refusal {
    pub(crate) fn for_good(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_for_now: false }
    }

    pub(crate) fn for_now(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_for_now: true }
    }

    pub(crate) fn of(what: &str, errno: Errno) -> Self {
        Self { why: format!("{what}: {errno}"), is_for_now: is_used_up(errno) }
    }
}

impl From<SegmentError> for Refusal {
    fn from(error: SegmentError) -> Self {
        Self { is_for_now: error.is_for_now(), why: error.to_string() }
    }
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
    /// Opens the segment of an offered lane, of which slots have `slot_size` bytes if that is given; why not, otherwise.
    /// That it has the segment id of the offer proves that
    /// the client and we see the same memory.
    pub(crate) fn open(
        policy: &LanePolicy,
        id: &LaneId,
        slot_size: Option<u64>,
        doorbell: &Doorbell,
    ) -> Result<Self, Refusal> {
        let segment = match policy {
            LanePolicy::None => return Err(Refusal::for_good("this supplier serves no lanes")),
            LanePolicy::Shm => Segment::attach_shm(&id.address),
            LanePolicy::Tickets => Segment::attach_tickets(&id.address),
            LanePolicy::File(policy) => Segment::attach_file(Path::new(&*id.address), policy),
        };
        let segment = segment?;
        if !segment.is_native() || segment.segment_id() != id.segment_id {
            return Err(Refusal::for_good("another segment lies there"));
        }
        let theirs = segment.slot_size();
        if let Some(slot_size) = slot_size.filter(|mine| *mine != theirs) {
            let why = format!("slot_size differs: this supplier has {slot_size}, the client {theirs}");
            return Err(Refusal::for_good(why));
        }
        let lanes = LaneSupplier::attach(Arc::new(segment), Identity::current()?, doorbell.number())?;
        let (client, doorbell_fd) = lanes.client();
        let watch = watch_client(&client)?;
        let doorbell = RemoteDoorbell::open(client.pid, doorbell_fd)
            .map_err(|errno| Refusal::of("cannot open its client's doorbell", errno))?;
        // A doorbell that was opened while the client ran is not one of a later process with its number.
        if watch.has_ended() {
            return Err(Refusal::for_good("its client is dead"));
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

fn watch_client(client: &Identity) -> Result<ProcessWatch, Refusal> {
    match ProcessWatch::open(client) {
        Liveness::Alive(watch) => Ok(watch),
        Liveness::Dead => Err(Refusal::for_good("its client is dead")),
        Liveness::Unknown(errno) => {
            Err(Refusal::of(&format!("cannot watch its client {}", client.pid), errno))
        }
    }
}
