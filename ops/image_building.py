"""Builds an image chain on one node, a step at a time; what is there with the same identity is not built again."""

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.errors import OperationError
from ops.places import cache_folder
from ops.remote import run_on_node, stream_to_node
from ops.runtime_package import RUNTIME_FOLDER
from runtime.common.image_identity import image_identity
from spec.chain import PatchChain, PatchStep
from spec.connection import Connection
from spec.dockerfile import (
    IDENTITY_LABEL,
    VERIFY_REPORT,
    BuildContext,
    ContextFile,
    Expected,
    Start,
    build_context,
    finished_identity,
    finished_reference,
    report_label,
)
from spec.release import BasePlan

_LONG_SECONDS = 4 * 3600
_CHUNK_BYTES = 1 << 20
_GRACE_SECONDS = 60
"""What a node may take beside the build itself."""


@dataclass(frozen=True)
class Builder:
    """The node that builds.

    Attributes:
        connection: how it is reached.
        storage_folder: our folder on it.
        step_timeout_seconds: how long the build of one step may take.
    """

    connection: Connection
    storage_folder: str
    step_timeout_seconds: int

    def run(
        self, verb: str, request: dict[str, Any], payload: Iterator[bytes] | tuple[()] = (), seconds: int = 120
    ) -> Any:
        """Runs a verb of runtime/ on it."""
        return run_on_node(self.connection, self.storage_folder, verb, request, payload, seconds)

    def content(self, reference: str) -> dict[str, Any] | None:
        """Returns identity, layers and labels of an image that it has."""
        found = self.run("image-identity", {"reference": reference})
        return None if found["identity"] is None else found

    def built(self, reference: str, identity: str) -> dict[str, Any] | None:
        """Returns an image if it has it under its tag and it says that it is the one; a tag alone proves nothing."""
        found = self.content(reference)
        return found if found and found["labels"].get(IDENTITY_LABEL) == identity else None


def ensure_base(builder: Builder, base: BasePlan) -> dict[str, Any]:
    """Brings the base of an image to the node that builds, and returns what it is.

    Raises:
        OperationError: it is not on this controller, or the registry did not give it.
    """
    if base.pull is not None:
        return builder.run("image-pull", {"reference": base.reference, "pull": base.pull}, seconds=_LONG_SECONDS)
    archive = cache_folder() / str(base.archive)
    if not archive.is_file():
        raise OperationError(
            f"{base.reference} is not on this controller: {archive} does not exist. For the virtual fabric "
            "`./fleet lab up` makes it"
        )
    wanted, found = archive_identity(archive), builder.content(base.reference)
    if found is None or found["identity"] != wanted:
        stream_to_node(builder.connection, "docker load --quiet", archive, _LONG_SECONDS)
        found = builder.content(base.reference)
    if found is None or found["identity"] != wanted:
        raise OperationError(
            f"{builder.connection.node} loaded {base.reference} and holds {found and found['identity']}, sent was "
            f"{wanted}: its image store is damaged, look at `docker image inspect` there"
        )
    return found


def build_step(builder: Builder, chain: PatchChain, base: BasePlan, step: PatchStep) -> dict[str, Any]:
    """Builds the image of one step, and of those before it that the node no longer has, and returns what it is.

    Raises:
        OperationError: the build failed; the error names the step and holds the last lines of its log.
    """
    if found := builder.built(step.reference, step.identity):
        return found
    start = _start(builder, chain, base, step.position - 1)
    for before in chain.steps[start.steps : step.position]:
        request = {
            **_request(builder, before.slug, before.identity),
            "reference": before.reference,
            "parent": start.reference,
            "network": "host" if before.needs_network else "none",
        }
        found = _build(builder, request, _both(chain, start, before.position, None))
        start = Start(reference=before.reference, steps=before.position)
    assert found is not None
    return found


def build_verified(builder: Builder, chain: PatchChain, base: BasePlan, expected: Expected) -> dict[str, Any]:
    """Verifies the image of the last step from inside, puts the report on it as a label and returns what it is.

    Raises:
        OperationError: the image is not what its chain says; the error lists every check that failed.
    """
    identity, reference = finished_identity(chain, expected), finished_reference(chain, expected)
    if found := builder.built(reference, identity):
        return found
    last = chain.steps[-1]
    build_step(builder, chain, base, last)
    start = Start(reference=last.reference, steps=len(chain.steps))
    unlabelled = f"gb10-serving/unlabelled:{identity[:16]}"
    request = {
        **_request(builder, "verify", identity),
        "reference": unlabelled,
        "parent": start.reference,
        "read": VERIFY_REPORT,
    }
    report = _build(builder, request, _both(chain, start, None, expected))["text"]
    labelled = BuildContext(dockerfile=report_label(unlabelled, report), files=())
    request |= {"name": "label", "reference": reference, "adds_layers": False, "read": None}
    found = _build(builder, request, {"buildkit": labelled, "classic": labelled})
    builder.run("image-untag", {"reference": unlabelled})
    return found


def archive_identity(archive: Path) -> str:
    """Returns the identity of the image in a `docker save` file."""
    with tarfile.open(archive) as tar:
        manifest = _json_member(tar, "manifest.json")
        config = _json_member(tar, manifest[0]["Config"])
    return image_identity(config["rootfs"]["diff_ids"], config.get("config") or {}, config["architecture"])


def _json_member(tar: tarfile.TarFile, name: str) -> Any:
    member = tar.extractfile(name)
    assert member is not None
    return json.load(member)


def _request(builder: Builder, name: str, identity: str) -> dict[str, Any]:
    return {
        "storage_folder": builder.storage_folder,
        "name": name,
        "identity": identity,
        "identity_label": IDENTITY_LABEL,
        "adds_layers": True,
        "network": "none",
        "log": f"{builder.storage_folder}/logs/images/{name}-{identity[:16]}.log",
        "limit_seconds": builder.step_timeout_seconds,
        "read": None,
    }


def _start(builder: Builder, chain: PatchChain, base: BasePlan, steps: int) -> Start:
    """Returns the latest image to build on: that of an earlier step, or the base."""
    for step in reversed(chain.steps[:steps]):
        if builder.built(step.reference, step.identity):
            return Start(reference=step.reference, steps=step.position)
    ensure_base(builder, base)
    return Start(reference=base.reference, steps=0)


def _both(chain: PatchChain, start: Start, until: int | None, expected: Expected | None) -> dict[str, BuildContext]:
    return {
        "buildkit": build_context(
            chain, RUNTIME_FOLDER, builder="buildkit", until=until, start=start, expected=expected
        ),
        "classic": build_context(chain, RUNTIME_FOLDER, builder="classic", until=until, start=start, expected=expected),
    }


def _build(builder: Builder, request: dict[str, Any], contexts: dict[str, BuildContext]) -> dict[str, Any]:
    seconds = builder.step_timeout_seconds + _GRACE_SECONDS
    return builder.run("image-build", request, _context_tar(contexts), seconds)


def _context_tar(contexts: dict[str, BuildContext]) -> Iterator[bytes]:
    """Yields the context as a tar: a Dockerfile for each builder, and the files, which are the same for both."""
    for builder, context in contexts.items():
        yield from _member(ContextFile(path=f"Dockerfile.{builder}", text=context.dockerfile))
    for file in contexts["buildkit"].files:
        yield from _member(file)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _member(file: ContextFile) -> Iterator[bytes]:
    """Yields one file, without time and owner, so that the same context makes the same layer inputs."""
    member = tarfile.TarInfo(file.path)
    text = None if file.text is None else file.text.encode()
    member.size = len(text) if text is not None else Path(str(file.source)).stat().st_size
    yield member.tobuf(format=tarfile.PAX_FORMAT)
    with io.BytesIO(text) if text is not None else Path(str(file.source)).open("rb") as content:
        while chunk := content.read(_CHUNK_BYTES):
            yield chunk
    yield bytes(-member.size % tarfile.BLOCKSIZE)
