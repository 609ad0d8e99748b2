//! Why a connection with TLS ends, in one line with the remedy. In the texts "it" is the peer.

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

/// An error of TLS.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// Key, certificates or CAs of this host.
    #[error(
        "the certificate of this host cannot be used: {0}; give the token file, or a key with its certificate in PEM"
    )]
    Credentials(String),
    /// Its first bytes are not those of TLS.
    #[error("it speaks no TLS; give it the token file of this host")]
    Plain,
    /// It has spoken TLS to an end that has none.
    #[error("it speaks TLS, and this host does not; give both the same token file")]
    Encrypted,
    /// It speaks TLS 1.2, or nothing that this end has.
    #[error("it has no TLS 1.3 as this end needs it ({0}); install the same softs-fast on both hosts")]
    Older(String),
    /// Another service of the job, or of another program.
    #[error("it is another service; look at the host and the port that were given")]
    OtherService,
    /// None of the CAs has signed its certificate.
    #[error("it does not have the token of this host; give both the same token file")]
    OtherToken,
    /// It has shown none.
    #[error("it shows no certificate; give it the token file of this host")]
    NoCertificate,
    /// Its certificate is of another time.
    #[error("its certificate is not valid now; set the clocks of both hosts, or make it anew")]
    OtherTime,
    /// Its certificate is not one of a holder of the token.
    #[error("its certificate is not accepted: {0}; give both hosts the same token file")]
    Certificate(String),
    /// Its certificate names a role that may not use the service.
    #[error(
        "the role in its certificate (softs://JOB/ROLE) has no right here: links take student, teacher and admin, groups rank and admin"
    )]
    Role,
    /// It does not accept the certificate of this host.
    #[error(
        "it does not accept the certificate of this host ({0}); give both the same token file or a role that may do this, and set their clocks"
    )]
    Refused(String),
    /// It has sent [`super::HANDSHAKE_BYTES`] without a proof of what it is.
    #[error("it has sent {0} bytes, and no proof that it has the token; give both hosts the same token file")]
    TooLong(usize),
    /// It was not authenticated in time.
    #[error("it has not shown in time that it has the token; look for the cause in its log")]
    TooSlow,
    /// The connection has ended before both ends were authenticated.
    #[error("it ended the connection during the TLS handshake; look for the cause in its log")]
    Unfinished,
    /// The connection has ended, and the peer has not said so: something may be missing.
    #[error("the connection ended without the end of TLS; what it sent last may be missing")]
    Truncated,
    /// A record that the peer has not made so.
    #[error("a record of TLS was changed on its way; dial again")]
    Changed,
    /// The peer breaks the protocol.
    #[error("it breaks TLS: {0}; dial again")]
    Protocol(String),
    /// A call that needs an authenticated peer, or one that is still there.
    #[error("nothing can be sent: the TLS handshake is not complete, or the connection is closed")]
    NotOpen,
}

impl From<Error> for TlsError {
    fn from(error: Error) -> Self {
        match error {
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::InvalidCertificate(why) => certificate(why),
            Error::AlertReceived(alert) => alerted(alert),
            Error::PeerIncompatible(why) => Self::Older(format!("{why:?}")),
            Error::InvalidMessage(InvalidMessage::UnknownProtocolVersion) => {
                Self::Older("unknown version".to_owned())
            }
            Error::NoApplicationProtocol => Self::OtherService,
            Error::DecryptError => Self::Changed,
            other => Self::Protocol(other.to_string()),
        }
    }
}

fn certificate(why: CertificateError) -> TlsError {
    match why {
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => TlsError::OtherTime,
        CertificateError::ApplicationVerificationFailure => TlsError::Role,
        CertificateError::UnknownIssuer | CertificateError::BadSignature => TlsError::OtherToken,
        other => TlsError::Certificate(other.to_string()),
    }
}

fn alerted(alert: AlertDescription) -> TlsError {
    match alert {
        AlertDescription::UnknownCA
        | AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateUnknown
        | AlertDescription::CertificateRequired
        | AlertDescription::AccessDenied
        | AlertDescription::DecryptError => TlsError::Refused(format!("{alert:?}")),
        AlertDescription::ProtocolVersion
        | AlertDescription::HandshakeFailure
        | AlertDescription::InsufficientSecurity => TlsError::Older(format!("{alert:?}")),
        AlertDescription::NoApplicationProtocol => TlsError::OtherService,
        other => TlsError::Protocol(format!("alert {other:?}")),
    }
}
