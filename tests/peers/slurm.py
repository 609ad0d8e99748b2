"""A SLURM of several nodes on this machine, by the programs of Debian's packages slurmctld, slurmd and slurm-client."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from waiting import eventually, free_ports

_CONF = """\
ClusterName=softs
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@contextmanager
def cluster(folder: Path, n_nodes: int) -> Iterator[dict[str, str]]:
    """Run a SLURM for the time of the block; return the variables by which its commands find it.

    Skips the test where SLURM is not installed.
    """
    for program in ("slurmctld", "slurmd", "sbatch", "srun"):
        if shutil.which(program) is None:
            pytest.skip(f"needs SLURM: there is no {program}")
    host, user, ports = socket.gethostname(), getpass.getuser(), free_ports(n_nodes + 1)
    nodes = "\n".join(
        f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1000"
        for number, port in enumerate(ports[1:], 1)
    )
    conf = folder / "slurm.conf"
    conf.write_text(_CONF.format(host=host, user=user, ports=ports, folder=folder, nodes=nodes))
    (folder / "state").mkdir()
    variables = {"SLURM_CONF": str(conf)}
    everything = {**os.environ, **variables}
    with ExitStack() as stack:
        log = stack.enter_context(open(folder / "slurm.log", "w"))
        for command in [["slurmctld"], *(["slurmd", "-N", f"n{number}"] for number in range(1, n_nodes + 1))]:
            # In the foreground, with their log on standard error.
            process = subprocess.Popen([*command, "-D"], env=everything, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        eventually(
            lambda: (
                subprocess.run(
                    ["sinfo", "-h", "-t", "idle", "-o", "%D"], env=everything, capture_output=True, text=True
                ).stdout.strip()
                == str(n_nodes)
            ),
            lambda: f"all nodes are idle: {(folder / 'slurm.log').read_text()[-3000:]}",
            every_s=0.1,
        )
        yield variables
