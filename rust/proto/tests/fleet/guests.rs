//! What a program beside the simulation does in it, such as one that runs state machines of another language: it sets
//! timers on hosts, sends messages over their lines, takes samples as students, and starts, cuts and ends hosts.

use crate::model::Time;
use crate::network::Packet;
use crate::world::{Event, Fault, World};

impl World {
    /// Does what a line of the program says; what it is answered, empty if nothing. `None`: the line is malformed.
    pub(crate) fn obey(&mut self, line: &str) -> Option<String> {
        let mut words = line.split(' ');
        let name = words.next()?;
        let numbers: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
        let at = |n: u64| n as usize;
        match (name, &numbers[..]) {
            ("at", &[host, time, tag]) => self.push(time.max(self.now), Event::Guest(at(host), tag)),
            ("send", &[from, to, bytes, tag]) => self.carry(at(from), at(to), Packet::Guest(tag, bytes)),
            ("take", &[rank, n, tag]) => {
                let per_host = self.context.options.students_per_host;
                let host = at(rank) / per_host;
                let student = &mut self.hosts[host].students[at(rank) % per_host];
                student.wanted = (n, tag);
                student.segment.ring();
                self.schedule(host, self.now);
            }
            ("start", &[host]) => {
                let (now, time) = (self.instant(), self.now);
                self.hosts[at(host)].link.targets = self.context.options.targets(at(host));
                self.hosts[at(host)].restart_link(now, time, &mut self.context);
                self.schedule(at(host), time);
            }
            ("drain", &[host]) => {
                let link = &mut self.hosts[at(host)].link;
                link.machine.drain();
                link.dirty.extend(link.connections.keys());
                self.schedule(at(host), self.now);
            }
            ("end", &[host]) => {
                self.hosts[at(host)].link.targets.clear();
                self.strike(Fault::EndLink(at(host)));
            }
            ("freeze", &[from, to, lasts]) => self.strike(Fault::Freeze(at(from)..at(to), lasts)),
            ("cut", &[from, to, lasts]) => {
                let n = self.hosts.len();
                for others in [0..at(from), at(to)..n] {
                    self.strike(Fault::Cut(at(from)..at(to), others.clone(), lasts));
                    self.strike(Fault::Cut(others, at(from)..at(to), lasts));
                }
            }
            // Of each host with teachers, how long all calls of its suppliers take.
            ("busy", &[]) => {
                let teachers = &self.hosts[self.context.options.n_student_hosts()..];
                let busy = |suppliers: &[crate::supplier::SupplierProcess]| -> Time {
                    suppliers.iter().map(|supplier| supplier.busy).sum()
                };
                let all: Vec<_> = teachers.iter().map(|host| busy(&host.suppliers).to_string()).collect();
                return Some(all.join(" "));
            }
            _ => return None,
        }
        Some(String::new())
    }

    /// Messages of two hosts arrive in the order in which they were sent.
    fn carry(&mut self, from: usize, to: usize, packet: Packet) {
        let pair = (from.min(to), from.max(to));
        let network = &mut self.network;
        let key = *self.lines.entry(pair).or_insert_with(|| network.join(pair));
        self.send(self.now, (key, usize::from(to == pair.1)), packet);
    }
}
