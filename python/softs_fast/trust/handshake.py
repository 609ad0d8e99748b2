"""Why certificates of a client and a server do not fit: by the error of a handshake, or by asking the server."""

from __future__ import annotations

import socket
import ssl

from ..errors import ConfigError
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
_OTHER_REMEDY = "give the CA that has signed it, or the token file of its job"
_PLAIN = "it speaks TLS, and this process does not; give --token-file or --tls-ca, or a URL with https://"


def refusal_of(error: BaseException, files: TlsFiles | None = None) -> str | None:
    """Return why a handshake failed by what its ends are, with the remedy; None if it failed by anything else.

    Args:
        error: Error of Python's ssl in a client.
        files: Files of the client, if it has any.
    """
    files = files or TlsFiles()
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = _REMEDIES.get(error.verify_code)
        if files.token_file is not None and remedy is None:
            return f"it does not have the token of {files.token_file}; give both ends the same token file"
        remedy = remedy or _OTHER_REMEDY
        return f"its certificate is not accepted: {error.verify_message.rstrip('.')}; {remedy}"
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if reason in _NO_TLS:
        return "it speaks no TLS; connect without TLS, or start it with a token file or a certificate"
    alert = _alert(reason)
    return _refused(files, alert) if any(known in alert for known in _ALERTS) else None


def tls_problem(host: str, port: int, files: TlsFiles) -> str | None:
    """Ask a server of HTTP/2 why a client cannot connect: the cause with its remedy, or None if TLS is none.

    What this cannot determine, such as a server that does not answer, is None, too.

    Args:
        host: Name or address of the server.
        port: Port of the server.
        files: Files of the client.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if not files.verifies_peers:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    else:
        # As gRPC: the file may hold the certificate itself, or one between it and the root.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            files.load(context)
        except ConfigError as error:
            return str(error)
    try:
        with (
            socket.create_connection((host, port), _TIMEOUT_S) as raw,
            context.wrap_socket(raw, server_hostname=files.server_name(host)) as tls,
        ):
            if not files.verifies_peers:
                return _PLAIN
            # A server of HTTP/2 speaks first, once it has accepted the client. That of gRPC sends no alert.
            return None if tls.recv(1) else _refused(files, "it ends the connection after the handshake")
    except OSError as error:
        if not files.verifies_peers:
            return _PLAIN if isinstance(error, ssl.SSLError) and _alert(error.reason or "") else None
        return refusal_of(error, files)


def _alert(reason: str) -> str:
    return reason.partition("_ALERT_")[2].replace("_", " ").lower()


def _refused(files: TlsFiles, detail: str) -> str:
    if files.token_file is not None:
        return f"it does not accept the token of {files.token_file} ({detail}); give both ends the same token file"
    if files.cert is None:
        return (
            f"it asks for a certificate, and this process has none ({detail}); give --token-file, or --tls-cert and "
            "--tls-key"
        )
    return (
        f"it does not accept {files.cert} ({detail}); give one that is valid now and that its CA has signed"
    )
