"""Two nodes on one machine: network namespaces on a bridge, each with a host name and an address of its own.

They share the file system, the cores and the clock; what they send each other goes through links whose rate
can be limited and that can be cut. Slurm and sshd run across them. Root only; each bench has a subnet, ports
and a folder of its own, so several can stand side by side, and what a killed one left is cleared by the next
that takes its place.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

PACKAGES = "slurm-wlm munge openssh-server openssh-client iproute2 util-linux"
_PLACES = 32
_FIRST_LOCK, _FIRST_CONTROL = 16700, 16800
_PATIENCE_S = 60.0
_RAY = ["ray", "start", "--block", "--disable-usage-stats", "--num-cpus=1", "--object-store-memory=80000000"]
_PERIOD_US = 10_000

# its own network, host name, process group and /etc/hosts; not `ip netns exec`, which hides the cgroups
_ENTER = 'hostname "$0" && mount --bind "$1" /etc/hosts && {mounts} shift && exec "$@"'


class Bench:
    """Nodes of this machine.

    Args:
        folder: Where it keeps what it needs; must exist.
        nodes: How many.
        private: Folders of which each node has one of its own, as without a shared file system.
    """

    def __init__(self, folder: Path, nodes: int = 2, private: Sequence[Path] = ()) -> None:
        _need("ip", "nsenter", "unshare", "tc")
        if os.geteuid():
            raise PermissionError("a bench of network namespaces needs root")
        self.folder = folder
        self._stack = contextlib.ExitStack()
        self.place = self._stack.enter_context(_place())
        self._prefix, self._network = f"dbn{self.place}-", f"10.77.{self.place}"
        self.nodes = [f"{self._prefix}{number}" for number in range(1, nodes + 1)]
        self.gateway = f"{self._network}.254"
        self._private = {
            node: [(folder / "private" / node / str(i), path) for i, path in enumerate(private)]
            for node in self.nodes
        }
        self._bridge = f"{self._prefix}br"
        self._remove()
        self._stack.callback(self._remove)
        self._build()

    def command(self, node: str, *command: str) -> list[str]:
        """*command*, as it is run on *node*; it ends when whoever started it does."""
        mounts = "".join(f'mount --bind "{own}" "{path}" && ' for own, path in self._private[node])
        enter = [
            "nsenter",
            f"--net=/run/netns/{node}",
            "unshare",
            "--uts",
            "--mount",
            "--kill-child",
            "--fork",
        ]
        script = _ENTER.format(mounts=mounts)
        return [*enter, "sh", "-c", script, node, str(self.folder / "hosts"), *command]

    def run(self, node: str, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run *command* on *node* to its end."""
        return subprocess.run(
            self.command(node, *command),
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    def start(self, node: str, *command: str, **variables: str) -> subprocess.Popen[bytes]:
        """Start *command* on *node*, until the bench ends at the latest; it prints to ``NODE.log``."""
        with (self.folder / f"{node}.log").open("ab") as log:
            process = subprocess.Popen(
                self.command(node, *command), env={**os.environ, **variables}, stdout=log, stderr=log
            )
        # unshare lets no SIGTERM through, and takes its child along when it is killed
        self._stack.callback(_end, process, signal.SIGKILL)
        return process

    def address(self, node: str) -> str:
        """IPv4 address of *node*."""
        return f"{self._network}.{self.nodes.index(node) + 1}"

    def host(self, node: str) -> str:
        """Name that *node* has for itself."""
        return node

    def slurm_port(self, node: str) -> int:
        """Port of slurmd on *node*."""
        return 6818

    def rate(self, limit: str, *nodes: str) -> None:
        """Limit what *nodes* (none given: all) send and receive to *limit*, in tc's words: ``200mbit``."""
        shape = ["root", "tbf", "rate", limit, "burst", "256kb", "latency", "50ms"]
        for node in nodes or self.nodes:
            _sh("tc", "-n", node, "qdisc", "replace", "dev", "eth0", *shape)
            _sh("tc", "qdisc", "replace", "dev", self._port(node), *shape)

    def unlimit(self) -> None:
        """Lift the limits of ``rate``."""
        for node in self.nodes:
            _sh("tc", "-n", node, "qdisc", "del", "dev", "eth0", "root", check=False)
            _sh("tc", "qdisc", "del", "dev", self._port(node), "root", check=False)

    def cut(self, node: str) -> None:
        """Take the link of *node* down: packets are lost, and nobody is told."""
        _sh("ip", "link", "set", self._port(node), "nomaster")

    def mend(self, node: str) -> None:
        """Take the link of *node* up again."""
        _sh("ip", "link", "set", self._port(node), "master", self._bridge)

    def processes(self, node: str) -> list[int]:
        """Every process on *node*."""
        listed = _sh("ip", "netns", "pids", node, check=False)
        return [int(pid) for pid in listed.split()]

    def die(self, node: str) -> None:
        """Lose *node*, as by a power failure: its peers hear nothing more from it."""
        self.cut(node)
        for pid in self.processes(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def revive(self, node: str) -> None:
        """Boot *node*, which has died, again: its link, and the sshd that ``ssh`` had started there."""
        self.mend(node)
        self._listen(node)
        self._reach(node)

    def ssh(self) -> list[str]:
        """Start sshd on all nodes; the command that takes a node and a command line to run there."""
        _need("sshd", "ssh", "ssh-keygen")
        keys = self._keys
        keys.mkdir(mode=0o700)
        key, daemon = keys / "key", keys / "sshd_config"
        _sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
        Path("/run/sshd").mkdir(exist_ok=True)
        daemon.write_text(
            f"HostKey {key}\nAuthorizedKeysFile {key}.pub\nStrictModes no\nUsePAM no\nPidFile none\n"
        )
        client = keys / "config"
        client.write_text(
            f"IdentityFile {key}\nIdentitiesOnly yes\nStrictHostKeyChecking no\n"
            f"UserKnownHostsFile /dev/null\nLogLevel ERROR\nBatchMode yes\n"
            + "".join(f"Host {node}\n  HostName {self.address(node)}\n" for node in self.nodes)
        )
        for node in self.nodes:
            self._listen(node)
        for node in self.nodes:
            self._reach(node)
        return self._shell

    @contextlib.contextmanager
    def throttled(self, node: str, cores: float) -> Iterator[None]:
        """What runs on *node*, and what it starts meanwhile, has *cores* of a core together.

        Raises:
            NotImplementedError: this machine has no group of cgroup v1 for that.
        """
        top = Path("/sys/fs/cgroup/cpu")
        if not (top / "cpu.cfs_quota_us").exists():
            raise NotImplementedError(f"there is no {top}/cpu.cfs_quota_us (cgroup v1)")
        group = top / node
        # one that a killed bench has left is empty, as the processes of its nodes are gone
        group.mkdir(exist_ok=True)
        # a short period: a step shall not fit into what one of them allows
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(int(cores * _PERIOD_US)))
        try:
            self._move(node, group)
            yield
        finally:
            _until(lambda: self._moved_back(node, top), f"{group} does not become empty")
            group.rmdir()

    def close(self) -> None:
        """End every process on the nodes, and remove them."""
        self._stack.close()

    def _move(self, node: str, group: Path) -> None:
        for pid in self.processes(node):
            with contextlib.suppress(ProcessLookupError):
                (group / "cgroup.procs").write_text(str(pid))

    def _moved_back(self, node: str, top: Path) -> bool:
        self._move(node, top)
        return not (top / node / "cgroup.procs").read_text()

    @property
    def _keys(self) -> Path:
        return self.folder / "ssh"

    @property
    def _shell(self) -> list[str]:
        return ["ssh", "-F", str(self._keys / "config")]

    def _listen(self, node: str) -> None:
        daemon = self._keys / "sshd_config"
        self.start(node, str(shutil.which("sshd")), "-D", "-e", "-f", str(daemon))

    def _reach(self, node: str) -> None:
        _until(lambda: _ok(*self._shell, node, "true"), f"sshd on {node} does not answer")

    def _build(self) -> None:
        hosts = [f"{self.address(node)} {node}" for node in self.nodes]
        hosts += ["127.0.0.1 localhost", f"{self.gateway} {os.uname().nodename}"]
        (self.folder / "hosts").write_text("\n".join([*hosts, ""]))
        _sh("ip", "link", "add", self._bridge, "type", "bridge")
        _sh("ip", "addr", "add", f"{self.gateway}/24", "dev", self._bridge)
        _sh("ip", "link", "set", self._bridge, "up")
        for node in self.nodes:
            _sh("ip", "netns", "add", node)
            peer = ["type", "veth", "peer", "name", "eth0", "netns", node]
            _sh("ip", "link", "add", self._port(node), *peer)
            _sh("ip", "link", "set", self._port(node), "master", self._bridge, "up")
            _sh("ip", "-n", node, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            for interface in ("eth0", "lo"):
                _sh("ip", "-n", node, "link", "set", interface, "up")
            for own, path in self._private[node]:
                own.mkdir(parents=True)
                path.mkdir(parents=True, exist_ok=True)

    def _remove(self) -> None:
        left = [name for name in _sh("ip", "netns", "list").split() if name.startswith(self._prefix)]
        for node in left:
            _until(lambda node=node: not self._killed(node), f"processes on {node} do not end")
            _sh("ip", "netns", "del", node)
            # with its namespace goes its end of the link, but not at once
            _sh("ip", "link", "del", self._port(node), check=False)
        _sh("ip", "link", "del", self._bridge, check=False)

    def _killed(self, node: str) -> list[int]:
        left = self.processes(node)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left

    def _port(self, node: str) -> str:
        return f"{node}p"


class OneHost:
    """Two nodes that differ by name alone: for what must be seen where namespaces can't be had.

    Args:
        folder: Where it keeps what it needs; must exist.
    """

    gateway = "127.0.0.1"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = contextlib.ExitStack()
        self.place = self._stack.enter_context(_place())
        self.nodes = ["n1", "n2"]

    def address(self, node: str) -> str:
        """IPv4 address of *node*."""
        return self.gateway

    def host(self, node: str) -> str:
        """Name that *node* has for itself."""
        return os.uname().nodename

    def slurm_port(self, node: str) -> int:
        """Port of slurmd on *node*."""
        return 17000 + 2 * self.place + self.nodes.index(node)

    def start(self, node: str, *command: str) -> None:
        """Start *command* as if on *node*, until this ends at the latest; it prints to ``NODE.log``."""
        with (self.folder / f"{node}.log").open("ab") as log:
            self._stack.callback(_end, subprocess.Popen(command, stdout=log, stderr=log))

    def close(self) -> None:
        """End every process on the nodes."""
        self._stack.close()


class SlurmBench:
    """Slurm on the nodes of *bench*: slurmd on each, slurmctld beside them.

    Args:
        bench: Its nodes; each offers *cpus* cores.
        cpus: Cores of a node.
        settings: More lines of slurm.conf, after the others.
    """

    def __init__(self, bench: Bench | OneHost, cpus: int = 2, settings: str = "") -> None:
        _need("munged", "slurmctld", "slurmd", "sinfo")
        self._bench, self._folder = bench, bench.folder / "slurm"
        for name in ("state", "spool", "log", "munge"):
            (self._folder / name).mkdir(parents=True)
        (self._folder / "munge").chmod(0o755)
        self._stack = contextlib.ExitStack()
        conf = self._folder / "slurm.conf"
        self.variables = {"SLURM_CONF": str(conf)}
        """For every command of Slurm, and for distbench."""
        try:
            self._munge()
            conf.write_text(self._configuration(cpus) + settings)
            self._keep(["slurmctld", "-D", "-f", str(conf)])
            for node in bench.nodes:
                self.boot(node)
            _until(self._idle, f"Slurm's nodes don't come up; see {self._folder / 'log'}")
        except BaseException:
            # nobody else knows of what has been started
            self.close()
            raise

    def boot(self, node: str) -> None:
        """Start slurmd on *node*, again if it has died."""
        self._bench.start(node, "slurmd", "-D", "-N", node, "-f", self.variables["SLURM_CONF"])

    def call(self, *command: str) -> str:
        """Output of a command of Slurm.

        Raises:
            RuntimeError: it fails.
        """
        return _sh(*command, **self.variables)

    def close(self) -> None:
        """Cancel what runs, and end Slurm."""
        self._stack.close()

    def _idle(self) -> bool:
        told = subprocess.run(
            ["sinfo", "-h", "-o", "%T %D"],
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            check=False,
        )
        return told.stdout.split() == ["idle", str(len(self._bench.nodes))]

    def _munge(self) -> None:
        folder = self._folder / "munge"
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        named = {"key": key, "socket": self._socket, "pid": "munged.pid", "log": "munged.log", "seed": "seed"}
        files = [
            f"--{name}{'' if name == 'socket' else '-file'}={folder / str(of)}" for name, of in named.items()
        ]
        self._keep(["munged", "--foreground", "--force", *files])
        _until(self._socket.exists, "munged does not start")

    @property
    def _socket(self) -> Path:
        return self._folder / "munge" / "socket"

    def _keep(self, command: Sequence[str]) -> None:
        with (self._folder / "log" / "daemons.log").open("ab") as log:
            self._stack.callback(_end, subprocess.Popen(command, stdout=log, stderr=log))

    def _configuration(self, cpus: int) -> str:
        folder, bench = self._folder, self._bench
        nodes = [
            f"NodeName={node} NodeHostname={bench.host(node)} NodeAddr={bench.address(node)} "
            f"Port={bench.slurm_port(node)} CPUs={cpus} RealMemory=4000"
            for node in bench.nodes
        ]
        return "\n".join(
            [
                "ClusterName=bench",
                f"SlurmctldHost={os.uname().nodename}({bench.gateway})",
                f"SlurmctldPort={_FIRST_CONTROL + bench.place}",
                f"SlurmUser={getpass.getuser()}",
                f"SlurmdUser={getpass.getuser()}",
                "AuthType=auth/munge",
                f"AuthInfo=socket={self._socket}",
                f"StateSaveLocation={folder}/state",
                f"SlurmdSpoolDir={folder}/spool/%n",
                f"SlurmctldPidFile={folder}/slurmctld.pid",
                f"SlurmdPidFile={folder}/slurmd.%n.pid",
                f"SlurmctldLogFile={folder}/log/slurmctld.log",
                f"SlurmdLogFile={folder}/log/slurmd.%n.log",
                "MpiDefault=none",
                "ProctrackType=proctrack/linuxproc",
                "TaskPlugin=task/none",
                "SchedulerParameters=sched_interval=1,bf_interval=1",
                "SelectType=select/cons_tres",
                "SelectTypeParameters=CR_Core",
                "ReturnToService=2",
                "SlurmdTimeout=20",
                "KillWait=3",
                *nodes,
                f"PartitionName=cpu Nodes={','.join(bench.nodes)} Default=YES MaxTime=00:10:00 State=UP",
                "",
            ]
        )


@contextlib.contextmanager
def _place() -> Iterator[int]:
    """A number that no other bench on this machine has."""
    for place in range(_PLACES):
        if lock := _lock(place):
            with lock:
                yield place
            return
    raise RuntimeError(f"all {_PLACES} places for a bench are taken")


def _lock(place: int) -> socket.socket | None:
    """A port that only one process can have, unless *place* is taken, or its ports by others."""
    lock = socket.socket()
    try:
        lock.bind(("127.0.0.1", _FIRST_LOCK + place))
        with socket.socket() as control:
            control.bind(("", _FIRST_CONTROL + place))
        return lock
    except OSError:
        lock.close()
        return None


def _need(*programs: str) -> None:
    if absent := [name for name in programs if not shutil.which(name)]:
        raise FileNotFoundError(f"{', '.join(absent)} not found; apt-get install {PACKAGES}")


def _sh(*command: str, check: bool = True, **variables: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with code {done.returncode}: {done.stderr}")
    return done.stdout


def _ok(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _until(done: Callable[[], object], otherwise: str) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(otherwise)
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
    process.send_signal(number)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Two nodes."""
    made = Bench(tmp_path_factory.mktemp("bench"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def slurm(bench: Bench) -> Iterator[SlurmBench]:
    """Slurm on the two nodes."""
    made = SlurmBench(bench)
    yield made
    made.close()


@pytest.fixture(scope="module")
def ray_cluster(bench: Bench) -> Iterator[dict[str, str]]:
    """Ray on the two nodes; the variables with which distbench finds it."""
    head, other = bench.nodes
    address = f"{bench.address(head)}:6379"
    # the paths of its sockets have at most 107 characters, so it is not below pytest's own
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    placed = [f"--temp-dir={folder}", "--port=6379", "--include-dashboard=false"]
    bench.start(head, *_RAY, "--head", f"--node-ip-address={bench.address(head)}", *placed)
    driver = [sys.executable, "-m", "distbench.launchers.ray.driver"]
    asked = [*driver, "nodes", json.dumps({"address": address})]
    _until(lambda: bench.run(head, *asked).returncode == 0, "Ray does not start")
    join_ray(bench, other, address)
    _until(lambda: len(json.loads(bench.run(head, *asked).stdout)) == 2, "Ray has no second node")
    yield {"RAY_ADDRESS": address}
    shutil.rmtree(folder, ignore_errors=True)


def join_ray(bench: Bench, node: str, address: str) -> None:
    """Add *node* to the Ray cluster at *address*."""
    bench.start(node, *_RAY, f"--address={address}", f"--node-ip-address={bench.address(node)}")
