"""Packages of the distribution: the commands that install them, and what dpkg's own record says is installed."""

from pathlib import Path
from typing import Any

from runtime.build.checks import Check, failed, passed

_STATUS = "var/lib/dpkg/status"
_LISTS = "/var/lib/apt/lists"
_INSTALLED = " ok installed"  # behind `install`, or `hold`
# Otherwise apt goes on without an index that it could not fetch, and then misses the package.
_EVERY_INDEX = ("-o", "APT::Update::Error-Mode=any")


def apt_commands(packages: list[dict[str, Any]]) -> list[list[str]]:
    """Returns the commands that install packages and leave no lists behind; they are run by the step's layer.

    Args:
        packages: name, version and any_version as in spec/chain.py.
    """
    if not packages:
        return []
    asked = [
        package["name"] if package["any_version"] else f"{package['name']}={package['version']}" for package in packages
    ]
    apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
    return [
        [*apt, *_EVERY_INDEX, "update"],
        [*apt, "install", "--yes", "--no-install-recommends", *asked],
        [*apt, "clean"],
        ["find", _LISTS, "-mindepth", "1", "-delete"],
    ]


def installed_versions(root: Path) -> dict[str, set[str]]:
    """Returns the versions of installed packages by name, one for each architecture; nothing of the image is run."""
    found: dict[str, set[str]] = {}
    record = root / _STATUS
    text = record.read_text(encoding="utf-8", errors="surrogateescape") if record.is_file() else ""
    for stanza in text.split("\n\n"):
        # A line that starts with a space goes on with the field before it.
        lines = (line.partition(": ") for line in stanza.splitlines() if not line.startswith((" ", "\t")))
        fields = {name: value for name, _, value in lines}
        if fields.get("Status", "").endswith(_INSTALLED):
            found.setdefault(fields["Package"], set()).add(fields["Version"])
    return found


def check_debian(packages: list[dict[str, Any]], root: Path) -> list[Check]:
    """Compares the packages that steps install with dpkg's record; one that may have any version is noted with its own.

    Args:
        packages: name, version and any_version as in spec/chain.py.
        root: of the image.
    """
    if not packages:
        return []
    found = installed_versions(root)
    return [_check(package, found.get(package["name"], set())) for package in packages]


def _check(package: dict[str, Any], versions: set[str]) -> Check:
    subject, shown = f"Debian package {package['name']}", ", ".join(sorted(versions))
    if not versions:
        expected = package["version"] or "any version"
        return failed(subject, "not installed", expected, "a later step or package removed it: install it after that")
    if package["any_version"]:
        return Check(subject, "noted", f"{shown}: not pinned (any_version), another build may have another")
    if versions != {package["version"]}:
        return failed(subject, shown, package["version"], "another step moved it: name one version in both steps")
    return passed(subject, shown)
