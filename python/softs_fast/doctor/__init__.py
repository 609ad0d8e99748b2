"""What this machine can and cannot do for softs-fast: what is found, and what follows from it for the user."""

from .advice import Finding, advise
from .machine import Machine, look

__all__ = ["Finding", "Machine", "advise", "look"]
