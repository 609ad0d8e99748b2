//! A broker in a process of its own, so that its memory and its processor time are its own.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::outcome::Outcome;

/// The process; ended when dropped.
pub(crate) struct Child {
    process: std::process::Child,
    pub(crate) endpoints: (String, String),
}

impl Child {
    pub(crate) fn start() -> Outcome<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["--broker", "ipc://*", "ipc://*"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().ok_or("no standard output")?).read_line(&mut line)?;
        let (front, back) = line.trim().split_once(' ').ok_or("the broker did not start")?;
        let endpoints = (front.to_owned(), back.to_owned());
        Ok(Self { process, endpoints })
    }

    /// Memory that it has touched.
    pub(crate) fn rss_bytes(&self) -> Outcome<u64> {
        let status = self.read("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kibibytes << 10)
    }

    /// Processor time of all its threads.
    pub(crate) fn cpu(&self) -> Outcome<Duration> {
        let nanos = self.per_task("schedstat", |text| text.split(' ').next()?.parse().ok())?;
        Ok(Duration::from_nanos(nanos))
    }

    /// How often its threads went to sleep, and so woke up.
    pub(crate) fn switches(&self) -> Outcome<u64> {
        self.per_task("status", |text| {
            text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
        })
    }

    fn per_task(&self, file: &str, number: impl Fn(&str) -> Option<u64>) -> Outcome<u64> {
        let mut sum = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let text = std::fs::read_to_string(task?.path().join(file))?;
            sum += number(&text).ok_or("no such figure")?;
        }
        Ok(sum)
    }

    fn read(&self, file: &str) -> Outcome<String> {
        Ok(std::fs::read_to_string(format!("/proc/{}/{file}", self.process.id()))?)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The end of its standard input stops it. Both fail only when it has ended before.
        drop(self.process.stdin.take());
        let _ended = self.process.wait();
    }
}
