//! Ranks in threads: what they send each other arrives, plain and with TLS, and what ends a group ends its calls.

use std::ptr::NonNull;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use softs_proto::mesh::Key;
use softs_shm::ForeignBytes;

use super::{Listening, Mesh, MeshError, Message};
use crate::Endpoint;
use crate::certificates::{OTHER_TOKEN, TOKEN, credentials};
use crate::waited::Waited;

const WATCHDOG: Duration = Duration::from_secs(60);
const NEVER: Duration = Duration::from_secs(3600);

fn listening(token: Option<&str>) -> Listening {
    let credentials = token.map(|token| credentials(&[token]));
    Listening::bind(&"tcp://127.0.0.1:0".parse().unwrap(), credentials, false).unwrap()
}

fn places(ranks: &[Listening]) -> Vec<(Endpoint, Key)> {
    ranks.iter().map(|rank| (rank.endpoint().parse().unwrap(), rank.key())).collect()
}

fn join(
    listening: &Listening,
    rank: usize,
    places: &[(Endpoint, Key)],
    timeout: Duration,
) -> Result<Mesh, MeshError> {
    match listening.join(rank, places, timeout, &mut || false)? {
        Waited::Ready(mesh) => Ok(mesh),
        other => panic!("{:?}", other.ready().is_some()),
    }
}

/// Runs each rank in a thread of its own.
fn with_ranks<T: Send + 'static>(
    tokens: &[Option<&str>],
    timeout: Duration,
    run: impl Fn(usize, Result<Mesh, MeshError>) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let ranks: Vec<Listening> = tokens.iter().map(|token| listening(*token)).collect();
    let (places, run) = (places(&ranks), Arc::new(run));
    let threads: Vec<_> = ranks
        .into_iter()
        .enumerate()
        .map(|(rank, listening)| {
            let (places, run) = (places.clone(), Arc::clone(&run));
            thread::spawn(move || run(rank, join(&listening, rank, &places, timeout)))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn memory(bytes: &mut [u8]) -> ForeignBytes<'static> {
    let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
    // SAFETY: M6: each caller keeps the bytes until the call that uses them has ended.
    unsafe { ForeignBytes::new(NonNull::slice_from_raw_parts(start, bytes.len()), &()) }
}

/// What `rank` sends to `to` in a round: its length depends on all three.
fn message(rank: usize, to: usize, round: usize, most: usize) -> Vec<u8> {
    let len = (rank * 7 + to * 3 + round) * most / 40;
    (0..len).map(|at| (at * (rank + 1) + to * 13 + round) as u8).collect()
}

/// All send to all, in rounds without a barrier, two messages to each.
fn all_to_all(mesh: &Mesh, rank: usize, size: usize, most: usize) {
    for round in 0..4 {
        let others = (0..size).filter(|&other| other != rank);
        let mut sent: Vec<_> = others
            .clone()
            .flat_map(|to| [(to, message(rank, to, round, most)), (to, vec![round as u8; 3])])
            .collect();
        let mut got: Vec<_> = others
            .clone()
            .flat_map(|from| [(from, vec![0; message(from, rank, round, most).len()]), (from, vec![0; 3])])
            .collect();
        let sends: Vec<Message<'_>> = sent.iter_mut().map(|(to, bytes)| (*to, memory(bytes))).collect();
        let receives: Vec<Message<'_>> = got.iter_mut().map(|(from, bytes)| (*from, memory(bytes))).collect();
        mesh.exchange(&sends, &receives, WATCHDOG, &mut || false).unwrap();
        for pair in got.chunks(2) {
            assert_eq!(pair[0].1, message(pair[0].0, rank, round, most), "round {round}");
            assert_eq!(pair[1].1, vec![round as u8; 3]);
        }
    }
}

#[test]
fn what_ranks_send_each_other_arrives_in_order() {
    for token in [None, Some(TOKEN)] {
        for (size, most) in [(1, 10), (2, 100), (4, 40_000), (3, 4 << 20)] {
            with_ranks(&vec![token; size], WATCHDOG, move |rank, mesh| {
                all_to_all(&mesh.unwrap(), rank, size, most);
            });
        }
    }
}

#[test]
fn a_rank_that_ends_ends_calls_that_wait_for_it() {
    for token in [None, Some(TOKEN)] {
        let said = with_ranks(&[token; 3], WATCHDOG, |rank, mesh| {
            let mesh = mesh.unwrap();
            if rank == 2 {
                return (String::new(), Vec::new());
            }
            let mut got = vec![0; 1 << 20];
            let error = mesh.exchange(&[], &[(2, memory(&mut got))], NEVER, &mut || false).unwrap_err();
            let again = mesh.exchange(&[], &[], NEVER, &mut || false).unwrap_err();
            assert_eq!(error, again);
            (error.to_string(), mesh.lost())
        });
        assert_eq!(said[0].0, "rank 2: the connection has ended; its process may have ended");
        assert!(said[0].1.contains(&2));
    }
}

#[test]
fn ranks_that_make_different_calls_are_told_so() {
    let said = with_ranks(&[None; 2], WATCHDOG, |rank, mesh| {
        let mesh = mesh.unwrap();
        let (mut sent, mut got) = (vec![0; 5 + rank], vec![0; 5 + rank]);
        let error = mesh.exchange(
            &[(1 - rank, memory(&mut sent))],
            &[(1 - rank, memory(&mut got))],
            NEVER,
            &mut || false,
        );
        error.unwrap_err().to_string()
    });
    assert!(said.iter().any(|text| text.contains("bytes where")), "{said:?}");
}

#[test]
fn a_call_without_bytes_ends_after_its_time() {
    let barrier = Arc::new(Barrier::new(2));
    let said = with_ranks(&[None; 2], WATCHDOG, move |rank, mesh| {
        let mesh = mesh.unwrap();
        let mut bytes = vec![0; 4];
        let said = (rank == 0).then(|| {
            let receives = [(1, memory(&mut bytes))];
            mesh.exchange(&[], &receives, Duration::from_millis(300), &mut || false).unwrap_err().to_string()
        });
        barrier.wait();
        said
    });
    assert_eq!(said[0].as_deref(), Some("nothing has come from rank 1 for 0.3 s"));
}

#[test]
fn leaving_ends_the_calls_of_all_ranks() {
    let said = with_ranks(&[Some(TOKEN); 2], WATCHDOG, |rank, mesh| {
        let mesh = Arc::new(mesh.unwrap());
        let leaver = (rank == 0).then(|| {
            let mesh = Arc::clone(&mesh);
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(100));
                mesh.shut_down();
            })
        });
        let mut got = vec![0; 4];
        let error = mesh.exchange(&[], &[(1 - rank, memory(&mut got))], NEVER, &mut || false).unwrap_err();
        if let Some(leaver) = leaver {
            leaver.join().unwrap();
        }
        (error.to_string(), mesh.lost())
    });
    assert_eq!(said[0], ("this rank has left the group".to_owned(), vec![]));
    assert_eq!(said[1], ("rank 0: the connection has ended; its process may have ended".to_owned(), vec![0]));
}

#[test]
fn ranks_without_the_token_are_refused_with_the_reason() {
    let said = with_ranks(&[Some(TOKEN), Some(OTHER_TOKEN)], Duration::from_secs(2), |_, mesh| {
        mesh.unwrap_err().to_string()
    });
    assert!(
        said[0].starts_with("rank 1 has not come within 2.0 s; a connection was refused: it does not"),
        "{said:?}"
    );
    assert!(said[1].contains("rank 0 at tcp://127.0.0.1:") && said[1].contains("token"), "{said:?}");

    let said =
        with_ranks(&[Some(TOKEN), None], Duration::from_secs(2), |_, mesh| mesh.unwrap_err().to_string());
    assert!(said[0].contains("it speaks no TLS"), "{said:?}");
    assert!(said[1].contains("it speaks TLS, and this host does not"), "{said:?}");
}

#[test]
fn strangers_keep_no_ranks_from_each_other() {
    use std::io::Write;
    use std::net::TcpStream;

    for token in [None, Some(TOKEN)] {
        let ranks = [listening(token), listening(token)];
        let address = ranks[0].endpoint().trim_start_matches("tcp://").to_owned();
        let silent: Vec<_> = (0..5).map(|_| TcpStream::connect(&address).unwrap()).collect();
        let mut loud = TcpStream::connect(&address).unwrap();
        loud.write_all(&[b'x'; 200]).unwrap();
        // One of another group, which knows the place and not the key.
        let mut places = places(&ranks);
        let own = places.clone();
        places[0].1 = [9; 16];
        let one = listening(token);
        thread::scope(|scope| {
            let stranger = scope.spawn(|| join(&one, 1, &places, Duration::from_secs(1)).map(drop));
            let threads: Vec<_> = ranks
                .iter()
                .enumerate()
                .map(|(number, rank)| {
                    let own = &own;
                    scope.spawn(move || {
                        all_to_all(&join(rank, number, own, WATCHDOG).unwrap(), number, 2, 1000)
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(stranger.join().unwrap().is_err());
        });
        drop(silent);
    }
}

#[test]
fn places_off_this_host_need_credentials_or_a_word() {
    let everywhere: Endpoint = "tcp://0.0.0.0:0".parse().unwrap();
    let error = Listening::bind(&everywhere, None, false).unwrap_err();
    assert!(error.to_string().contains("token file"), "{error}");
    assert!(Listening::bind(&everywhere, None, true).is_ok());
    assert!(Listening::bind(&everywhere, Some(credentials(&[TOKEN])), false).is_ok());
}
