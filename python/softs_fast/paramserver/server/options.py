"""What a server is told apart from the job and the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ...errors import ConfigError
from ..wire.invite import checked_url

__all__ = ["ServerOptions", "TlsFiles"]


@dataclass(frozen=True)
class TlsFiles:
    """Where a certificate is.

    Attributes:
        certificate: PEM file of the chain.
        key: PEM file of its key.
        is_self_made: Whether the certificate is made if it is not there, and pinned by the invite.
    """

    certificate: Path
    key: Path
    is_self_made: bool = False


@dataclass(frozen=True)
class ServerOptions:
    """Of a process.

    Attributes:
        host: Address to listen at.
        port: Port to listen at; 0 for any.
        url: URL of a tunnel or a proxy, for the invite; None: that of the address.
        tls: Files of the certificate; None: no TLS.
        allow_plain: Whether the server may listen at addresses of other machines without TLS.
        state: File with everything that a later server needs.
        output: File of the trained model; of safetensors if its suffix is .safetensors.
        evaluate_every: Versions between two evaluations; 0 for none before the end.
        stop_after: Evaluations without a better result after which the run ends; None for any number.
        is_lower_better: Whether a result of an evaluation is better if it is lower.
        max_upload_bytes: Bytes of memory for uploads and pushes that no step has used.
        norm_guard: Greatest norm of a push, in medians of recent pushes; a longer one is scaled down. 0 for any.
        linger_s: Seconds for which the server stays for workers that have not heard of the end.

    Raises:
        ConfigError: a value is out of range, or other machines could reach the server without TLS.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    url: str | None = None
    tls: TlsFiles | None = None
    allow_plain: bool = False
    state: Path = field(default_factory=lambda: Path("paramserver.state"))
    output: Path = field(default_factory=lambda: Path("trained_model.pth"))
    evaluate_every: int = 0
    stop_after: int | None = None
    is_lower_better: bool = False
    max_upload_bytes: int = 8 << 30
    norm_guard: float = 10.0
    linger_s: float = 30.0

    def __post_init__(self) -> None:
        for name, least, most in (
            ("port", 0, 65535),
            ("evaluate_every", 0, 1 << 31),
            ("stop_after", 1, 1 << 31),
            ("max_upload_bytes", 1 << 20, 1 << 50),
            ("norm_guard", 0, 1 << 30),
            ("linger_s", 0, 3600),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ConfigError(f"{name} of the server is {value}; need {least} to {most}")
        if self.url is not None:
            checked_url(self.url.rstrip("/"))
        if not (self.is_loopback or self.tls is not None or self.allow_plain):
            raise ConfigError(
                f"the server at {self.host} would be reachable from other machines without encryption; give "
                "--tls-self-signed, or --tls-cert and --tls-key, or listen at 127.0.0.1 behind a tunnel; --allow-insecure if you must"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the address."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")
