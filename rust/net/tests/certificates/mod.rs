//! Certificates of a token as `docs/security.md` derives them, made anew for each test: no key is in a file.
#![allow(dead_code, reason = "tests and the bench use their own parts of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use hmac::{Hmac, KeyInit, Mac};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use sha2::{Digest, Sha256};
use softs_net::tls::{Credentials, SERVER_NAME};

/// That of the table in `docs/security.md`.
pub(crate) const TOKEN: &str = "0123456789abcdef0123456789abcdef";
pub(crate) const OTHER_TOKEN: &str = "another-token-of-32-characters-.";
pub(crate) const NEXT_TOKEN: &str = "the-next-token-of-32-characters-";
/// The public keys of their CAs. They are computed there from the private ones; ring checks that they fit.
const PUBLIC_KEYS: [(&str, &str); 3] = [
    (
        TOKEN,
        "04ee51ef3c822ee24fc7f239b125cc42fa45cd318eab64ac893ef877637deb310c\
         3dd0e8382733927b3711ed0d37e82b18ed52430c94e731e1f88d8767e6ad9716",
    ),
    (
        OTHER_TOKEN,
        "04cc27747aa38fe81c87698c29892db80352960028e594203fa9d0dddd8c735dc9\
         df46bcee15ec3d805218c9d143429776770797fa9b0ca621f18c0a2b632a9e5a",
    ),
    (
        NEXT_TOKEN,
        "047651f3640fe181b556ca88af6225e5bbbf489f9fd8180a490f6005b54126df41\
         52813596d3594ce48e7c623c191b01a597eca247d455de9b295906b34de80bbc",
    ),
];
/// Order of P-256, less one; the first limb is the lowest.
const ORDER_LESS_1: [u64; 4] =
    [0xf3b9_cac2_fc63_2550, 0xbce6_faad_a717_9e84, 0xffff_ffff_ffff_ffff, 0xffff_ffff_0000_0000];
const SPKI: &str = "3059301306072a8648ce3d020106082a8648ce3d030107034200";

const SEQUENCE: u8 = 0x30;
const OBJECT: u8 = 6;
const OCTETS: u8 = 4;
const BITS: u8 = 3;

/// How a certificate of a process differs from others.
#[derive(Clone, Copy)]
pub(crate) struct Issued {
    pub(crate) since: &'static str,
    pub(crate) until: &'static str,
    pub(crate) name: &'static str,
    pub(crate) role: &'static str,
}

/// Ten years, as those of `softs_fast.trust.certificates`.
pub(crate) const VALID: Issued =
    Issued { since: "250101000000Z", until: "350101000000Z", name: SERVER_NAME, role: "holder" };

/// The CA of a token.
pub(crate) struct Authority {
    key: EcdsaKeyPair,
    name: String,
}

impl Authority {
    pub(crate) fn of(token: &str) -> Self {
        let public = hex(PUBLIC_KEYS.iter().find(|(known, _)| *known == token).unwrap().1);
        let [_, private, _] = derived(token);
        let key = EcdsaKeyPair::from_private_key_and_public_key(
            &ECDSA_P256_SHA256_ASN1_SIGNING,
            &private,
            &public,
            &SystemRandom::new(),
        );
        Self { key: key.unwrap(), name: format!("softs-fast job {}", &text(&fingerprint(&public))[..32]) }
    }

    /// The certificate by which a peer that trusts this CA trusts another one too, or this one itself.
    pub(crate) fn certify(&self, other: &Self) -> Vec<u8> {
        let extensions = [
            extension(0x13, true, &der(SEQUENCE, &[&[1, 1, 0xff]])),
            extension(0x0f, true, &[BITS, 2, 2, 4]),
        ];
        let times = [der(0x17, &[b"000101000000Z"]), der(0x18, &[b"99991231235959Z"])];
        self.signed(&other.name, other.key.public_key().as_ref(), &times, &extensions)
    }

    /// The certificate of a process.
    pub(crate) fn issue(&self, public: &[u8], issued: Issued) -> Vec<u8> {
        let uri = format!("softs://{}/{}", &self.name[15..], issued.role);
        let names = der(SEQUENCE, &[&der(0x82, &[issued.name.as_bytes()]), &der(0x86, &[uri.as_bytes()])]);
        let usages = [1, 2].map(|usage| der(OBJECT, &[&[0x2b, 6, 1, 5, 5, 7, 3, usage]]));
        let extensions = [
            extension(0x11, false, &names),
            extension(0x13, true, &der(SEQUENCE, &[])),
            extension(0x25, false, &der(SEQUENCE, &[&usages.concat()])),
            extension(0x0f, true, &[BITS, 2, 7, 0x80]),
        ];
        let times = [issued.since, issued.until].map(|time| der(0x17, &[time.as_bytes()]));
        self.signed("softs-fast", public, &times, &extensions)
    }

    /// This key with the name of another CA.
    pub(crate) fn renamed(self, other: &Self) -> Self {
        Self { name: other.name.clone(), ..self }
    }

    fn signed(&self, subject: &str, public: &[u8], times: &[Vec<u8>; 2], extensions: &[Vec<u8>]) -> Vec<u8> {
        let algorithm = der(SEQUENCE, &[&der(OBJECT, &[&hex("2a8648ce3d040302")])]);
        let content = der(
            SEQUENCE,
            &[
                &[0xa0, 3, 2, 1, 2],
                &[2, 1, 1],
                &algorithm,
                &distinguished(&self.name),
                &der(SEQUENCE, &[&times.concat()]),
                &distinguished(subject),
                &[hex(SPKI), public.to_vec()].concat(),
                &der(0xa3, &[&der(SEQUENCE, &[&extensions.concat()])]),
            ],
        );
        let signature = self.key.sign(&SystemRandom::new(), &content).unwrap();
        der(SEQUENCE, &[&content, &algorithm, &der(BITS, &[&[0], signature.as_ref()])])
    }
}

/// Key, chain and CAs, in DER.
pub(crate) struct Minted {
    pub(crate) key: Vec<u8>,
    pub(crate) chain: Vec<Vec<u8>>,
    pub(crate) roots: Vec<Vec<u8>>,
}

impl Minted {
    pub(crate) fn credentials(&self) -> Credentials {
        Credentials::new(&self.key, &self.chain, &self.roots).unwrap()
    }
}

/// What a process with these tokens has; the first one signs.
pub(crate) fn mint(tokens: &[&str], issued: Issued) -> Minted {
    minted(&tokens.iter().map(|token| Authority::of(token)).collect::<Vec<_>>(), issued)
}

/// What a process with the tokens of these CAs has.
pub(crate) fn minted(authorities: &[Authority], issued: Issued) -> Minted {
    let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new()).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, key.as_ref(), &SystemRandom::new());
    let first = &authorities[0];
    let certified = authorities[1..].iter().map(|other| other.certify(first));
    Minted {
        key: key.as_ref().to_vec(),
        chain: [first.issue(pair.unwrap().public_key().as_ref(), issued)]
            .into_iter()
            .chain(certified)
            .collect(),
        roots: authorities.iter().map(|one| one.certify(one)).collect(),
    }
}

pub(crate) fn credentials(tokens: &[&str]) -> Credentials {
    mint(tokens, VALID).credentials()
}

/// OKM, the private key of the CA, and its fingerprint.
pub(crate) fn derived(token: &str) -> [Vec<u8>; 3] {
    let extracted = hmac(b"softs-fast", &[token.as_bytes()]);
    let info = b"job token v1: P-256 key of the CA";
    let first = hmac(&extracted, &[info, &[1]]);
    let second = hmac(&extracted, &[&first, info, &[2]]);
    let okm = [&first[..], &second[..16]].concat();
    let public = PUBLIC_KEYS.iter().find(|(known, _)| *known == token);
    let printed = public.map_or_else(Vec::new, |(_, public)| fingerprint(&hex(public)));
    [okm.clone(), private_key(&okm), printed]
}

/// The remainder of a number of 48 bytes, and 1.
fn private_key(okm: &[u8]) -> Vec<u8> {
    let mut rest = [0_u64; 4];
    for bit in okm.iter().flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1)) {
        let carry = rest[3] >> 63;
        for at in (0..4).rev() {
            rest[at] = rest[at] << 1 | if at == 0 { u64::from(bit) } else { rest[at - 1] >> 63 };
        }
        if carry == 1 || rest.iter().rev().ge(ORDER_LESS_1.iter().rev()) {
            let mut borrow = false;
            for (limb, less) in rest.iter_mut().zip(ORDER_LESS_1) {
                let (once, first) = limb.overflowing_sub(less);
                let (twice, second) = once.overflowing_sub(u64::from(borrow));
                (*limb, borrow) = (twice, first || second);
            }
        }
    }
    // One more never carries out of the lowest limb, but once in 2^64 tokens.
    rest[0] += 1;
    rest.iter().rev().flat_map(|limb| limb.to_be_bytes()).collect()
}

fn fingerprint(public: &[u8]) -> Vec<u8> {
    Sha256::digest([&hex(SPKI), public].concat()).to_vec()
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().to_vec()
}

fn distinguished(name: &str) -> Vec<u8> {
    let common = der(SEQUENCE, &[&[OBJECT, 3, 0x55, 4, 3], &der(0x0c, &[name.as_bytes()])]);
    der(SEQUENCE, &[&der(0x31, &[&common])])
}

fn extension(id: u8, is_critical: bool, value: &[u8]) -> Vec<u8> {
    let critical: &[u8] = if is_critical { &[1, 1, 0xff] } else { &[] };
    der(SEQUENCE, &[&[OBJECT, 3, 0x55, 0x1d, id], critical, &der(OCTETS, &[value])])
}

fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = match content.len() {
        n @ 0..128 => vec![n as u8],
        n @ 128..256 => vec![0x81, n as u8],
        n => vec![0x82, (n >> 8) as u8, n as u8],
    };
    [vec![tag], length, content].concat()
}

pub(crate) fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
