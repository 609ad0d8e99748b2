//! The greeting and the READY command.

use super::error::ZmtpError;
use super::frame::write_command;
use super::role::Role;
use crate::Dialect;

/// Bytes of a greeting.
pub(super) const GREETING_BYTES: usize = 64;

/// The greeting of this end: signature, version 3.1, NULL, not as-server.
pub(super) const GREETING: [u8; GREETING_BYTES] = {
    let mut greeting = [0; GREETING_BYTES];
    (greeting[0], greeting[9]) = (0xff, 0x7f);
    (greeting[10], greeting[11]) = (3, 1);
    (greeting[12], greeting[13], greeting[14], greeting[15]) = (b'N', b'U', b'L', b'L');
    greeting
};

/// Checks as much of a greeting as has come; whether that is all of it.
pub(super) fn check_greeting(bytes: &[u8]) -> Result<bool, ZmtpError> {
    // The eight bytes between the two have no meaning.
    if bytes.first().is_some_and(|first| *first != 0xff) || bytes.get(9).is_some_and(|tenth| *tenth != 0x7f) {
        return Err(ZmtpError::NotZmtp);
    }
    match bytes.get(10) {
        Some(&revision) if revision < 3 => return Err(ZmtpError::OldVersion(revision)),
        _ => {}
    }
    if let Some(mechanism) = bytes.get(12..32)
        && mechanism != &GREETING[12..32]
    {
        let len = mechanism.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        return Err(ZmtpError::Mechanism(mechanism[..len].escape_ascii().to_string()));
    }
    if bytes.get(32).is_some_and(|as_server| *as_server != 0) {
        return Err(ZmtpError::AsServer);
    }
    Ok(bytes.len() >= GREETING_BYTES)
}

/// Whether the peer of a whole greeting knows PING, which ZMTP 3.1 has added.
pub(super) fn knows_ping(greeting: &[u8]) -> bool {
    greeting.get(10..12).is_some_and(|version| version >= &GREETING[10..12])
}

/// Appends the READY command of this end.
pub(super) fn write_ready(out: &mut Vec<u8>, role: Role) {
    write_command(out, "READY", |out| {
        property(out, "Socket-Type", role.socket_type().as_bytes());
        if matches!(role, Role::Router | Role::Dealer) {
            property(out, "Identity", b"");
        }
        property(out, SOFTS_FAST, b"1");
    });
}

/// Reads the properties of a READY command that came to an end of this role: what its peer speaks.
pub(super) fn read_ready(role: Role, mut properties: &[u8]) -> Result<Dialect, ZmtpError> {
    let (mut dialect, mut socket_type) = (Dialect::Softs, None);
    while !properties.is_empty() {
        let (name, value, rest) = split_property(properties).ok_or(ZmtpError::Malformed("READY"))?;
        properties = rest;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            socket_type = Some(value);
        } else if name.eq_ignore_ascii_case(b"Identity") && value.len() > MAX_IDENTITY_BYTES {
            return Err(ZmtpError::Malformed("identity"));
        } else if name.eq_ignore_ascii_case(SOFTS_FAST.as_bytes()) && value == b"1" {
            dialect = Dialect::Native;
        }
    }
    let (need, raw) = role.peers();
    match socket_type {
        Some(have) if have == need.as_bytes() || raw.is_some_and(|raw| have == raw.as_bytes()) => Ok(dialect),
        Some(have) => {
            let have = have[..have.len().min(MAX_SOCKET_TYPE_BYTES)].escape_ascii().to_string();
            Err(ZmtpError::SocketType { need, have })
        }
        None => Err(ZmtpError::SocketType { need, have: "nameless".to_owned() }),
    }
}

/// Tells a softs-fast peer from libzmq, which ignores it.
const SOFTS_FAST: &str = "X-Softs-Fast";
/// RFC 37: an identity has a length of one byte.
const MAX_IDENTITY_BYTES: usize = 255;
/// Bytes of a wrong socket type that an error repeats.
const MAX_SOCKET_TYPE_BYTES: usize = 16;

fn property(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.push(name.len() as u8);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(&(value.len() as u32).to_be_bytes());
    out.extend_from_slice(value);
}

/// Name, value and what follows; `None` if the lengths do not add up.
fn split_property(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (&name_len, rest) = bytes.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(name_len))?;
    let (value_len, rest) = rest.split_first_chunk()?;
    let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*value_len) as usize)?;
    (!name.is_empty()).then_some((name, value, rest))
}
