"""The single checks of a preflight: each looks at one thing and says what is wrong with it, or nothing."""

import shutil
import socket
import subprocess
import time
from pathlib import Path

from runtime.node.errors import NodeTaskError

MIB = 1 << 20
_MOST_CLOCK_SKEW_SECONDS = 30
_LEAST_FREE_DISK_BYTES = 1 << 30


def memory(required_bytes: int, own_processes: set[int]) -> str | None:
    """MemAvailable, with what this group's own ranks hold counted as free, must cover the plan."""
    available = meminfo_bytes("MemAvailable")
    own = sum(anonymous_bytes(process) for process in own_processes)
    if available + own >= required_bytes:
        return None
    return (
        f"memory: {available // MIB} MiB are available and {own // MIB} MiB come free with this group's old rank, "
        f"the rank needs {required_bytes // MIB} MiB: end what else uses memory on this node, or lower "
        "memory/required_bytes in the stack file"
    )


def meminfo_bytes(key: str) -> int:
    """Returns one figure of /proc/meminfo in bytes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == key:
            return int(rest.split()[0]) * 1024
    raise NodeTaskError(f"/proc/meminfo has no {key} on this node")


def anonymous_bytes(process: int) -> int:
    """Returns the memory that goes with the process; 0 once it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(
        int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(("RssAnon:", "RssShmem:"))
    )


def port(number: int, own_processes: set[int]) -> str | None:
    """A port must be free, or held by this group's own rank, which is gone before the new one starts."""
    sockets = listening_sockets(number)
    if not sockets or sockets & sockets_of(own_processes):
        return None
    return (
        f"port: {number} is in use on this node by a process outside this deployment; "
        f"`ss -ltnp 'sport = :{number}'` names it: end it, or choose another port in the stack file"
    )


def listening_sockets(number: int) -> set[str]:
    """Returns the inodes of the sockets that listen on a TCP port."""
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        path = Path(table)
        for row in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = row.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == number:
                found.add(fields[9])
    return found


def sockets_of(processes: set[int]) -> set[str]:
    """Returns the inodes of all sockets that these processes hold."""
    links = (_link_target(link) for process in processes for link in _descriptors(process))
    return {target[8:-1] for target in links if target.startswith("socket:[")}


def _descriptors(process: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{process}/fd").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def _link_target(link: Path) -> str:
    try:
        return str(link.readlink())
    except (FileNotFoundError, ProcessLookupError):
        return ""  # closed in the meantime


def accelerators(own_processes: set[int]) -> str | None:
    """A rank gets all accelerators of its node, so no process but the ranks that make room may use one."""
    if shutil.which("nvidia-smi") is None:
        return None
    asked = ["nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader"]
    result = subprocess.run(asked, capture_output=True, text=True, check=False)
    if result.returncode:
        return f"accelerator: `{' '.join(asked)}` failed: {(result.stderr or result.stdout).strip()}"
    rows = [row.split(",", 1) for row in result.stdout.splitlines() if row.split(",")[0].strip().isdigit()]
    others = [f"{name.strip()} ({pid.strip()})" for pid, name in rows if int(pid) not in own_processes]
    if not others:
        return None
    return f"accelerator: {', '.join(others)} of outside this deployment uses it: end it, or choose another node"


def shared_memory(required_bytes: int) -> str | None:
    """/dev/shm of the node must hold vLLM's message queues (160 MiB a local reader; engine.md section 4)."""
    total = shutil.disk_usage("/dev/shm").total
    if total >= required_bytes:
        return None
    return (
        f"shared memory: /dev/shm has {total // MIB} MiB, ranks need {required_bytes // MIB} MiB: "
        f"`mount -o remount,size={required_bytes // MIB}m /dev/shm` on this node"
    )


def disk(folder: str) -> str | None:
    """The file system of our folder must have room for receipts, logs and runtime."""
    free = shutil.disk_usage(folder).free
    if free >= _LEAST_FREE_DISK_BYTES:
        return None
    return (
        f"disk: {folder} has {free // MIB} MiB free, at least {_LEAST_FREE_DISK_BYTES // MIB} MiB are needed: free some"
    )


def clock(controller_seconds: float) -> str | None:
    """Node and controller must agree on the time, or certificates, claims and logs lie."""
    skew = time.time() - controller_seconds
    if abs(skew) <= _MOST_CLOCK_SKEW_SECONDS:
        return None
    return f"clock: {socket.gethostname()} is {skew:+.0f} s off the controller: start time synchronisation on that node"


def mount_sources(folders: list[str]) -> str | None:
    """Every folder that a rank mounts must exist: Docker would otherwise start with an empty one."""
    absent = [folder for folder in folders if not Path(folder).exists()]
    if not absent:
        return None
    return f"mounts: {', '.join(absent)} not on this node: put it there, or correct the image's mounts in the catalogue"


def devices(paths: list[str]) -> str | None:
    """Every device folder that a rank is given must exist: Docker refuses the container otherwise."""
    absent = [path for path in paths if not Path(path).exists()]
    if not absent:
        return None
    return f"devices: {', '.join(absent)} not on this node: load the driver, for RDMA `modprobe mlx5_ib rdma_ucm`"


def open_files(required: int) -> str | None:
    """The Docker engine must be allowed to give a rank this many open files."""
    limit = _hard_open_files_of_docker()
    if limit is None or limit >= required or _may_raise_limits():
        return None
    return (
        f"limits: the Docker engine of this node can give at most {limit} open files, the cluster asks for {required}: "
        "raise LimitNOFILE of docker.service, or lower limits/open_files in the cluster file"
    )


def _hard_open_files_of_docker() -> int | None:
    result = subprocess.run(["pgrep", "-x", "dockerd"], capture_output=True, text=True, check=False)
    for process in result.stdout.split():
        for line in Path(f"/proc/{process}/limits").read_text().splitlines():
            if line.startswith("Max open files"):
                hard = line.split()[4]
                return None if hard == "unlimited" else int(hard)
    return None


def _may_raise_limits() -> bool:
    effective = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:"))
    cap_sys_resource = 24
    return bool(int(effective.split()[1], 16) >> cap_sys_resource & 1)
