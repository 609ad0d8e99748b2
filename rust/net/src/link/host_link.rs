//! A link as its owner sees it.

use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use softs_proto::client::Lanes;
use softs_proto::link::{HostId, Identity, Ticket};
use softs_proto::log::LogRecord;
use softs_proto::supplier::LaneId;
use softs_shm::{RaggedLayout, Segment};

use super::command::Command;
use super::driver::Driver;
use super::egress::Product;
use super::tls::Credentials;
use crate::lanes::client::ClientLanes;
use crate::runtime::log_queue::LogQueue;
use crate::runtime::mutex::lock;
use crate::transport::listener::Listener;
use crate::transport::nonce::nonce;
use crate::transport::socket::KeepAlive;
use crate::{Endpoint, NetError};

/// The links of this host to others, in a thread of their own. Dropping it ends all sessions: orders that were claimed
/// go back to their lanes.
///
/// After a fork the child's copy is inert: it serves nothing, stops nothing, and has no log.
#[derive(Debug)]
pub struct HostLink {
    endpoint: Endpoint,
    wake: Arc<OwnedFd>,
    commands: mpsc::Sender<Command>,
    log: Arc<LogQueue>,
    thread: Mutex<Option<JoinHandle<()>>>,
    pid: u32,
}

impl HostLink {
    /// Listens at a TCP endpoint, in the name of `host`. With credentials all connections speak TLS with peers that trust
    /// a CA of this host; without, they are plain, and stay on loopback.
    ///
    /// # Errors
    /// [`NetError::EndpointInUse`], [`NetError::CredentialsNeeded`] where other machines could reach it without,
    /// [`NetError::BadEndpoint`], [`NetError::Os`].
    pub fn start(
        host: HostId,
        listen: &Endpoint,
        credentials: Option<Credentials>,
    ) -> Result<Self, NetError> {
        let listener =
            Listener::bind(listen, credentials.is_some(), KeepAlive::default()).map_err(NetError::of_link)?;
        let endpoint: Endpoint = listener.local_endpoint().parse()?;
        let os = |error: Errno| NetError::os(endpoint.as_str(), "cannot start the link", error);
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(os)?);
        let (commands, inbox) = mpsc::channel();
        let (me, log) = (Identity { host, boot: nonce()? }, Arc::new(LogQueue::default()));
        let driver = Driver::new(me, (listener, credentials), Arc::clone(&wake), inbox, Arc::clone(&log))
            .map_err(os)?;
        let thread = std::thread::Builder::new()
            .name("softs-link".to_owned())
            .spawn(move || driver.run())
            .map_err(|error| NetError::os(endpoint.as_str(), "cannot start the link", error))?;
        Ok(Self { endpoint, wake, commands, log, thread: Mutex::new(Some(thread)), pid: std::process::id() })
    }

    /// Where other links connect to.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Makes samples of a product for other hosts in `segment`, as the client of its lanes. Returns the lane in
    /// which it orders them. `ragged`: where the tensors of varying length are, if there are such.
    ///
    /// # Errors
    /// [`NetError::Os`] where the segment has no lanes, has a client already, or has slots that are too small, and in a
    /// fork.
    pub fn serve(
        &self,
        product: u32,
        segment: &Arc<Segment>,
        ragged: Option<RaggedLayout>,
    ) -> Result<LaneId, NetError> {
        let failed = |why: String| NetError::Os {
            endpoint: segment.address().to_owned(),
            what: "serve it to other hosts".to_owned(),
            why,
        };
        if self.is_forked() {
            return Err(failed("this is a fork of the process that has started the link".to_owned()));
        }
        let mut lanes = ClientLanes::open(segment)?;
        let lane = lanes.open("").ok_or_else(|| failed("it has no lanes, or another client".to_owned()))?;
        let lengths = lengths(segment.slot_size(), ragged.as_ref());
        if *lengths.end() > segment.slot_size() {
            return Err(failed("its slots are smaller than samples".to_owned()));
        }
        let memory = Product::new(product, Arc::clone(segment), ragged).map_err(|e| failed(e.to_string()))?;
        self.tell(Command::Serve { product, lanes: Box::new(lanes), lane, memory, lengths });
        let (address, segment_id) = (segment.address().into(), segment.segment_id());
        Ok(LaneId { address, segment_id, lane: lane.index, generation: lane.generation })
    }

    /// Lets a host, which is reached at `address`, order samples of a product by a ticket.
    pub fn admit(&self, ticket: Ticket, host: HostId, address: &Endpoint, product: u32) {
        self.tell(Command::Admit { ticket, host, address: address.clone(), product });
    }

    /// Has a host, which is reached at `address`, make the samples that clients order in these lanes of shared memory,
    /// besides the suppliers of this host.
    pub fn bring(
        &self,
        host: HostId,
        address: &Endpoint,
        ticket: Ticket,
        (slot_size, ragged): (u64, Option<&RaggedLayout>),
        lanes: Vec<LaneId>,
    ) {
        let (address, lengths) = (address.clone(), lengths(slot_size, ragged));
        self.tell(Command::Bring { host, address, ticket, lengths, slot_size, lanes });
    }

    /// Gives orders of other hosts back that no supplier has begun with, and takes none any more: this host stops.
    pub fn drain(&self) {
        self.tell(Command::Drain);
    }

    /// The next line of the log, if one comes within `timeout`.
    #[must_use]
    pub fn next_log(&self, timeout: Duration) -> Option<LogRecord> {
        // In a fork another thread may have held the lock of the log.
        if self.is_forked() { None } else { self.log.next(timeout) }
    }

    /// Ends all sessions and the thread. Idempotent.
    pub fn stop(&self) {
        // In a fork there is no thread to wait for, and the eventfd is the parent's too.
        if self.is_forked() {
            return;
        }
        let Some(thread) = lock(&self.thread).take() else { return };
        self.tell(Command::Stop);
        // A panic of the thread was reported where it happened.
        let _ended = thread.join();
        self.log.close();
    }

    fn tell(&self, command: Command) {
        if self.is_forked() {
            return;
        }
        // A thread that is over needs to know nothing.
        let _heard = self.commands.send(command);
        // It fails only when the counter is full, which wakes the thread as well.
        let _woken = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    fn is_forked(&self) -> bool {
        self.pid != std::process::id()
    }
}

impl Drop for HostLink {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Bytes that a sample may have.
fn lengths(slot_size: u64, ragged: Option<&RaggedLayout>) -> RangeInclusive<u64> {
    ragged.map_or(slot_size..=slot_size, |layout| {
        let least = layout.values_at() as u64;
        least..=least + layout.max_values_len() as u64
    })
}

#[cfg(test)]
mod tests {
    use softs_proto::log::Level;

    use super::*;

    #[test]
    fn the_copy_in_a_fork_is_inert() {
        let any = "tcp://127.0.0.1:0".parse().unwrap();
        let mut link = HostLink::start(HostId(1), &any, None).unwrap();
        let segment = Arc::new(Segment::create_shm(None, 64, 2).unwrap());
        link.log.push(LogRecord { level: Level::Info, text: "of the parent".to_owned() });
        // As a fork sees it: the process has another number.
        let pid = std::mem::replace(&mut link.pid, 0);
        assert_eq!(link.next_log(Duration::from_secs(60)), None);
        let why = link.serve(1, &segment, None).unwrap_err().to_string();
        assert!(why.contains("this is a fork"), "{why}");
        let itself = |link: &HostLink| link.bring(HostId(1), &any, Ticket([1; 16]), (64, None), Vec::new());
        itself(&link);
        link.stop();
        link.pid = pid;
        link.serve(1, &segment, None).unwrap();
        itself(&link);
        let next = || link.next_log(Duration::from_secs(60)).unwrap().text;
        assert_eq!(next(), "of the parent");
        assert!(next().contains("or it is this one"));
        link.stop();
        assert_eq!(link.next_log(Duration::from_secs(60)), None, "it was told once");
        segment.unlink().unwrap();
    }
}
