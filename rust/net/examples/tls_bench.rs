//! What encryption costs a link: samples from one core to another over loopback, plain and with TLS in turns.
//!
//! `tls_bench [SENDER_CPU RECEIVER_CPU]` prints one line of JSON. For each size of a sample: samples per second, the share
//! of plain that TLS reaches (medians of the rounds), and seconds of processor time per GB of both ends. Samples of 64
//! bytes are sent 256 at a time.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant, SystemTime};

use rustix::thread::{CpuSet, sched_setaffinity};
use softs_net::tls::{Credentials, Plaintext, RECEIVE_BYTES, Service, Session};

#[path = "../tests/certificates/mod.rs"]
mod certificates;

type Failure = Box<dyn Error + Send + Sync>;

const SIZES: [usize; 4] = [64, 48 << 10, 600 << 10, 4 << 20];
/// Of 64 bytes so many go at once.
const GATHERED: usize = 256;
/// A piece of DATA, as a link cuts samples.
const PIECE_BYTES: usize = 256 << 10;
/// Its header.
const HEADER_BYTES: usize = 22;
const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(250);
const N_HANDSHAKES: usize = 21;

/// Of one round.
#[derive(Clone, Copy, Default)]
struct Measured {
    per_s: f64,
    /// Processor time per GB of the end that sends and the one that receives.
    cpu: [f64; 2],
}

fn main() -> Result<(), Failure> {
    let cpus: Vec<usize> = std::env::args().skip(1).map(|cpu| cpu.parse()).collect::<Result<_, _>>()?;
    let cpus = if let [sender, receiver] = cpus[..] { [sender, receiver] } else { [0, 1] };
    let credentials = certificates::credentials(&[certificates::TOKEN]);
    let handshake_ms = median((0..N_HANDSHAKES).map(|_| handshake(&credentials)).collect::<Result<_, _>>()?);
    let mut lines = Vec::new();
    for size in SIZES {
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push([round(size, None, cpus)?, round(size, Some(&credentials), cpus)?]);
        }
        let of = |pick: &dyn Fn(&[Measured; 2]) -> f64| median(rounds.iter().map(pick).collect());
        let cpu = |way: usize, end: usize| of(&move |pair| pair[way].cpu[end]);
        lines.push(format!(
            "\"{size}\": {{\"plain_per_s\": {:.0}, \"tls_per_s\": {:.0}, \"of_plain\": {:.3}, \"gb_per_s\": [{:.2}, {:.2}], \
             \"plain_cpu_s_per_gb\": [{:.2}, {:.2}], \"tls_cpu_s_per_gb\": [{:.2}, {:.2}]}}",
            of(&|pair| pair[0].per_s),
            of(&|pair| pair[1].per_s),
            of(&|pair| pair[1].per_s / pair[0].per_s),
            of(&|pair| pair[0].per_s * size as f64 / 1e9),
            of(&|pair| pair[1].per_s * size as f64 / 1e9),
            cpu(0, 0),
            cpu(0, 1),
            cpu(1, 0),
            cpu(1, 1),
        ));
    }
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let load = load.split(' ').next().unwrap_or_default();
    writeln!(
        std::io::stdout(),
        "{{\"handshake_ms\": {handshake_ms:.2}, \"load\": {load}, {}}}",
        lines.join(", ")
    )?;
    Ok(())
}

/// Milliseconds until both ends are authenticated, computed one after the other.
fn handshake(credentials: &Credentials) -> Result<f64, Failure> {
    let begun = Instant::now();
    let now = SystemTime::now();
    let mut ends =
        [Session::dial(credentials, Service::Link, now)?, Session::accept(credentials, Service::Link, now)?];
    for turn in 0.. {
        if ends.iter().all(Session::is_ready) {
            break;
        }
        let bytes = ends[turn % 2].output().to_vec();
        ends[turn % 2].advance(bytes.len());
        let to = &mut ends[(turn + 1) % 2];
        to.space()[..bytes.len()].copy_from_slice(&bytes);
        to.received(bytes.len());
        to.read(&mut |_| ())?;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

/// Sends samples for a while, each from its memory into that of the other end.
fn round(size: usize, credentials: Option<&Credentials>, cpus: [usize; 2]) -> Result<Measured, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let sender = move || -> Result<(f64, Duration), Failure> {
        pin(cpus[0])?;
        let mut end = End::new(TcpStream::connect(address)?, credentials, true)?;
        let sample = vec![7_u8; if size == 64 { GATHERED * size } else { size }];
        let header = [1; HEADER_BYTES];
        let (cpu, begun) = (cpu_s()?, Instant::now());
        while begun.elapsed() < ROUND {
            for piece in sample.chunks(PIECE_BYTES) {
                end.write(&[&header, piece])?;
            }
        }
        end.close()?;
        Ok((cpu_s()? - cpu, begun.elapsed()))
    };
    let receiver = move || -> Result<(f64, usize), Failure> {
        pin(cpus[1])?;
        let (socket, _) = listener.accept()?;
        let mut end = End::new(socket, credentials, false)?;
        let mut slot = vec![0_u8; size.max(PIECE_BYTES) + HEADER_BYTES];
        let cpu = cpu_s()?;
        let n = end.read_all(&mut slot)?;
        Ok((cpu_s()? - cpu, n))
    };
    let (sent, received) = std::thread::scope(|scope| {
        let sent = scope.spawn(sender);
        (receiver(), sent.join())
    });
    let (received, sent) = (sent?, received.map_err(|_| "the sender panicked")??);
    let ((receiver_s, n_bytes), (sender_s, elapsed)) = (received, sent);
    let piece = if size == 64 { GATHERED * size } else { size };
    let with_headers = piece + HEADER_BYTES * piece.div_ceil(PIECE_BYTES);
    let n_samples = n_bytes / with_headers * (piece / size);
    let gb = n_bytes as f64 / 1e9;
    Ok(Measured { per_s: n_samples as f64 / elapsed.as_secs_f64(), cpu: [sender_s / gb, receiver_s / gb] })
}

/// One end of a connection.
struct End {
    socket: TcpStream,
    session: Option<Session>,
}

impl End {
    fn new(socket: TcpStream, credentials: Option<&Credentials>, has_dialled: bool) -> Result<Self, Failure> {
        let Some(credentials) = credentials else { return Ok(Self { socket, session: None }) };
        let now = SystemTime::now();
        let session = if has_dialled {
            Session::dial(credentials, Service::Link, now)
        } else {
            Session::accept(credentials, Service::Link, now)
        };
        let (mut session, mut socket) = (session?, socket);
        flush(&mut session, &mut socket)?;
        while !session.is_ready() {
            let n = socket.read(session.space())?;
            session.received(n);
            session.read(&mut |_| ())?;
            flush(&mut session, &mut socket)?;
        }
        Ok(Self { socket, session: Some(session) })
    }

    fn write(&mut self, parts: &[&[u8]; 2]) -> Result<(), Failure> {
        let Some(session) = &mut self.session else {
            let mut slices = parts.map(std::io::IoSlice::new);
            let mut left = &mut slices[..];
            while !left.is_empty() {
                let n = self.socket.write_vectored(left)?;
                std::io::IoSlice::advance_slices(&mut left, n);
            }
            return Ok(());
        };
        session.send(&[&parts[0] as &dyn Plaintext, &parts[1]])?;
        flush(session, &mut self.socket)
    }

    fn close(&mut self) -> Result<(), Failure> {
        if let Some(session) = &mut self.session {
            session.close();
            flush(session, &mut self.socket)?;
        }
        Ok(self.socket.shutdown(std::net::Shutdown::Write)?)
    }

    /// Stores what comes in `slot`, over and over; how many bytes came. Plain bytes go there without a buffer.
    fn read_all(&mut self, slot: &mut [u8]) -> Result<usize, Failure> {
        let (mut total, mut at) = (0, 0);
        loop {
            let Some(session) = &mut self.session else {
                let end = slot.len().min(at + RECEIVE_BYTES);
                match self.socket.read(&mut slot[at..end])? {
                    0 => return Ok(total),
                    n => (total, at) = (total + n, (at + n) % slot.len()),
                }
                continue;
            };
            let n = self.socket.read(session.space())?;
            if n == 0 {
                session.end()?;
                return Ok(total);
            }
            session.received(n);
            session.read(&mut |record| {
                let first = record.len().min(slot.len() - at);
                slot[at..at + first].copy_from_slice(&record[..first]);
                slot[..record.len() - first].copy_from_slice(&record[first..]);
                (total, at) = (total + record.len(), (at + record.len()) % slot.len());
            })?;
        }
    }
}

fn flush(session: &mut Session, socket: &mut TcpStream) -> Result<(), Failure> {
    while !session.output().is_empty() {
        let n = socket.write(session.output())?;
        session.advance(n);
    }
    Ok(())
}

/// Processor time of this thread, as the scheduler counts it.
fn cpu_s() -> Result<f64, Failure> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split(' ').next().unwrap_or_default().parse::<f64>()? / 1e9)
}

fn pin(cpu: usize) -> Result<(), Failure> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    Ok(sched_setaffinity(None, &cpus)?)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
