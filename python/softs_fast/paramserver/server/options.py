"""Options of a server that belong neither to the job nor to the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ...errors import ConfigError
from ...trust import Address, Place, TlsFiles, check_reachable
from ..wire.invite import checked_url

__all__ = ["ServerOptions"]


@dataclass(frozen=True)
class ServerOptions:
    """Options of a server.

    Attributes:
        listen: Place to listen at, HOST:PORT or ``softs://HOST[:PORT]/JOB?token_file=FILE``; port 0 takes a free one.
        public_url: URL of the tunnel or proxy in front of the server, for the invite; None: that of the address.
        tls: Files of the certificate, or the token file of the job, which workers must have, too; None: no TLS.
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
        ConfigError: a value is out of range, other machines could reach the server without TLS, or a URL is given beside a
            token file.
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
        place = Place.parse(self.listen, "parameter server")
        tls = place.credentials_or(self.tls or TlsFiles())
        object.__setattr__(self, "listen", place.only_address("parameter server"))
        object.__setattr__(self, "tls", None if tls == TlsFiles() else tls)
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
        if self.public_url is not None:
            checked_url(self.public_url.rstrip("/"))
            if tls.token_file is not None:
                raise ConfigError(
                    "public_url is for an invite; with a token file (--token-file, softs:// or SOFTS_FAST_TOKEN_FILE) leave it "
                    "out, and give workers softs://HOST:PORT?token_file=FILE"
                )
        remedy = (
            "give --token-file, --tls-self-signed, or --tls-cert and --tls-key, or listen at 127.0.0.1 behind a tunnel; "
            "--allow-insecure if you must"
        )
        # Requests are signed with the secret of the invite.
        has_tls, insecure = self.tls is not None, self.allow_insecure
        check_reachable(
            self.address, "parameter server", tls=has_tls, proof=True, insecure=insecure, remedy=remedy
        )

    @cached_property
    def address(self) -> Address:
        """Address of `listen`."""
        return Address.parse(self.listen, "parameter server")
