"""Pins the base of an image chain: asks the registry which digest its tag has now and writes it into chain.yaml."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from ops.errors import OperationError
from spec.errors import SpecificationError
from spec.yaml_files import read_yaml

_ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_DOCKER_HUB = "registry-1.docker.io"
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_PATIENCE_SECONDS = 30


@dataclass(frozen=True)
class Pinned:
    """What a pin changed.

    Attributes:
        chain: its name.
        image: repository and tag.
        before: the digest that stood there.
        digest: the one that the tag has now.
        platforms: that the digest holds, such as `linux/arm64`; empty where the registry does not say.
    """

    chain: str
    image: str
    before: str | None
    digest: str
    platforms: tuple[str, ...]


def pin(folder: Path) -> Pinned:
    """Resolves the tag of a chain's base and writes its digest into chain.yaml, of which nothing else changes.

    Args:
        folder: of the chain.

    Raises:
        OperationError: the chain has no base with a tag, or the registry does not answer with a digest.
    """
    file = folder / "chain.yaml"
    try:
        base = (read_yaml(file, f"patches/{folder.name}/chain.yaml") or {}).get("base") or {}
    except SpecificationError as error:
        raise OperationError(str(error)) from None
    repository, tag = base.get("repository"), base.get("tag")
    if not repository or not tag:
        raise OperationError(
            f"patches/{folder.name}/chain.yaml: base: {base or None}: only a base with repository and tag can be "
            "pinned: add both, as in `repository: vllm/vllm-openai` and `tag: v0.32.0`"
        )
    digest, platforms = resolve(repository, tag)
    file.write_text(with_digest(file.read_text(encoding="utf-8"), digest), encoding="utf-8")
    return Pinned(folder.name, f"{repository}:{tag}", base.get("digest"), digest, platforms)


def with_digest(text: str, digest: str) -> str:
    """Returns the text of a chain.yaml with this digest of its base; comments and order stay."""
    if re.search(r"^  digest:", text, re.MULTILINE):
        return re.sub(r"^(  digest:\s*)\S+", rf"\g<1>{digest}", text, count=1, flags=re.MULTILINE)
    return re.sub(r"^(  tag:.*)$", rf"\g<1>\n  digest: {digest}", text, count=1, flags=re.MULTILINE)


def resolve(repository: str, tag: str) -> tuple[str, tuple[str, ...]]:
    """Asks a registry for the digest of a tag and the platforms behind it.

    Raises:
        OperationError: the registry cannot be reached, does not know the tag, or gives no digest.
    """
    host, name = _host_and_name(repository)
    url = f"{'http' if _is_local(host) else 'https'}://{host}/v2/{name}/manifests/{tag}"
    try:
        with httpx.Client(timeout=_PATIENCE_SECONDS, follow_redirects=True) as client:
            response = client.get(url, headers={"Accept": _ACCEPT})
            if response.status_code == httpx.codes.UNAUTHORIZED:
                token = _token(client, response.headers.get("WWW-Authenticate", ""))
                response = client.get(url, headers={"Accept": _ACCEPT, "Authorization": f"Bearer {token}"})
            response.raise_for_status()
    except httpx.HTTPError as error:
        raise OperationError(f"{repository}:{tag}: {host} gives no digest for it: {error}") from None
    digest = response.headers.get("Docker-Content-Digest", "")
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise OperationError(
            f"{repository}:{tag}: {host} answered without a digest (Docker-Content-Digest: {digest!r})"
        )
    return digest, _platforms(response.json())


def _host_and_name(repository: str) -> tuple[str, str]:
    first, _, rest = repository.partition("/")
    if rest and ("." in first or ":" in first):
        return first, rest
    return _DOCKER_HUB, repository if rest else f"library/{repository}"


def _is_local(host: str) -> bool:
    return host.partition(":")[0] in ("localhost", "127.0.0.1")


def _token(client: httpx.Client, challenge: str) -> str:
    """Gets what a registry wants to be shown: an anonymous token for pulling."""
    words = dict(_CHALLENGE.findall(challenge))
    realm = words.pop("realm", None)
    if realm is None:
        raise OperationError(f"the registry wants credentials of a kind that is not known here: {challenge!r}")
    answer = client.get(realm, params=words).raise_for_status().json()
    return answer.get("token") or answer["access_token"]


def _platforms(manifest: dict[str, Any]) -> tuple[str, ...]:
    found = (entry.get("platform") or {} for entry in manifest.get("manifests", ()))
    named = (f"{one.get('os')}/{one.get('architecture')}" for one in found if one.get("os") not in (None, "unknown"))
    return tuple(dict.fromkeys(named))
