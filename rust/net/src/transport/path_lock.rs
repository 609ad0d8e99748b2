//! Ownership of an ipc path: the kernel's lock on the file beside it. The lock ends with its owner, the file may
//! outlive it.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// The lock on one path, held until it is dropped.
#[derive(Debug)]
pub(crate) struct PathLock {
    path: PathBuf,
    fd: OwnedFd,
}

impl PathLock {
    /// Takes the lock of `path`; [`Errno::AGAIN`] when it is held.
    pub(crate) fn acquire(path: &Path) -> Result<Self, Errno> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let path = PathBuf::from(name);
        loop {
            let fd = rustix::fs::open(
                &path,
                OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::RUSR | Mode::WUSR,
            )?;
            loop {
                match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) => break,
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error),
                }
            }
            // Its last owner may have removed the file between our open and our lock: then it is a lock on nothing.
            if is_same_file(&fd, &path)? {
                return Ok(Self { path, fd });
            }
        }
    }
}

impl Drop for PathLock {
    fn drop(&mut self) {
        // The file goes while the lock is held, so that no process can hold a lock on a file that is being removed.
        // Both fail only when the file was removed before. Unlocking, because a forked child may hold the descriptor
        // too.
        if is_same_file(&self.fd, &self.path) == Ok(true) {
            let _gone = rustix::fs::unlinkat(CWD, &self.path, rustix::fs::AtFlags::empty());
        }
        let _unlocked = rustix::fs::flock(&self.fd, FlockOperation::NonBlockingUnlock);
    }
}

fn is_same_file(fd: &OwnedFd, path: &Path) -> Result<bool, Errno> {
    let ours = rustix::fs::fstat(fd)?;
    match rustix::fs::lstat(path) {
        Ok(there) => Ok((ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn one_thread_at_a_time_holds_the_lock_while_several_take_it_in_turn() {
        let directory = std::env::temp_dir().join(format!("softs-lock-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let (holders, taken) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while taken.load(Ordering::SeqCst) < 1000 {
                        match PathLock::acquire(&directory.join("socket")) {
                            Ok(lock) => {
                                assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                                std::thread::yield_now();
                                holders.fetch_sub(1, Ordering::SeqCst);
                                taken.fetch_add(1, Ordering::SeqCst);
                                drop(lock);
                            }
                            Err(error) => assert_eq!(error, Errno::AGAIN),
                        }
                    }
                });
            }
        });
        // It fails when a lock file was left.
        std::fs::remove_dir(&directory).unwrap();
    }
}
