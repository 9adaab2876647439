"""The image of the router: a few Debian packages unpacked into one layer, made on the controller for any architecture.

Nothing of it is run here, so a laptop makes the image of an arm64 node; and the node needs no internet.
"""

import hashlib
import io
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from ops.docker_archive import write_docker_archive
from ops.errors import OperationError
from ops.places import cache_folder
from spec.router import PROGRAM
from spec.router_source import RouterPackage, RouterSource

Report = Callable[[str], None]

DEBIAN_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Debian's name of an architecture, which is Docker's, too, by the kernel's."""

_PATIENCE_SECONDS = 60
_MERGED = ("bin", "lib", "lib64", "sbin")
"""Debian 12 keeps these below usr/, with links at the old places, whatever a package says."""


def router_archive(source: RouterSource, machine: str, report: Report) -> Path:
    """Makes the archive of the router's image, as `docker load` takes it, unless it is there.

    Args:
        source: what goes into it.
        machine: architecture of the node, by its kernel's name.
        report: receives progress lines.

    Raises:
        OperationError: no package is known for this architecture, or no mirror has one with its hash.
    """
    architecture = DEBIAN_ARCHITECTURES.get(machine)
    packages = source.packages.get(architecture) if architecture else None  # type: ignore[call-overload]
    if not packages or architecture is None:
        raise OperationError(
            f"the router cannot run on {machine}: catalog/routers/haproxy.yaml has packages for "
            f"{', '.join(source.packages)}. Choose another node under `router/node`"
        )
    archive = cache_folder() / "images" / f"router-{source.identity[:16]}-{architecture}.tar"
    if archive.is_file():
        return archive
    report(f"make {source.reference} for {architecture}: HAProxy {source.version} from {len(packages)} packages")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as name:
        layer, unfinished = Path(name) / "layer.tar", Path(name) / "archive.tar"
        diff_id = _write_layer([_package(source, package) for package in packages], layer)
        write_docker_archive(layer, diff_id, source.reference, architecture, unfinished)
        unfinished.rename(archive)
    return archive


def _package(source: RouterSource, package: RouterPackage) -> bytes:
    """Returns a package's file, from the cache or from the first mirror that has it as it is pinned."""
    kept = cache_folder() / "debian" / package.sha256
    if kept.is_file() and (content := kept.read_bytes()) and _is_pinned(content, package):
        return content
    refused = []
    for mirror in source.mirrors:
        address = mirror.format(archive=package.path.partition("/")[0])
        # The second mirror's address already names the archive.
        path = package.path.partition("/")[2] if "{archive}" in mirror else package.path
        try:
            with urllib.request.urlopen(f"{address}{path.replace('+', '%2b')}", timeout=_PATIENCE_SECONDS) as response:
                content = response.read()
        except OSError as error:
            refused.append(f"{address}: {error}")
            continue
        if _is_pinned(content, package):
            kept.parent.mkdir(parents=True, exist_ok=True)
            unfinished = kept.with_suffix(".unfinished")
            unfinished.write_bytes(content)
            unfinished.replace(kept)
            return content
        refused.append(f"{address} has it with another content")
    raise OperationError(
        f"catalog/routers/haproxy.yaml: {package.path}: no mirror has it with SHA-256 {package.sha256}: "
        f"{'; '.join(refused)}. Put the file at {kept}, name a mirror that has it, or pin newer ones (docs/pools.md)"
    )


def _is_pinned(content: bytes, package: RouterPackage) -> bool:
    return hashlib.sha256(content).hexdigest() == package.sha256


def _write_layer(packages: list[bytes], target: Path) -> str:
    """Writes what the router needs of its packages as one layer and returns its diff id."""
    members = {path: member for package in packages for path, member in _needed(package)}
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as tar:
        for link in _MERGED:
            member = tarfile.TarInfo(link)
            member.type, member.linkname = tarfile.SYMTYPE, f"usr/{link}"
            tar.addfile(member)
        for path in sorted(members):
            member, content = members[path]
            tar.addfile(member, io.BytesIO(content))
    return f"sha256:{hashlib.sha256(target.read_bytes()).hexdigest()}"


def _needed(package: bytes) -> Iterator[tuple[str, tuple[tarfile.TarInfo, bytes]]]:
    """Yields the program and the shared libraries of a package, with neither owner nor time."""
    with tarfile.open(fileobj=io.BytesIO(_data_of(package))) as tar:
        for found in tar:
            path = _merged(found.name)
            if not (found.isfile() or found.issym()) or not _is_needed(path):
                continue
            member = tarfile.TarInfo(path)
            member.type, member.mode, member.linkname = found.type, found.mode, found.linkname
            content = b""
            if found.isfile() and (file := tar.extractfile(found)):
                content = file.read()
            member.size = len(content)
            yield path, (member, content)


def _merged(name: str) -> str:
    path = PurePosixPath(name.removeprefix("./"))
    return f"usr/{path}" if path.parts and path.parts[0] in _MERGED else str(path)


def _is_needed(path: str) -> bool:
    """Tells the program and libraries that lie directly in a library folder; plug-ins lie below."""
    place = PurePosixPath(path)
    in_library_folder = place.parent.as_posix() in ("usr/lib", "usr/lib64") or (
        place.parent.parent.as_posix() == "usr/lib" and place.parent.name.endswith("-linux-gnu")
    )
    return f"/{path}" == PROGRAM or (in_library_folder and ".so" in place.name)


def _data_of(package: bytes) -> bytes:
    """Returns the member `data.tar.*` of a Debian package, which is an `ar` archive."""
    position = 8
    while position < len(package):
        header = package[position : position + 60]
        name, size = header[:16].decode().strip().rstrip("/"), int(header[48:58])
        if name.startswith("data.tar"):
            return package[position + 60 : position + 60 + size]
        position += 60 + size + size % 2
    raise OperationError("a package of catalog/routers/haproxy.yaml holds no data.tar: it is no Debian package")
