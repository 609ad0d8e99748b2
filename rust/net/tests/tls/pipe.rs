//! Two ends and what is between them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use softs_net::tls::{Credentials, Plaintext, Service, Session, TlsError};

/// 28 November 2026: no test reads a clock.
pub(crate) fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_795_824_000)
}

/// The end that has dialled, and the one that has accepted.
pub(crate) fn ends(dialled: &Credentials, accepted: &Credentials) -> [Session; 2] {
    [
        Session::dial(dialled, Service::Link, now()).unwrap(),
        Session::accept(accepted, Service::Link, now()).unwrap(),
    ]
}

/// Both authenticated.
pub(crate) fn joined(dialled: &Credentials, accepted: &Credentials) -> [Session; 2] {
    let mut ends = ends(dialled, accepted);
    shake_hands(&mut ends).unwrap();
    assert!(ends.iter().all(Session::is_ready));
    ends
}

/// Moves bytes until no end has any; the first error.
pub(crate) fn shake_hands(ends: &mut [Session; 2]) -> Result<(), TlsError> {
    let [dialled, accepted] = ends;
    while !dialled.output().is_empty() || !accepted.output().is_empty() {
        carry(dialled, accepted)?;
        carry(accepted, dialled)?;
    }
    Ok(())
}

/// Carries what one end has written to the other one; its plaintext.
pub(crate) fn carry(from: &mut Session, to: &mut Session) -> Result<Vec<u8>, TlsError> {
    let bytes = take(from);
    give(to, &bytes)
}

/// Sends slices.
pub(crate) fn send(from: &mut Session, parts: &[&[u8]]) -> Result<(), TlsError> {
    from.send(&parts.iter().map(|part| part as &dyn Plaintext).collect::<Vec<_>>())
}

/// What an end has written.
pub(crate) fn take(from: &mut Session) -> Vec<u8> {
    let bytes = from.output().to_vec();
    from.advance(bytes.len());
    bytes
}

/// Gives bytes to an end; its plaintext.
pub(crate) fn give(to: &mut Session, bytes: &[u8]) -> Result<Vec<u8>, TlsError> {
    let mut plaintext = Vec::new();
    give_cut(to, bytes, &mut std::iter::repeat(usize::MAX), &mut plaintext)?;
    Ok(plaintext)
}

/// Gives bytes to an end in pieces of these sizes, and adds its plaintext to `plaintext`.
pub(crate) fn give_cut(
    to: &mut Session,
    bytes: &[u8],
    sizes: &mut dyn Iterator<Item = usize>,
    plaintext: &mut Vec<u8>,
) -> Result<(), TlsError> {
    give_records(to, bytes, sizes, &mut |record| plaintext.extend_from_slice(record))
}

/// The same, with each record by itself.
pub(crate) fn give_records(
    to: &mut Session,
    mut bytes: &[u8],
    sizes: &mut dyn Iterator<Item = usize>,
    deliver: &mut dyn FnMut(&[u8]),
) -> Result<(), TlsError> {
    while !bytes.is_empty() {
        let space = to.space();
        assert!(!space.is_empty(), "there is room for what comes next");
        let n = bytes.len().min(space.len()).min(sizes.next().unwrap());
        space[..n].copy_from_slice(&bytes[..n]);
        to.received(n);
        bytes = &bytes[n..];
        to.read(deliver)?;
    }
    Ok(())
}

/// The error of both ends when they meet: of the one that has dialled, and of the one that has accepted.
pub(crate) fn refusals(ends: &mut [Session; 2]) -> [Option<TlsError>; 2] {
    let [dialled, accepted] = ends;
    let mut found = [None, None];
    for _ in 0..4 {
        found[1] = carry(dialled, accepted).err().or(found[1].take());
        found[0] = carry(accepted, dialled).err().or(found[0].take());
    }
    found
}
