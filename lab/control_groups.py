"""The host's control groups, which a Docker engine needs; a bare sandbox has not mounted them."""

from pathlib import Path

from lab.commands import Report, run
from lab.errors import LabError
from lab.mounts import mount_points, unmount_below

ROOT = Path("/sys/fs/cgroup")


def _version_1_controllers() -> list[str]:
    rows = [line.split() for line in Path("/proc/cgroups").read_text().splitlines() if not line.startswith("#")]
    return [name for name, _hierarchy, _groups, enabled in rows if enabled == "1"]


def _kernel_has(filesystem: str) -> bool:
    return any(line.split()[-1:] == [filesystem] for line in Path("/proc/filesystems").read_text().splitlines())


def _mount(kind: str, options: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    run(
        ["mount", "-t", kind, "-o", options, kind, str(folder)],
        what=f"mount control groups at {folder}",
        way_out="Mount the control groups of this machine by hand, or start a Docker engine yourself.",
    )


def _mount_version_1() -> None:
    _mount("tmpfs", "mode=755", ROOT)
    for controller in _version_1_controllers():
        _mount("cgroup", controller, ROOT / controller)
    _mount("cgroup", "none,name=systemd", ROOT / "systemd")


def mount_if_absent(report: Report) -> bool:
    """Mounts control groups where the host has none.

    Version 1 is taken where the kernel has controllers for it: it needs no BPF for devices.

    Returns:
        Whether anything was mounted.

    Raises:
        LabError: the kernel has no control groups, or mounting failed.
    """
    if mount_points(ROOT):
        return False
    report("mount control groups, which this machine has not done")
    if _kernel_has("cgroup") and "memory" in _version_1_controllers():
        _mount_version_1()
    elif _kernel_has("cgroup2"):
        _mount("cgroup2", "nsdelegate", ROOT)
    else:
        raise LabError("mount control groups", "this kernel has none", "Use a machine whose kernel has control groups.")
    return True


def unmount() -> None:
    """Takes away the control groups that `mount_if_absent` mounted."""
    unmount_below(ROOT)
