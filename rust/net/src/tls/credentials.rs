//! Key, certificates and CAs of this host, and what both ends demand of each other.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256};
use rustls::crypto::ring::{default_provider, kx_group};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConfig, SignatureScheme,
};
use softs_proto::link::{Rights, SCHEME};
use webpki::EndEntityCert;

use super::error::TlsError;
use super::service::Service;

/// Name in the certificate of each holder of a token, as in `softs_fast.trust.certificates`.
pub const SERVER_NAME: &str = "softs-fast";
/// Bytes that an end sends before both ends change their keys.
pub const KEY_BYTES: u64 = 1 << 36;

/// What this host proves, and which CAs it believes.
#[derive(Clone)]
pub struct Credentials {
    provider: Arc<CryptoProvider>,
    own: Arc<SingleCertAndKey>,
    dialler: Arc<dyn ClientCertVerifier>,
    dialled: Arc<WebPkiServerVerifier>,
    /// What the role in the own certificate allows.
    pub(crate) rights: Rights,
    pub(super) key_bytes: u64,
}

/// Nothing of the key.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("key_bytes", &self.key_bytes).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Takes a key (PKCS#8), the certificates of this host, its own one first, and the CAs of peers, all in DER.
    ///
    /// # Errors
    /// One of them cannot be read, or the certificate is not that of the key.
    pub fn new(key: &[u8], chain: &[Vec<u8>], roots: &[Vec<u8>]) -> Result<Self, TlsError> {
        Self::make(key, chain, roots).map_err(|error| TlsError::Credentials(error.to_string()))
    }

    /// Changes keys after so many bytes instead of [`KEY_BYTES`].
    #[must_use]
    pub fn with_key_bytes(mut self, bytes: u64) -> Self {
        self.key_bytes = bytes;
        self
    }

    fn make(key: &[u8], chain: &[Vec<u8>], roots: &[Vec<u8>]) -> Result<Self, Error> {
        let provider = Arc::new(provider());
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.to_vec()));
        let chain: Vec<_> = chain.iter().map(|one| CertificateDer::from(one.clone())).collect();
        let mut store = RootCertStore::empty();
        for root in roots {
            store.add(CertificateDer::from(root.clone()))?;
        }
        let store = Arc::new(store);

        // A peer that connects learns nothing of the CAs.
        let dialler = WebPkiClientVerifier::builder_with_provider(store.clone(), provider.clone())
            .clear_root_hint_subjects()
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        let dialled = WebPkiServerVerifier::builder_with_provider(store, provider.clone())
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        let rights = chain.first().map_or(Ok(Rights::ALL), |certificate| rights(certificate))?;
        let own = Arc::new(SingleCertAndKey::from(CertifiedKey::from_der(chain, key, &provider)?));
        Ok(Self { provider, own, dialler, dialled, rights, key_bytes: KEY_BYTES })
    }

    /// What an end that dials checks at that time.
    pub(super) fn client(&self, service: Service, now: SystemTime) -> Result<Arc<ClientConfig>, Error> {
        let verifier = Dialled { signed: self.dialled.clone(), service };
        let mut config = ClientConfig::builder_with_details(self.provider.clone(), Arc::new(At::of(now)))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(self.own.clone());
        config.resumption = Resumption::disabled();
        config.alpn_protocols = vec![service.protocol().to_vec()];
        Ok(Arc::new(config))
    }

    /// What an end that accepts checks at that time.
    pub(super) fn server(&self, service: Service, now: SystemTime) -> Result<Arc<ServerConfig>, Error> {
        let verifier = Dialler { signed: self.dialler.clone(), service };
        let mut config = ServerConfig::builder_with_details(self.provider.clone(), Arc::new(At::of(now)))
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(self.own.clone());
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![service.protocol().to_vec()];
        Ok(Arc::new(config))
    }
}

/// The rights that the role in a certificate gives.
pub(super) fn rights(certificate: &CertificateDer<'_>) -> Result<Rights, Error> {
    let parsed = EndEntityCert::try_from(certificate);
    let parsed = parsed.map_err(|_unreadable| Error::InvalidCertificate(CertificateError::BadEncoding))?;
    // What is no text is not among its names.
    let certificate = names_of(certificate).unwrap_or(certificate);
    let named = certificate.windows(SCHEME.len()).filter(|part| part.eq_ignore_ascii_case(SCHEME.as_bytes()));
    Ok(Rights::of_uris(parsed.valid_uri_names(), named.count()))
}

/// The extension of a certificate with its names: DER of an octet string behind the id. `None`: it has no such, or the id
/// stands elsewhere, too, as in a name that was chosen so.
fn names_of(certificate: &[u8]) -> Option<&[u8]> {
    const ID: [u8; 5] = [6, 3, 0x55, 0x1d, 0x11];
    let mut found = (0..certificate.len()).filter(|at| certificate[*at..].starts_with(&ID));
    let (Some(at), None) = (found.next(), found.next()) else { return None };
    let value = &certificate[at + ID.len()..];
    match value.strip_prefix(&[1, 1, 0xff]).unwrap_or(value) {
        [4, 0x81, n, names @ ..] => names.get(..usize::from(*n)),
        [4, 0x82, high, low, names @ ..] => names.get(..usize::from(u16::from_be_bytes([*high, *low]))),
        [4, n @ ..=0x7f, names @ ..] => names.get(..usize::from(*n)),
        _ => None,
    }
}

fn check_role(certificate: &CertificateDer<'_>, service: Service) -> Result<(), Error> {
    let denied = Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);
    if service.admits(rights(certificate)?) { Ok(()) } else { Err(denied) }
}

/// [`SERVER_NAME`] in rustls' form.
///
/// # Errors
/// None: it is a name of DNS.
pub(super) fn server_name() -> Result<ServerName<'static>, Error> {
    ServerName::try_from(SERVER_NAME).map_err(|error| Error::General(error.to_string()))
}

/// That of ring, with two ciphers: AES-128-GCM, and ChaCha20 before it where the processor computes AES by tables.
fn provider() -> CryptoProvider {
    let mut cipher_suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256];
    if !has_aes() {
        cipher_suites.reverse();
    }
    let kx_groups = vec![kx_group::X25519, kx_group::SECP256R1];
    CryptoProvider { cipher_suites, kx_groups, ..default_provider() }
}

#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
fn has_aes() -> bool {
    std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq")
}

#[cfg(target_arch = "aarch64")]
fn has_aes() -> bool {
    std::arch::is_aarch64_feature_detected!("aes") && std::arch::is_aarch64_feature_detected!("pmull")
}

#[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
fn has_aes() -> bool {
    false
}

/// The time of a handshake, which is short.
#[derive(Debug)]
struct At(UnixTime);

impl At {
    fn of(now: SystemTime) -> Self {
        Self(UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap_or_default()))
    }
}

impl TimeProvider for At {
    fn current_time(&self) -> Option<UnixTime> {
        Some(self.0)
    }
}

/// Demands of an end that has dialled what [`Dialled`] demands of the other one.
#[derive(Debug)]
struct Dialler {
    signed: Arc<dyn ClientCertVerifier>,
    service: Service,
}

impl ClientCertVerifier for Dialler {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.signed.verify_client_cert(certificate, intermediates, now)?;
        if !self.service.takes_any_name() {
            verify_server_name(&ParsedCertificate::try_from(certificate)?, &server_name()?)?;
        }
        check_role(certificate, self.service).map(|()| verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

/// Demands of an end that was dialled a certificate of a CA, the name in it, and a role that may use the service.
#[derive(Debug)]
struct Dialled {
    signed: Arc<WebPkiServerVerifier>,
    service: Service,
}

impl ServerCertVerifier for Dialled {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.signed.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // It looks at the name last, when all else is right.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.service.takes_any_name() => {}
            Err(error) => return Err(error),
            Ok(_verified) => {}
        }
        check_role(certificate, self.service).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::names_of;

    #[test]
    fn names_are_those_of_the_extension_whatever_stands_elsewhere() {
        const ID: &[u8] = &[6, 3, 0x55, 0x1d, 0x11];
        let long = [7; 300];
        for (head, names) in [
            (&[4, 3][..], &b"abc"[..]),
            (&[1, 1, 0xff, 4, 3], b"abc"),
            (&[4, 0x81, 200], &long[..200]),
            (&[4, 0x82, 1, 44], &long),
        ] {
            let certificate = [b"softs://cn", ID, head, names, b"softs://later"].concat();
            assert_eq!(names_of(&certificate), Some(names));
        }
        for broken in [&b""[..], &[4, 9, 1], &[4, 0x83, 0, 0, 1, 1], &[5, 1, 1]] {
            assert_eq!(names_of(&[ID, broken].concat()), None);
        }
        assert_eq!(names_of(b"softs://cn"), None);
        assert_eq!(names_of(&[ID, &[4, 0], ID, &[4, 1, 7]].concat()), None, "of a name, to hide the others");
    }
}
