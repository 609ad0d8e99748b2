//! Which peers are let in, and what each end says of a refusal.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, WantsClientCert};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, ConfigBuilder, DigitallySignedStruct, Error, SignatureScheme};
use softs_net::tls::{Credentials, Service, Session, TlsError, is_tls};

use crate::certificates::{
    Authority, Issued, Minted, NEXT_TOKEN, OTHER_TOKEN, TOKEN, VALID, credentials, derived, hex, mint,
    minted, text,
};
use crate::pipe::{carry, ends, give, give_cut, joined, now, refusals, send, shake_hands, take};

#[test]
fn a_token_gives_the_keys_that_the_page_says() {
    let page = include_str!("../../../../docs/security.md");
    for (name, value) in ["OKM", "d", "fingerprint"].iter().zip(derived(TOKEN)) {
        assert!(page.contains(&format!("| {name} | `{}` |", text(&value))), "{name}");
    }
}

#[test]
fn holders_of_one_token_agree_and_hear_each_other() {
    let [mut dialled, mut accepted] = joined(&credentials(&[TOKEN]), &credentials(&[TOKEN]));
    send(&mut dialled, &[b"how ", b"are you"]).unwrap();
    send(&mut accepted, &[b"well"]).unwrap();
    assert_eq!(carry(&mut dialled, &mut accepted).unwrap(), b"how are you");
    assert_eq!(carry(&mut accepted, &mut dialled).unwrap(), b"well");
}

#[test]
fn nothing_is_sent_before_the_peer_is_authenticated() {
    let mut ends = ends(&credentials(&[TOKEN]), &credentials(&[TOKEN]));
    assert_eq!(ends.each_mut().map(|end| send(end, &[b"early"])), [const { Err(TlsError::NotOpen) }; 2]);
    let [dialled, accepted] = &mut ends;
    carry(dialled, accepted).unwrap();
    assert_eq!(send(accepted, &[b"early"]), Err(TlsError::NotOpen), "its keys are there already");
    shake_hands(&mut ends).unwrap();
    assert!(ends.iter().all(Session::is_ready), "it was an error of the caller alone");
}

#[test]
fn a_holder_of_another_token_is_refused_by_both_ends() {
    let mut ends = ends(&credentials(&[TOKEN]), &credentials(&[OTHER_TOKEN]));
    let [dialled, accepted] = refusals(&mut ends);
    assert_eq!(dialled, Some(TlsError::OtherToken));
    assert_eq!(accepted, Some(TlsError::Refused("UnknownCA".to_owned())));
    assert!(!ends.iter().any(Session::is_ready));
}

#[test]
fn an_end_that_accepts_refuses_another_token_by_itself() {
    // One that dials with a foreign certificate, and trusts the CA of its peer.
    let (foreign, own) = (mint(&[OTHER_TOKEN], VALID), mint(&[TOKEN], VALID));
    let liar = Minted { roots: own.roots.clone(), ..foreign };
    let mut ends = ends(&liar.credentials(), &own.credentials());
    let [dialled, accepted] = refusals(&mut ends);
    assert_eq!(accepted, Some(TlsError::OtherToken));
    assert_eq!(dialled, Some(TlsError::Refused("UnknownCA".to_owned())));
    assert!(!ends[1].is_ready());
}

#[test]
fn a_ca_of_the_right_name_and_another_key_is_refused() {
    let own = mint(&[TOKEN], VALID);
    let forged = minted(&[Authority::of(OTHER_TOKEN).renamed(&Authority::of(TOKEN))], VALID);
    let mut ends = ends(&own.credentials(), &forged.credentials());
    assert_eq!(refusals(&mut ends)[0], Some(TlsError::OtherToken));
}

#[test]
fn a_certificate_of_another_time_is_refused_with_the_clocks_as_the_remedy() {
    let old = Issued { until: "260101000000Z", ..VALID };
    let young = Issued { since: "270101000000Z", ..VALID };
    for issued in [old, young] {
        let stale = mint(&[TOKEN], issued).credentials();
        let [dialled, accepted] = refusals(&mut ends(&credentials(&[TOKEN]), &stale));
        assert_eq!(dialled, Some(TlsError::OtherTime));
        assert!(matches!(accepted, Some(TlsError::Refused(_))));
        let [dialled, accepted] = refusals(&mut ends(&stale, &credentials(&[TOKEN])));
        assert_eq!(accepted, Some(TlsError::OtherTime));
        assert!(matches!(dialled, Some(TlsError::Refused(_))));
    }
    // An hour is no reason.
    let fast = now() + Duration::from_secs(3600);
    let (one, two) = (credentials(&[TOKEN]), credentials(&[TOKEN]));
    let mut ends = [
        Session::dial(&one, Service::Link, now()).unwrap(),
        Session::accept(&two, Service::Link, fast).unwrap(),
    ];
    shake_hands(&mut ends).unwrap();
}

#[test]
fn a_certificate_of_the_ca_for_another_name_is_refused_by_both_ends() {
    let named = mint(&[TOKEN], Issued { name: "another-host", ..VALID }).credentials();
    let [dialled, _] = refusals(&mut ends(&credentials(&[TOKEN]), &named));
    assert!(matches!(dialled, Some(TlsError::Certificate(_))), "{dialled:?}");
    let mut ends = ends(&named, &credentials(&[TOKEN]));
    let [_, accepted] = refusals(&mut ends);
    assert!(matches!(accepted, Some(TlsError::Certificate(_))), "{accepted:?}");
    assert!(!ends[1].is_ready());
}

#[test]
fn ranks_of_a_group_may_have_names_of_their_own_and_need_the_ca() {
    let named = |token| mint(&[token], Issued { name: "another-host", ..VALID }).credentials();
    let mesh = |dialled: &Credentials, accepted: &Credentials| {
        [
            Session::dial(dialled, Service::Mesh, now()).unwrap(),
            Session::accept(accepted, Service::Mesh, now()).unwrap(),
        ]
    };
    let (own, other) = (named(TOKEN), named(OTHER_TOKEN));
    for ends in [(&own, &own), (&own, &credentials(&[TOKEN])), (&credentials(&[TOKEN]), &own)] {
        shake_hands(&mut mesh(ends.0, ends.1)).unwrap();
    }
    assert_eq!(refusals(&mut mesh(&own, &other))[0], Some(TlsError::OtherToken));
    let accepted =
        meet(stranger(Some(mint(&[OTHER_TOKEN], VALID)), b"softs-mesh/1"), &mut mesh(&own, &own)[1]);
    assert_eq!(accepted, Some(TlsError::OtherToken));
}

#[test]
fn a_certificate_serves_where_its_role_may() {
    let of = |role| mint(&[TOKEN], Issued { role, ..VALID }).credentials();
    let any = credentials(&[TOKEN]);
    for (role, services) in [
        ("admin/anna", &[Service::Link, Service::Flow, Service::Rows, Service::Mesh, Service::Store][..]),
        ("student/a", &[Service::Link]),
        ("teacher/a", &[Service::Link]),
        ("rank/0", &[Service::Mesh, Service::Store]),
        ("watch/a", &[]),
    ] {
        for service in [Service::Link, Service::Flow, Service::Rows, Service::Mesh, Service::Store] {
            let own = of(role);
            for (at, (dialled, accepted)) in [(&own, &any), (&any, &own)].into_iter().enumerate() {
                let mut ends = [
                    Session::dial(dialled, service, now()).unwrap(),
                    Session::accept(accepted, service, now()).unwrap(),
                ];
                let refusals = refusals(&mut ends);
                let (refuses, refused) = (&refusals[1 - at], &refusals[at]);
                if services.contains(&service) {
                    assert_eq!((refuses, refused), (&None, &None), "{role} {service:?}");
                } else {
                    assert_eq!(refuses, &Some(TlsError::Role), "{role} {service:?}");
                    assert_eq!(refused, &Some(TlsError::Refused("AccessDenied".to_owned())));
                }
            }
        }
    }
    let ends = joined(&of("teacher/a"), &any);
    let rights = ends.each_ref().map(|end| end.rights());
    assert_eq!(rights.map(|rights| (rights.orders, rights.serves)), [(true, true), (false, true)]);
}

#[test]
fn a_host_with_two_tokens_meets_those_that_have_either() {
    let both = credentials(&[NEXT_TOKEN, TOKEN]);
    for one in [credentials(&[TOKEN]), credentials(&[NEXT_TOKEN]), credentials(&[NEXT_TOKEN, TOKEN])] {
        joined(&both, &one);
        joined(&one, &both);
    }
    let [dialled, _] = refusals(&mut ends(&credentials(&[TOKEN]), &credentials(&[NEXT_TOKEN])));
    assert_eq!(dialled, Some(TlsError::OtherToken), "no host has deleted the old one yet");
    let [dialled, _] = refusals(&mut ends(&credentials(&[OTHER_TOKEN]), &both));
    assert_eq!(dialled, Some(TlsError::OtherToken));
}

#[test]
fn a_peer_without_a_certificate_is_refused() {
    let mut accepted = Session::accept(&credentials(&[TOKEN]), Service::Link, now()).unwrap();
    let error = meet(stranger(None, b"softs-link/1"), &mut accepted);
    assert_eq!(error, Some(TlsError::NoCertificate));
    assert!(!accepted.is_ready());
}

#[test]
fn a_connection_for_one_service_is_refused_by_another_one() {
    let one = credentials(&[TOKEN]);
    for (dialled, accepted) in
        [(Service::Link, Service::Flow), (Service::Flow, Service::Rows), (Service::Rows, Service::Flow)]
    {
        let mut ends =
            [Session::dial(&one, dialled, now()).unwrap(), Session::accept(&one, accepted, now()).unwrap()];
        assert_eq!(refusals(&mut ends), [const { Some(TlsError::OtherService) }; 2]);
    }
}

#[test]
fn an_end_of_another_service_is_refused_whatever_its_certificate() {
    for protocol in [&b""[..], b"h2"] {
        let mut accepted = Session::accept(&credentials(&[TOKEN]), Service::Link, now()).unwrap();
        let error = meet(stranger(Some(mint(&[TOKEN], VALID)), protocol), &mut accepted);
        assert_eq!(error, Some(TlsError::OtherService), "{protocol:?}");
        assert!(!accepted.is_ready());
    }
}

#[test]
fn a_peer_is_not_told_which_cas_are_believed() {
    let mut accepted = Session::accept(&credentials(&[TOKEN]), Service::Link, now()).unwrap();
    let curious = Arc::new(Curious::default());
    let mut config = believing().with_client_cert_resolver(curious.clone());
    config.alpn_protocols = vec![b"softs-link/1".to_vec()];
    let name = ServerName::try_from("softs-fast").unwrap();
    meet(ClientConnection::new(Arc::new(config), name).unwrap(), &mut accepted);
    assert_eq!(*curious.0.lock().unwrap(), Some(0));
}

#[test]
fn plain_bytes_at_an_end_with_tls_and_the_reverse_name_the_remedy() {
    let hello = [42, 0, 0, 0, 1, b'S', b'O', b'F', b'T', b'L', b'I', b'N', b'K'];
    for mut end in ends(&credentials(&[TOKEN]), &credentials(&[TOKEN])) {
        let before = take(&mut end);
        assert_eq!(give(&mut end, &hello), Err(TlsError::Plain));
        assert!(is_tls(end.output()), "a plain peer knows by an alert what it has met");
        assert_eq!(is_tls(&before), !before.is_empty());
    }
    assert!(!is_tls(&hello));
    let told = TlsError::Encrypted.to_string();
    assert!(told.contains("this host does not") && told.contains("token file"), "{told}");
}

#[test]
fn an_older_protocol_is_refused_by_both_ends() {
    let mut accepted = Session::accept(&credentials(&[TOKEN]), Service::Link, now()).unwrap();
    // TLS 1.2: a random number, one cipher, no compression, the groups and signatures that it has.
    let random = "00".repeat(32);
    let extensions = "000a00040002001d000d00040002040300170000";
    let body = format!("0303{random}000002c02b01000014{extensions}");
    let error = give(&mut accepted, &handshake(1, &body)).unwrap_err();
    assert!(matches!(error, TlsError::Older(_)), "{error:?}");
    assert_eq!(take(&mut accepted)[5..], [2, 70], "protocol_version, and nothing else");

    let mut dialled = Session::dial(&credentials(&[TOKEN]), Service::Link, now()).unwrap();
    let error = give(&mut dialled, &handshake(2, &format!("0303{random}00c02b00"))).unwrap_err();
    assert!(matches!(error, TlsError::Older(_)), "{error:?}");
    let mut dialled = Session::dial(&credentials(&[TOKEN]), Service::Link, now()).unwrap();
    let error = give(&mut dialled, &hex("15030100020246")).unwrap_err();
    assert_eq!(error, TlsError::Older("ProtocolVersion".to_owned()));
}

#[test]
fn credentials_that_do_not_fit_are_refused() {
    let (one, two) = (mint(&[TOKEN], VALID), mint(&[TOKEN], VALID));
    let no_chain: [Vec<u8>; 0] = [];
    for found in [
        Credentials::new(&one.key, &two.chain, &one.roots),
        Credentials::new(&one.key[1..], &one.chain, &one.roots),
        Credentials::new(&one.key, &[vec![0; 40]], &one.roots),
        Credentials::new(&one.key, &no_chain, &one.roots),
        Credentials::new(&one.key, &one.chain, &[vec![0; 40]]),
        Credentials::new(&one.key, &one.chain, &[]),
    ] {
        let error = found.unwrap_err();
        assert!(matches!(error, TlsError::Credentials(_)), "{error:?}");
    }
    assert_eq!(format!("{:?}", one.credentials()), "Credentials { key_bytes: 68719476736, .. }");
}

#[test]
fn each_text_is_one_line_with_a_remedy() {
    let why = "why".to_owned();
    for error in [
        TlsError::Credentials(why.clone()),
        TlsError::Plain,
        TlsError::Encrypted,
        TlsError::Older(why.clone()),
        TlsError::OtherService,
        TlsError::OtherToken,
        TlsError::NoCertificate,
        TlsError::OtherTime,
        TlsError::Certificate(why.clone()),
        TlsError::Refused(why.clone()),
        TlsError::TooLong(1),
        TlsError::TooSlow,
        TlsError::Unfinished,
        TlsError::Changed,
        TlsError::Protocol(why),
    ] {
        let text = error.to_string();
        assert!(text.contains("; ") && !text.contains('\n'), "{text}");
    }
}

/// A record with one message of a handshake.
fn handshake(kind: u8, body: &str) -> Vec<u8> {
    let body = hex(body);
    let n = body.len() as u8;
    [&[22, 3, 1, 0, n + 4, kind, 0, 0, n], &body[..]].concat()
}

/// The error of an end that accepts a client of rustls' own.
fn meet(mut client: ClientConnection, accepted: &mut Session) -> Option<TlsError> {
    for _ in 0..3 {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        let mut arrived = Vec::new();
        let taken = give_cut(accepted, &bytes, &mut std::iter::repeat(usize::MAX), &mut arrived);
        assert!(arrived.is_empty(), "nothing of it is delivered");
        if let Err(error) = taken {
            return Some(error);
        }
        let answer = take(accepted);
        let mut answer = &answer[..];
        while !answer.is_empty() {
            client.read_tls(&mut answer).unwrap();
            let _refused = client.process_new_packets();
        }
        let _ended = client.reader().read(&mut [0; 16]);
        let _written = client.writer().write(b"data");
    }
    None
}

/// A client that believes everything.
fn stranger(shown: Option<Minted>, protocol: &[u8]) -> ClientConnection {
    let builder = believing();
    let mut config = match shown {
        None => builder.with_no_client_auth(),
        Some(Minted { key, chain, .. }) => {
            let chain = chain.into_iter().map(CertificateDer::from).collect();
            builder.with_client_auth_cert(chain, PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key))).unwrap()
        }
    };
    config.alpn_protocols = [protocol].iter().filter(|one| !one.is_empty()).map(|one| one.to_vec()).collect();
    ClientConnection::new(Arc::new(config), ServerName::try_from("softs-fast").unwrap()).unwrap()
}

fn believing() -> ConfigBuilder<ClientConfig, WantsClientCert> {
    ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Credulous))
}

/// Notes how many CAs it is told of.
#[derive(Debug, Default)]
struct Curious(Mutex<Option<usize>>);

impl ResolvesClientCert for Curious {
    fn resolve(&self, cas: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        *self.0.lock().unwrap() = Some(cas.len());
        None
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct Credulous;

impl ServerCertVerifier for Credulous {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}
