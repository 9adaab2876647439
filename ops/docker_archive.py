"""Docker archives, as `docker load` takes them: written without any Docker engine, the same bytes each time."""

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

_CREATED = "1970-01-01T00:00:00Z"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


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
