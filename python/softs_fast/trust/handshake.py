"""Why certificates of a client and a server do not fit: by the error of a handshake, or by asking the server."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from .tls import TlsFiles

__all__ = ["refusal_of", "tls_problem"]

#: For the connection, the handshake and the first byte, each.
_TIMEOUT_S = 2.0
#: What OpenSSL says of bytes that are no TLS.
_NO_TLS = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"}
#: Alerts by which a server refuses a client for good.
_ALERTS = ("certificate", "unknown ca", "access denied", "handshake failure", "protocol version")
#: By OpenSSL's number of an error of verification.
_REMEDIES = {
    9: "wait until it is valid, or set the clocks of both machines",
    10: "renew it, or set the clocks of both machines",
    62: "issue it for this name, or connect by its name",
    64: "issue it for this address, or connect by its name",
}
_OTHER_REMEDY = "give the CA that has signed it"
_PLAIN = "it speaks TLS, and this process does not; give --tls-ca, or a URL with https://"


def refusal_of(error: BaseException, cert: Path | None = None) -> str | None:
    """Return why a handshake failed by what its ends are, with the remedy; None if it failed by anything else.

    Args:
        error: Error of Python's ssl in a client.
        cert: PEM file of the client's certificate, if it has one.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = _REMEDIES.get(error.verify_code, _OTHER_REMEDY)
        return f"its certificate is not accepted: {error.verify_message.rstrip('.')}; {remedy}"
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if reason in _NO_TLS:
        return "it speaks no TLS; connect without TLS, or start it with a certificate"
    alert = _alert(reason)
    return _refused(cert, alert) if any(known in alert for known in _ALERTS) else None


def tls_problem(host: str, port: int, files: TlsFiles) -> str | None:
    """Ask a server of HTTP/2 why a client cannot connect: the cause with its remedy, or None if TLS is none.

    What this cannot determine, such as a server that does not answer, is None, too.

    Args:
        host: Name or address of the server.
        port: Port of the server.
        files: Files of the client.
    """
    ca, cert = files.ca, files.cert
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if ca is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    else:
        # As gRPC: the file may hold the certificate itself, or one between it and the root.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(ca)
            if cert is not None:
                context.load_cert_chain(cert, files.key)
        except (OSError, ssl.SSLError) as error:
            return f"{ca if cert is None else f'{ca}, {cert} or {files.key}'} cannot be used: {error}"
    try:
        with (
            socket.create_connection((host, port), _TIMEOUT_S) as raw,
            context.wrap_socket(raw, server_hostname=host) as tls,
        ):
            if ca is None:
                return _PLAIN
            # A server of HTTP/2 speaks first, once it has accepted the client. That of gRPC sends no alert.
            return None if tls.recv(1) else _refused(cert, "it ends the connection after the handshake")
    except OSError as error:
        if ca is None:
            return _PLAIN if isinstance(error, ssl.SSLError) and _alert(error.reason or "") else None
        return refusal_of(error, cert)


def _alert(reason: str) -> str:
    return reason.partition("_ALERT_")[2].replace("_", " ").lower()


def _refused(cert: Path | None, detail: str) -> str:
    if cert is None:
        return (
            f"it asks for a certificate, and this process has none ({detail}); give --tls-cert and --tls-key"
        )
    return f"it does not accept {cert} ({detail}); give one that is valid now and that its CA has signed"
