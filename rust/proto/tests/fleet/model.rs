//! What a simulated fleet is made of: time, chance, sizes, costs, and the mistakes that its checks must find.

/// Nanoseconds since the start.
pub(crate) type Time = u64;
pub(crate) const US: Time = 1_000;
pub(crate) const MS: Time = 1_000_000;
pub(crate) const SECOND: Time = 1_000_000_000;

/// Chance, the same for the same seed.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// From half of a value to one and a half.
    pub(crate) fn about(&mut self, value: u64) -> u64 {
        value / 2 + self.below(value + 1)
    }

    pub(crate) fn one_of<const N: usize>(&mut self, values: [u64; N]) -> u64 {
        values[self.below(N as u64) as usize]
    }
}

/// A mistake of the harness, which stands for one of a driver or a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Two suppliers get one order.
    DoubleLease,
    /// An order that another host gives back is not placed again.
    LostCredit,
    /// A worker goes on with the model before.
    StaleSwitch,
}

impl Bug {
    pub(crate) const ALL: [(&'static str, Self); 3] = [
        ("double-lease", Self::DoubleLease),
        ("lost-credit", Self::LostCredit),
        ("stale-switch", Self::StaleSwitch),
    ];
}

/// What a link needs: with TLS, on one core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    /// From the start of a host's processes until its link dials.
    pub(crate) start: Time,
    /// One turn: waiting for sockets, looking at lanes.
    pub(crate) turn: Time,
    /// Each session that a turn looks at, with its bridge (`fleet_sim costs` measures it).
    pub(crate) session: Time,
    /// Each read or write of a socket.
    pub(crate) call: Time,
    /// Each 1,000 bytes, encrypted or decrypted and copied.
    pub(crate) kilobyte: Time,
    /// Each end of a handshake.
    pub(crate) handshake: Time,
}

impl Default for Costs {
    fn default() -> Self {
        Self { start: 80 * MS, turn: 5 * US, session: 800, call: 3 * US, kilobyte: US, handshake: MS }
    }
}

/// Hosts, processes and the network between them.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    pub(crate) n_hosts: usize,
    pub(crate) n_suppliers: usize,
    pub(crate) n_students: usize,
    pub(crate) students_per_host: usize,
    /// Suppliers on each host with students.
    pub(crate) n_local: usize,
    pub(crate) hosts_per_rack: usize,
    /// With so many of the hosts with students, at most, a host with teachers is joined.
    pub(crate) n_joined: usize,
    /// Slots of a student.
    pub(crate) n_slots: u32,
    pub(crate) sample_bytes: u64,
    /// Students take samples in the order of their numbers.
    pub(crate) ordered: bool,
    /// Mean time of a supplier's call for one sample.
    pub(crate) call: Time,
    /// One call in so many fails.
    pub(crate) failures: Option<u64>,
    /// Whether suppliers run the model that the first student has set.
    pub(crate) models: bool,
    /// Mean time until a worker has loaded a model.
    pub(crate) load: Time,
    /// Hosts with teachers start within this time,
    pub(crate) start: Time,
    /// and at most so many of them: a program beside the simulation starts others.
    pub(crate) n_started: usize,
    /// Such a program says how many samples students take.
    pub(crate) guided: bool,
    /// One way between racks; a fifth of it within one.
    pub(crate) delay: Time,
    /// Bytes per second, of each host and direction.
    pub(crate) rate: u64,
    /// One packet in so many is lost, and sent again after `max(200 ms, round trip)`.
    pub(crate) losses: Option<u64>,
    pub(crate) costs: Costs,
    pub(crate) bug: Option<Bug>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            n_hosts: 1000,
            n_suppliers: 8000,
            n_students: 8,
            students_per_host: 8,
            n_local: 0,
            hosts_per_rack: 20,
            n_joined: usize::MAX,
            n_slots: 256,
            sample_bytes: 48_000,
            ordered: true,
            call: 200 * MS,
            failures: None,
            models: false,
            load: SECOND,
            start: SECOND,
            n_started: usize::MAX,
            guided: false,
            delay: 100 * US,
            rate: 3_125_000_000,
            losses: None,
            costs: Costs::default(),
            bug: None,
        }
    }
}

impl Options {
    /// Hosts with students, which are the first ones.
    pub(crate) fn n_student_hosts(&self) -> usize {
        self.n_students.div_ceil(self.students_per_host)
    }

    /// The hosts that a host with teachers dials.
    pub(crate) fn targets(&self, host: usize) -> Vec<usize> {
        let n = self.n_student_hosts();
        (0..n.min(self.n_joined)).map(|at| (host + at) % n).collect()
    }

    /// Suppliers of a host.
    pub(crate) fn n_suppliers_of(&self, host: usize) -> usize {
        let n = self.n_student_hosts();
        let Some(at) = host.checked_sub(n) else { return self.n_local };
        let n_teachers = self.n_hosts - n;
        (self.n_suppliers * (at + 1)) / n_teachers - (self.n_suppliers * at) / n_teachers
    }
}
