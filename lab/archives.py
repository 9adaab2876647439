"""Docker archives: one layer made of a root folder, written without any Docker engine."""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

_FIXED_TIME = 0
_CREATED = "1970-01-01T00:00:00Z"
# The engine provides what is in them.
_EMPTY_FOLDERS = frozenset({"dev", "proc", "sys", "run", "tmp"})
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class _HashingWriter(io.RawIOBase):
    """Passes bytes on to a file and hashes them."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._hash.update(data)
        return self._file.write(data)

    @property
    def hexadecimal(self) -> str:
        """SHA-256 of all that was written."""
        return self._hash.hexdigest()


def fixed_time(time: float, made_after: float) -> int:
    """Returns the time that a file gets in an archive, which does not tell when the archive was made.

    A file from a package keeps the package's time, which compiled Python files refer to; one that was made while
    installing gets a fixed time.

    Args:
        time: the file's own time.
        made_after: when installing began.
    """
    return _FIXED_TIME if time >= made_after else int(time)


def _paths_below(root: Path) -> Iterator[Path]:
    """Walks a root folder in an order that depends on names alone."""
    for folder, folders, files in os.walk(root):
        folders.sort()
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        yield from sorted(Path(folder) / name for name in [*folders, *files])
        folders[:] = [] if Path(folder).relative_to(root).as_posix() in _EMPTY_FOLDERS else folders
        folders[:] = [name for name in folders if name not in links]


def _member(tar: tarfile.TarFile, path: Path, root: Path, made_after: float) -> tarfile.TarInfo | None:
    """Describes a file; none for a socket."""
    member = tar.gettarinfo(path, arcname=path.relative_to(root).as_posix())
    if member is None:
        return None
    member.uname = member.gname = ""
    member.mtime = fixed_time(member.mtime, made_after)
    return member


def _add(tar: tarfile.TarFile, path: Path, member: tarfile.TarInfo) -> None:
    if member.isreg():
        with path.open("rb") as content:
            tar.addfile(member, content)
    else:
        tar.addfile(member)


def write_layer(root: Path, target: Path, made_after: float) -> str:
    """Writes a root folder as one layer.

    Args:
        root: the root folder.
        target: the layer's file.
        made_after: files that were changed later get a fixed time.

    Returns:
        The layer's diff id ("sha256:" and 64 hexadecimal digits).
    """
    with target.open("wb") as file:
        writer = _HashingWriter(file)
        with tarfile.open(fileobj=writer, mode="w|", format=tarfile.GNU_FORMAT, bufsize=1 << 20) as tar:
            for path in _paths_below(root):
                if path.relative_to(root).parts[0] in _EMPTY_FOLDERS and path.parent != root:
                    continue
                member = _member(tar, path, root, made_after)
                if member is not None:
                    _add(tar, path, member)
        return f"sha256:{writer.hexadecimal}"


def image_config(diff_ids: Sequence[str], architecture: str) -> bytes:
    """Returns the configuration of an image: it holds nothing that changes from one making to the next."""
    config = {
        "architecture": architecture,
        "os": "linux",
        "created": _CREATED,
        "config": {"Env": [f"PATH={_PATH}"], "Cmd": ["/bin/sh"]},
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
        "history": [{"created": _CREATED, "created_by": "gb10-serving lab"} for _ in diff_ids],
    }
    return json.dumps(config, sort_keys=True, separators=(",", ":")).encode()


def _add_bytes(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _add_layer(tar: tarfile.TarFile, name: str, layer: Path) -> None:
    member = tarfile.TarInfo(name)
    member.size = layer.stat().st_size
    with layer.open("rb") as content:
        tar.addfile(member, content)


def write_docker_archive(layer: Path, diff_id: str, reference: str, architecture: str, target: Path) -> None:
    """Writes what `docker load` reads: a manifest, the configuration and one layer.

    Args:
        layer: the layer's file.
        diff_id: its diff id.
        reference: the tag that the image gets.
        architecture: as Docker names it.
        target: the archive.
    """
    config = image_config([diff_id], architecture)
    config_name, layer_name = _config_name(config), _layer_name(diff_id)
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as tar:
        _add_bytes(tar, "manifest.json", _manifest(config_name, reference, [layer_name]))
        _add_bytes(tar, config_name, config)
        _add_layer(tar, layer_name, layer)


def extend_docker_archive(archive: Path, layer: Path, diff_id: str, reference: str, target: Path) -> None:
    """Writes an archive with the layers of another one and one more on top.

    Args:
        archive: one that `write_docker_archive` wrote.
        layer: the new layer's file.
        diff_id: its diff id.
        reference: the tag that the image gets.
        target: the new archive.
    """
    with tarfile.open(archive) as lower, tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as tar:
        (manifest,) = json.loads(_content(lower, "manifest.json"))
        lower_config = json.loads(_content(lower, manifest["Config"]))
        config = image_config([*lower_config["rootfs"]["diff_ids"], diff_id], lower_config["architecture"])
        config_name, layer_name = _config_name(config), _layer_name(diff_id)
        layers = [*manifest["Layers"], layer_name]
        _add_bytes(tar, "manifest.json", _manifest(config_name, reference, layers))
        _add_bytes(tar, config_name, config)
        for name in manifest["Layers"]:
            member = lower.getmember(name)
            tar.addfile(member, lower.extractfile(member))
        _add_layer(tar, layer_name, layer)


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    member = tar.extractfile(name)
    assert member is not None
    return member.read()


def _config_name(config: bytes) -> str:
    return f"{hashlib.sha256(config).hexdigest()}.json"


def _layer_name(diff_id: str) -> str:
    return f"{diff_id.removeprefix('sha256:')}/layer.tar"


def _manifest(config_name: str, reference: str, layers: Sequence[str]) -> bytes:
    return json.dumps([{"Config": config_name, "RepoTags": [reference], "Layers": list(layers)}]).encode()
