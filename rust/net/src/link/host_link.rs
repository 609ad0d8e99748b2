//! A link as its owner sees it.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use softs_proto::link::HostId;
use softs_proto::log::LogRecord;

use super::driver::Driver;
use super::owner::{Command, Ending, LinkOptions, Shared};
use crate::runtime::mutex::lock;
use crate::tls::Credentials;
use crate::transport::listener::Listener;
use crate::transport::nonce::nonce;
use crate::transport::socket::KeepAlive;
use crate::{Endpoint, NetError};

/// The links of this host to others, in a thread of their own. Clients of this host get samples from suppliers of each
/// host that is joined with it, and the other way round. Dropping it ends all sessions: orders that were claimed go back
/// to their lanes.
///
/// After a fork the child's copy is inert: it serves nothing, stops nothing, and has no log.
#[derive(Debug)]
pub struct HostLink {
    endpoint: Option<Endpoint>,
    wake: Arc<OwnedFd>,
    commands: mpsc::Sender<Command>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    pid: u32,
}

impl HostLink {
    /// Listens and connects. With credentials all connections speak TLS with peers that trust a CA of this host; without,
    /// they are plain, and stay on loopback.
    ///
    /// # Errors
    /// [`NetError::EndpointInUse`], [`NetError::CredentialsNeeded`] where other machines could reach it without,
    /// [`NetError::BadEndpoint`], [`NetError::Os`].
    pub fn start(options: LinkOptions, credentials: Option<Credentials>) -> Result<Self, NetError> {
        let has_credentials = credentials.is_some();
        let bind = |at| Listener::bind(at, has_credentials, KeepAlive::default()).map_err(NetError::of_link);
        let listener = options.listen.as_ref().map(bind).transpose()?;
        let endpoint = listener.as_ref().map(|it| it.local_endpoint().parse()).transpose()?;
        let name = options.backend.as_str().to_owned();
        let os = |error: Errno| NetError::os(&name, "cannot start the link", error);
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(os)?);
        let (commands, inbox) = mpsc::channel();
        let (me, shared) = (HostId(nonce()?), Arc::new(Shared::default()));
        let for_owner = (Arc::clone(&wake), inbox);
        let driver =
            Driver::new(me, options, (listener, credentials), for_owner, Arc::clone(&shared)).map_err(os)?;
        let ending = Ending(Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("softs-link".to_owned())
            .spawn(move || {
                let _at_the_end = ending;
                driver.run();
            })
            .map_err(|error| NetError::os(&name, "cannot start the link", error))?;
        Ok(Self {
            endpoint,
            wake,
            commands,
            shared,
            thread: Mutex::new(Some(thread)),
            pid: std::process::id(),
        })
    }

    /// Where other links connect to.
    #[must_use]
    pub fn endpoint(&self) -> Option<&Endpoint> {
        self.endpoint.as_ref()
    }

    /// Hosts that are joined with this one now.
    #[must_use]
    pub fn n_sessions(&self) -> usize {
        self.shared.n_sessions.load(Ordering::Relaxed)
    }

    /// Gives orders of other hosts back that no supplier has begun with, and takes none any more: this host stops.
    /// [`HostLink::owes`] tells when the others have been made and sent.
    pub fn drain(&self) {
        // Until the thread knows better.
        self.shared.owes.store(!self.has_ended(), Ordering::Relaxed);
        self.tell(Command::Drain);
    }

    /// Whether other hosts wait for samples of this one; of a link that has work, as of its last pause.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.shared.owes.load(Ordering::Relaxed)
    }

    /// Whether the thread has ended, by [`HostLink::stop`] or by itself: no line of the log comes after those that are there.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        // In a fork another thread may have held the lock of the log, and there is none.
        self.is_forked() || self.shared.log.is_closed()
    }

    /// The next line of the log, if one comes within `timeout`.
    #[must_use]
    pub fn next_log(&self, timeout: Duration) -> Option<LogRecord> {
        // In a fork another thread may have held the lock of the log.
        if self.is_forked() { None } else { self.shared.log.next(timeout) }
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

#[cfg(test)]
mod tests {
    use softs_proto::log::Level;

    use super::*;

    #[test]
    fn the_copy_in_a_fork_is_inert() {
        let any: Endpoint = "tcp://127.0.0.1:0".parse().unwrap();
        let nowhere: Endpoint = "ipc://@softs-fast-no-broker".parse().unwrap();
        let (frontend, backend) = (nowhere.clone(), nowhere);
        let options = LinkOptions {
            listen: Some(any),
            connect: Vec::new(),
            frontend,
            backend,
            control: None,
            connections: None,
        };
        let mut link = HostLink::start(options, None).unwrap();
        link.shared.log.push(LogRecord { level: Level::Info, text: "of the parent".to_owned() });
        // As a fork sees it: the process has another number.
        let pid = std::mem::replace(&mut link.pid, 0);
        assert_eq!(link.next_log(Duration::from_secs(60)), None);
        link.stop();
        link.pid = pid;
        let text = || link.next_log(Duration::from_secs(60)).map(|record| record.text);
        let told: Vec<_> = std::iter::from_fn(text).take(2).collect();
        assert!(told.iter().any(|text| text == "of the parent"), "{told:?}");
        link.stop();
        while text().is_some() {}
    }
}
