"""Options of a server that belong neither to the job nor to the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ...errors import ConfigError
from ..wire.invite import checked_url

__all__ = ["ServerOptions", "TlsFiles"]


@dataclass(frozen=True)
class TlsFiles:
    """Files of a certificate.

    Attributes:
        cert: PEM file of the chain.
        key: PEM file of its key.
        self_signed: Whether the server makes the certificate if it is missing, and the invite pins it.
    """

    cert: Path
    key: Path
    self_signed: bool = False


@dataclass(frozen=True)
class ServerOptions:
    """Options of a server.

    Attributes:
        listen: Address to listen at, HOST:PORT; port 0 takes a free one.
        public_url: URL of the tunnel or proxy in front of the server, for the invite; None: that of the address.
        tls: Files of the certificate; None: no TLS.
        allow_insecure: Whether the server may listen at addresses of other machines without TLS.
        state: File with everything that a later server needs.
        output: File of the trained model; of safetensors if its suffix is .safetensors.
        evaluate_every: Versions between two evaluations; 0 for none before the end.
        stop_after_evaluations: Evaluations without a better result after which the run ends; None for any number.
        lower_is_better: Whether a result of an evaluation is better if it is lower.
        max_upload_bytes: Bytes of memory for uploads and pushes that no step has used.
        norm_guard: Greatest norm of a push, in medians of recent pushes; a longer one is scaled down. 0 for any.
        linger_s: Seconds for which the server stays for workers that have not heard of the end.

    Raises:
        ConfigError: a value is out of range, or other machines could reach the server without TLS.
    """

    listen: str = "127.0.0.1:8000"
    public_url: str | None = None
    tls: TlsFiles | None = None
    allow_insecure: bool = False
    state: Path = field(default_factory=lambda: Path("paramserver.state"))
    output: Path = field(default_factory=lambda: Path("trained_model.pth"))
    evaluate_every: int = 0
    stop_after_evaluations: int | None = None
    lower_is_better: bool = False
    max_upload_bytes: int = 8 << 30
    norm_guard: float = 10.0
    linger_s: float = 30.0

    def __post_init__(self) -> None:
        for name, least, most in (
            ("evaluate_every", 0, 1 << 31),
            ("stop_after_evaluations", 1, 1 << 31),
            ("max_upload_bytes", 1 << 20, 1 << 50),
            ("norm_guard", 0, 1 << 30),
            ("linger_s", 0, 3600),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ConfigError(f"{name} of the server is {value}; need {least} to {most}")
        host, _, port = self.listen.rpartition(":")
        if not (host and port.isascii() and port.isdigit() and int(port) <= 65535):
            raise ConfigError(
                f"listen of the server is {self.listen!r}; expected HOST:PORT, such as 127.0.0.1:8000"
            )
        if self.public_url is not None:
            checked_url(self.public_url.rstrip("/"))
        if not (self.is_loopback or self.tls is not None or self.allow_insecure):
            raise ConfigError(
                f"the server at {self.listen} would be reachable from other machines without encryption; give "
                "--tls-self-signed, or --tls-cert and --tls-key, or listen at 127.0.0.1 behind a tunnel; --allow-insecure if you must"
            )

    @property
    def host(self) -> str:
        """Host of `listen`, without brackets."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Port of `listen`."""
        return int(self.listen.rpartition(":")[2])

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the address."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")
