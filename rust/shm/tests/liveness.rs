//! Liveness of processes, case by case (`liveness_cases.txt`). One test: it limits the descriptors of its process.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, getrlimit, kill_process, setrlimit, waitpid,
};
use softs_shm::{Identity, Liveness, ProcessWatch, is_process_alive, start_of};

const CASES: &str = include_str!("liveness_cases.txt");

/// A process as its peers recorded it.
#[derive(Clone, Copy)]
struct Recorded {
    pid: u32,
    start: u64,
    pid_ns: u64,
}

impl Recorded {
    fn of(pid: u32) -> Self {
        Self { pid, start: start_of(pid).unwrap(), pid_ns: Identity::current().unwrap().pid_ns }
    }

    fn identity(self) -> Identity {
        Identity { pid: self.pid, start: self.start as u32, pid_ns: self.pid_ns }
    }

    /// What all functions that tell say; they must agree.
    fn is_alive(self) -> bool {
        let alive = self.identity().is_alive();
        assert_eq!(is_process_alive(self.pid, self.start, self.pid_ns), alive);
        assert_eq!(!matches!(ProcessWatch::open(&self.identity()), Liveness::Dead), alive);
        alive
    }

    /// As [`Self::is_alive`], with so many free descriptors.
    fn is_alive_with(self, n_free: u64) -> bool {
        let before = getrlimit(Resource::Nofile);
        let lowest = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
        setrlimit(Resource::Nofile, Rlimit { current: Some(lowest + n_free), ..before }).unwrap();
        let (readable, alive) = (start_of(self.pid).is_some(), self.is_alive());
        setrlimit(Resource::Nofile, before).unwrap();
        assert!(!readable || n_free > 0, "the limit holds");
        alive
    }
}

fn running() -> Child {
    Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

fn state_of(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1[..1].to_owned()
}

/// A process that has ended, and that its parent has not waited for.
fn zombie() -> (Child, Recorded) {
    let mut child = running();
    let recorded = Recorded::of(child.id());
    child.kill().unwrap();
    while state_of(child.id()) != "Z" {
        std::thread::yield_now();
    }
    (child, recorded)
}

/// A process of which only the first thread has ended.
fn without_first_thread() -> Pid {
    // SAFETY: M9: the child starts one thread, which sleeps, and ends its first one without running what belongs to
    // its parent.
    let pid = unsafe {
        let pid = libc::fork();
        if pid == 0 {
            std::thread::spawn(|| {
                std::thread::sleep(std::time::Duration::from_secs(60));
                libc::_exit(0);
            });
            libc::syscall(libc::SYS_exit, 0);
        }
        Pid::from_raw(pid).unwrap()
    };
    while state_of(pid.as_raw_nonzero().get().unsigned_abs()) != "Z" {
        std::thread::yield_now();
    }
    pid
}

#[test]
fn a_process_counts_as_alive_or_dead_as_the_table_says() {
    let mut found: BTreeMap<&str, bool> = BTreeMap::new();
    let mut child = running();
    let process = Recorded::of(child.id());
    let Liveness::Alive(watch) = ProcessWatch::open(&process.identity()) else { panic!("it runs") };
    found.insert("running", process.is_alive());
    let other_start = Recorded { start: process.start + 1, ..process };
    found.insert("other_start", other_start.is_alive());
    found.insert("start_unreadable", other_start.is_alive_with(1));
    found.insert("no_descriptor", other_start.is_alive_with(0));
    assert!(!watch.has_ended());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(watch.has_ended());
    found.insert("reaped", process.is_alive());
    found.insert("reaped_unreadable", process.is_alive_with(0));
    found.insert("other_namespace", Recorded { pid_ns: process.pid_ns + 1, ..process }.is_alive());

    let (mut child, process) = zombie();
    found.insert("zombie", process.is_alive());
    found.insert("zombie_unreadable", process.is_alive_with(1));
    child.wait().unwrap();

    let pid = without_first_thread();
    let process = Recorded::of(pid.as_raw_nonzero().get().unsigned_abs());
    found.insert("first_thread_ended", process.is_alive());
    kill_process(pid, Signal::KILL).unwrap();
    waitpid(Some(pid), WaitOptions::empty()).unwrap();
    assert!(!process.is_alive());

    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        tell.send(rustix::thread::gettid()).unwrap();
        ended.recv().unwrap_err();
    });
    let number = told.recv().unwrap().as_raw_nonzero().get().unsigned_abs();
    let start = Recorded::of(number).start.wrapping_sub(1);
    found.insert("number_of_a_thread", Recorded { start, ..Recorded::of(number) }.is_alive());
    drop(end);
    thread.join().unwrap();

    let rows = CASES.lines().filter(|line| !line.starts_with('#'));
    let expected: BTreeMap<&str, bool> = rows
        .map(|row| {
            let mut words = row.split_whitespace();
            (words.next().unwrap(), words.next().unwrap() == "alive")
        })
        .collect();
    assert_eq!(found, expected);
}
