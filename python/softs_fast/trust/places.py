"""Places: one text that says where a service of a job is, and which token file belongs to the job."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote_to_bytes

from ..errors import ConfigError
from .addresses import Address, bracketed
from .tls import TlsFiles

__all__ = ["Place"]

_SCHEME = "softs://"
_FORM = f"{_SCHEME}HOST[:PORT][,HOST2[:PORT]]/JOB?token_file=FILE"
_VARIABLE = "SOFTS_FAST_TOKEN_FILE"
_JOB = re.compile(r"[A-Za-z0-9._-]+")
#: Ports of services that have a standard one; they differ because one host may run all of them.
_PORTS = {"host link": 4700, "coordinator": 29401, "parameter server": 8000, "ranks": 29402}

Credentials = TypeVar("Credentials", bound=TlsFiles)


@dataclass(frozen=True)
class Place:
    """Where a service of a job is, and how a process proves that it belongs to the job.

    Attributes:
        addresses: HOST:PORT of each host at which the service may be, IPv6 in brackets, in the order in which to try them.
        job: Name of the job; None if the place has none.
        token_file: Token file of the job; None if the place has none.
    """

    addresses: tuple[str, ...]
    job: str | None = None
    token_file: Path | None = None

    @classmethod
    def parse(cls, text: str, what: str, *, scheme: str = "") -> Place:
        """Read ``softs://HOST[:PORT][,HOST2[:PORT]]/JOB?token_file=FILE``, or an address alone; no host is looked up.

        JOB and the token file may be left out, and the port where the service has a standard one. %XX in the name of the
        file stands for a byte, as in other URLs.

        Args:
            text: Place, or HOST:PORT after the scheme.
            what: Name of the service.
            scheme: Scheme of an address alone, such as ``tcp://``.

        Raises:
            ConfigError: It is malformed. The text shows no parameter's value, which could be a secret.
        """
        port = _PORTS.get(what)
        if not text.startswith(_SCHEME):
            try:
                return cls((_address(*Address.split(text, what, scheme, port)),))
            except ConfigError as error:
                raise ConfigError(f"{error}, or {_FORM}") from None
        shown, _, query = text.partition("?")
        hosts, _, job = shown.removeprefix(_SCHEME).partition("/")

        def invalid(why: str) -> ConfigError:
            return ConfigError(f"place of {what} is {shown!r}: {why}; expected {_FORM}")

        addresses = []
        for host in hosts.split(","):
            try:
                addresses.append(_address(*Address.split(host, what, default_port=port)))
            except ConfigError:
                form = "HOST:PORT" if port is None else "HOST or HOST:PORT"
                raise invalid(f"{host!r} is not {form}, with a port up to 65535") from None
        if job and not _JOB.fullmatch(job):
            raise invalid(
                f"invalid name of a job {job!r}, expected letters, digits, '.', '_' and '-'; a place cannot name a job with "
                "other characters: leave /JOB out"
            )
        files = []
        for parameter in query.split("&") if query else ():
            name, equals, value = parameter.partition("=")
            if name != "token_file":
                # Without "=" it could be a secret.
                raise invalid(f"unknown parameter {name!r}" if equals else "unknown parameter")
            files.append(os.fsdecode(unquote_to_bytes(os.fsencode(value))))
        if len(files) > 1 or any(not file or "\0" in file for file in files):
            raise invalid("token_file must name one file")
        return cls(tuple(addresses), job or None, Path(files[0]) if files else None)

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        file = "" if self.token_file is None else f"?token_file={quote(os.fsencode(self.token_file))}"
        return f"{_SCHEME}{','.join(self.addresses)}{f'/{self.job}' if self.job else ''}{file}"

    def only_address(self, what: str, reason: str = "a server listens at one host") -> str:
        """Return the address of a place that cannot have several hosts.

        Args:
            what: Name of the service, for the error.
            reason: Reason, with the remedy, for the error.

        Raises:
            ConfigError: It has several.
        """
        if len(self.addresses) > 1:
            raise ConfigError(
                f"place of {what}: expected one host, got {' and '.join(self.addresses)}; {reason}"
            )
        return self.addresses[0]

    def own_side(self, what: str) -> str:
        """Return the address that this machine has on the way to the first host that is known; nothing is sent.

        Raises:
            ConfigError: None is known, or there is no way.
        """
        for address in self.addresses[:-1]:
            with suppress(ConfigError):
                return Address.parse(address, what).own_side()
        return Address.parse(self.addresses[-1], what).own_side()

    def job_or(self, given: str | None) -> str | None:
        """Return the name of the job: the one given beside the place, else that of the place.

        Raises:
            ConfigError: The two differ.
        """
        if given is not None and self.job is not None and given != self.job:
            raise _contradiction("job", given, self.job)
        return self.job if given is None else given

    def credentials_or(self, given: Credentials) -> Credentials:
        """Return credentials with the token file of the place.

        Without one, and without files of the credentials, it is that of SOFTS_FAST_TOKEN_FILE, if that is set.

        Raises:
            ConfigError: They have another token file, or PEM files.
        """
        own, other = self.token_file, given.token_file
        if own is None and not (given.has_certificate or given.verifies_peers):
            own = Path(os.environ[_VARIABLE]) if os.environ.get(_VARIABLE) else None
        if own is None:
            return given
        if other is not None and os.path.abspath(other) != os.path.abspath(own):
            raise _contradiction("token file", other, own)
        return replace(given, token_file=own)


def _address(host: str, port: int) -> str:
    return f"{bracketed(host)}:{port}"


def _contradiction(what: str, given: str | Path, named: str | Path) -> ConfigError:
    return ConfigError(f"{what} {str(given)!r} contradicts {str(named)!r} of the place; give one of them")
