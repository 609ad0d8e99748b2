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
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConfig, SignatureScheme,
};

use super::error::TlsError;
use super::service::Service;

/// Name in the certificate of each holder of a token, as in `softs_fast.trust.certificates`.
pub const SERVER_NAME: &str = "softs-fast";
/// Bytes that an end sends before both ends change their keys.
pub const KEY_BYTES: u64 = 1 << 36;

/// What this host proves, and which CAs it believes.
#[derive(Clone)]
pub struct Credentials {
    /// Of services of which each certificate has the name of a holder.
    holders: Ends,
    /// Of [`Service::Mesh`], where ranks may have certificates with names of their own, and a key besides.
    any_name: Ends,
    pub(super) key_bytes: u64,
}

/// What an end demands that dials, and one that accepts.
#[derive(Clone)]
struct Ends {
    client: ClientConfig,
    server: ServerConfig,
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
        let signed = WebPkiClientVerifier::builder_with_provider(store.clone(), provider.clone())
            .clear_root_hint_subjects()
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        let signed_server = WebPkiServerVerifier::builder_with_provider(store, provider.clone())
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        let ends = |any_name: bool| -> Result<Ends, Error> {
            let mut server = ServerConfig::builder_with_provider(provider.clone())
                .with_protocol_versions(&[&TLS13])?
                .with_client_cert_verifier(Arc::new(Dialler { signed: signed.clone(), any_name }))
                .with_single_cert(chain.clone(), key.clone_key())?;
            server.session_storage = Arc::new(NoServerSessionStorage {});
            server.send_tls13_tickets = 0;
            let mut client = ClientConfig::builder_with_provider(provider.clone())
                .with_protocol_versions(&[&TLS13])?
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Dialled {
                    signed: signed_server.clone(),
                    any_name,
                }))
                .with_client_auth_cert(chain.clone(), key.clone_key())?;
            client.resumption = Resumption::disabled();
            Ok(Ends { client, server })
        };
        Ok(Self { holders: ends(false)?, any_name: ends(true)?, key_bytes: KEY_BYTES })
    }

    fn ends(&self, service: Service) -> &Ends {
        if service == Service::Mesh { &self.any_name } else { &self.holders }
    }

    /// What an end that dials checks at that time.
    pub(super) fn client(&self, service: Service, now: SystemTime) -> Arc<ClientConfig> {
        let mut config = self.ends(service).client.clone();
        config.alpn_protocols = vec![service.protocol().to_vec()];
        config.time_provider = Arc::new(At::of(now));
        Arc::new(config)
    }

    /// What an end that accepts checks at that time.
    pub(super) fn server(&self, service: Service, now: SystemTime) -> Arc<ServerConfig> {
        let mut config = self.ends(service).server.clone();
        config.alpn_protocols = vec![service.protocol().to_vec()];
        config.time_provider = Arc::new(At::of(now));
        Arc::new(config)
    }
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

/// Demands of an end that has dialled what [`Dialled`] demands of the other one: a certificate of a CA, and the name in it.
#[derive(Debug)]
struct Dialler {
    signed: Arc<dyn ClientCertVerifier>,
    any_name: bool,
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
        if !self.any_name {
            verify_server_name(&ParsedCertificate::try_from(certificate)?, &server_name()?)?;
        }
        Ok(verified)
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

/// Demands of an end that was dialled a certificate of a CA, and the name in it.
#[derive(Debug)]
struct Dialled {
    signed: Arc<WebPkiServerVerifier>,
    any_name: bool,
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
            )) if self.any_name => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
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
