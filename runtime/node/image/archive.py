"""Composes what `docker load` reads from the layers that arrived and those that the node has already."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from runtime.node.image.missing import Held, layer_file
from runtime.node.image.store import CONTAINERD
from runtime.node.progress import tell

_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
_INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
# What containerd calls an image that Docker names without a registry.
_DEFAULT_REGISTRY = "docker.io/"


@dataclass(frozen=True)
class Parts:
    """What an image is composed of.

    Attributes:
        config: its configuration, byte for byte.
        layers: diff ids, lowest first.
        held: those of the lowest that the node has.
        folder: where the files of the others are.
    """

    config: bytes
    layers: list[str]
    held: Held
    folder: Path

    @property
    def sent(self) -> list[str]:
        """Diff ids of the layers that are in the folder, each once."""
        return list(dict.fromkeys(self.layers[self.held.count :]))


class _Once:
    """Passes bytes on and says once that nobody reads them: tarfile writes the end of its archive even so."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self._broken = False

    def write(self, data: bytes) -> int:
        if self._broken:
            return len(data)
        try:
            return self._target.write(data)
        except BrokenPipeError:
            self._broken = True
            raise


def write_archive(kind: str, parts: Parts, reference: str, target: IO[bytes]) -> None:
    """Writes the archive for an image store of this kind as a stream; the image in it is named `reference`.

    Raises:
        BrokenPipeError: nobody reads it any more.
    """
    with tarfile.open(fileobj=cast(IO[bytes], _Once(target)), mode="w|", bufsize=1 << 20) as archive:
        if kind == CONTAINERD:
            _write_layout(archive, parts, reference)
        else:
            _write_classic(archive, parts, reference)


def _write_classic(archive: tarfile.TarFile, parts: Parts, reference: str) -> None:
    """The classic store opens a layer's file only if it has no layer of that chain: held ones are named, not there."""
    config_name = f"{hashlib.sha256(parts.config).hexdigest()}.json"
    names = [layer_file(diff_id) for diff_id in parts.layers]
    manifest = [{"Config": config_name, "RepoTags": [reference], "Layers": names}]
    _add_bytes(archive, config_name, parts.config)
    _add_bytes(archive, "manifest.json", _json(manifest))
    _add_layers(archive, parts, layer_file)


def _write_layout(archive: tarfile.TarFile, parts: Parts, reference: str) -> None:
    """The containerd store takes a manifest that names blobs which it has: held layers are named by those."""
    held = [{"mediaType": blob.media_type, "digest": blob.digest, "size": blob.size_bytes} for blob in parts.held.blobs]
    sent = [_layer_descriptor(parts.folder, diff_id) for diff_id in parts.layers[parts.held.count :]]
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST_TYPE,
            "config": _descriptor(_CONFIG_TYPE, parts.config),
            "layers": [*held, *sent],
        }
    )
    name = {"io.containerd.image.name": _DEFAULT_REGISTRY + reference}
    index = {
        "schemaVersion": 2,
        "mediaType": _INDEX_TYPE,
        "manifests": [{**_descriptor(_MANIFEST_TYPE, manifest), "annotations": name}],
    }
    _add_bytes(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
    _add_bytes(archive, "index.json", _json(index))
    for content in (manifest, parts.config):
        _add_bytes(archive, f"blobs/sha256/{hashlib.sha256(content).hexdigest()}", content)
    _add_layers(archive, parts, lambda diff_id: f"blobs/sha256/{diff_id.removeprefix('sha256:')}")


def _layer_descriptor(folder: Path, diff_id: str) -> dict[str, Any]:
    return {"mediaType": _LAYER_TYPE, "digest": diff_id, "size": (folder / layer_file(diff_id)).stat().st_size}


def _descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    return {
        "mediaType": media_type,
        "digest": f"sha256:{hashlib.sha256(content).hexdigest()}",
        "size": len(content),
    }


def _json(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _add_layers(archive: tarfile.TarFile, parts: Parts, name_in_archive: Callable[[str], str]) -> None:
    for number, diff_id in enumerate(parts.sent, start=1):
        path = parts.folder / layer_file(diff_id)
        member = tarfile.TarInfo(name_in_archive(diff_id))
        member.size = path.stat().st_size
        with path.open("rb") as content:
            archive.addfile(member, content)
        tell(f"layer {number} of {len(parts.sent)} given to Docker")
