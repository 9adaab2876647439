"""Images made by hand: layers, configurations and archives in every form that Docker writes or reads."""

import gzip
import hashlib
import io
import json
import random
import subprocess
import tarfile
from dataclasses import dataclass, field
from functools import cache
from typing import Any


def tar_of(files: dict[str, bytes]) -> bytes:
    """Returns a tar of plain files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@cache
def random_layer(name: str, size_bytes: int) -> bytes:
    """Returns a layer of one file that does not compress; the same name gives the same bytes."""
    return tar_of({name: random.Random(name).randbytes(size_bytes)})


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass(frozen=True)
class HandMade:
    """An image.

    Attributes:
        reference: its name.
        layers: their uncompressed content, lowest first.
        settings: what its configuration says beside a command.
        architecture: as Docker names it.
    """

    reference: str
    layers: tuple[bytes, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    architecture: str = "amd64"

    @property
    def diff_ids(self) -> list[str]:
        return [digest(layer) for layer in self.layers]

    @property
    def config(self) -> bytes:
        return json.dumps(
            {
                "architecture": self.architecture,
                "os": "linux",
                "created": "2026-11-30T00:00:00Z",
                "config": {"Cmd": ["/bin/sh"], "Env": ["A=1"], **self.settings},
                "rootfs": {"type": "layers", "diff_ids": self.diff_ids},
            }
        ).encode()

    def old_archive(self, repository_tags: bool = True) -> bytes:
        """As Docker before 25 writes it: a folder a layer, and a link where an image has a layer twice."""
        config_name = f"{digest(self.config)[7:]}.json"
        buffer, written, names = io.BytesIO(), {}, []
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for number, layer in enumerate(self.layers):
                name = f"{hashlib.sha256(f'{number}'.encode()).hexdigest()}/layer.tar"
                names.append(name)
                if layer in written:
                    link = tarfile.TarInfo(name)
                    link.type, link.linkname = tarfile.SYMTYPE, f"../{written[layer]}"
                    archive.addfile(link)
                else:
                    written[layer] = name
                    _add(archive, name, layer)
                _add(archive, name.replace("layer.tar", "json"), b'{"id": "an old name"}')
            _add(archive, config_name, self.config)
            tags = [self.reference] if repository_tags else None
            _add(archive, "manifest.json", _json([{"Config": config_name, "RepoTags": tags, "Layers": names}]))
        return buffer.getvalue()

    def layout(self, compression: str = "none", nested: bool = False, without: tuple[int, ...] = ()) -> bytes:
        """As Docker from 25 and the containerd store write it.

        Args:
            compression: of the layers: none, gzip or zstd.
            nested: whether the index names an index, which names a manifest for another platform too, as BuildKit's.
            without: numbers of layers whose blobs are absent.
        """
        blobs = [compressed(layer, compression) for layer in self.layers]
        suffix = "" if compression == "none" else f"+{compression}"
        layer_type = f"application/vnd.oci.image.layer.v1.tar{suffix}"
        manifest = _manifest(self.config, [_descriptor(layer_type, blob) for blob in blobs])
        contents = [self.config, manifest, *(blob for number, blob in enumerate(blobs) if number not in without)]
        top = _descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
        if nested:
            attestation_config = b'{"architecture": "unknown", "os": "unknown", "rootfs": {"diff_ids": []}}'
            attestation = _manifest(attestation_config, [])
            other = _descriptor("application/vnd.oci.image.manifest.v1+json", attestation)
            inner = _json({"schemaVersion": 2, "manifests": [other, top]})
            contents += [attestation_config, attestation, inner]
            top = _descriptor("application/vnd.oci.image.index.v1+json", inner)
        top["annotations"] = {"io.containerd.image.name": f"docker.io/{self.reference}"}
        members = {f"blobs/sha256/{digest(content)[7:]}": content for content in contents}
        members["index.json"] = _json({"schemaVersion": 2, "manifests": [top]})
        members["oci-layout"] = _json({"imageLayoutVersion": "1.0.0"})
        return tar_of(dict(sorted(members.items())))


def compressed(layer: bytes, compression: str) -> bytes:
    if compression == "gzip":
        return gzip.compress(layer, mtime=0)
    if compression == "zstd":
        return subprocess.run(["zstd", "-cq"], input=layer, capture_output=True, check=True).stdout
    return layer


def _manifest(config: bytes, layers: list[dict[str, Any]]) -> bytes:
    return _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("application/vnd.oci.image.config.v1+json", config),
            "layers": layers,
        }
    )


def _descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest(content), "size": len(content)}


def _json(document: Any) -> bytes:
    return json.dumps(document).encode()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
