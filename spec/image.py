"""The image that ranks run: where it comes from and how the engine is started in it."""

from typing import Any, Literal

from pydantic import Field, model_validator

from spec.base import Strict, content_hash


class Registry(Strict):
    """An image of a registry, by content.

    Attributes:
        repository: registry and name, without tag.
        digest: of the manifest for our platform.
        tag: under which its author publishes it, for people: a tag can move.
    """

    repository: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*(:[0-9]+)?(/[a-z0-9][a-z0-9._-]*)*$")
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    tag: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_pinned(cls, data: Any) -> Any:
        if isinstance(data, dict) and "digest" not in data:
            raise ValueError(
                f"{data.get('repository')}:{data.get('tag', 'latest')} is named by a tag alone, and a tag can "
                "move: nodes would run different images. `./fleet image pin CHAIN` writes a chain's digest; "
                "`docker buildx imagetools inspect` prints that of another image"
            )
        return data

    @property
    def pull_reference(self) -> str:
        """What `docker pull` is asked for."""
        return f"{self.repository}@{self.digest}"

    @property
    def reference(self) -> str:
        """The tag under which a node that pulled it keeps it."""
        return base_reference({"repository": self.repository, "digest": self.digest})


def base_reference(origin: dict[str, Any]) -> str:
    """Returns the tag of an image that we did not build on another: it carries the hash of where it comes from."""
    return f"gb10-serving/base:{content_hash(origin)[:16]}"


class ImageMount(Strict):
    """A folder of the node that the engine in this image needs, mounted read-only."""

    source: str
    target: str


class Image(Strict):
    """An image of the catalogue (catalog/images/NAME.yaml): exactly one of registry and chain.

    Attributes:
        registry: an image as it is published.
        chain: name of a chain (patches/NAME): a base with our patches, built once.
        engine: which server is in it.
        version: of the engine, as it calls itself.
        flag_table: version of the table that its flags are checked against (catalog/flags); none without one.
        flags_are_of_another_version: the table is that of the nearest release, because this build's own is not known.
        entrypoint: argv that starts the engine, before its own arguments.
        environment: variables that the engine needs in this image.
        mounts: folders of the node that the image needs.
        cache_folder: where the engine keeps what it compiled; kept on the node for each image.
        drafter_placement: how its KV cache was patched for an external drafter (spec.kv_cache.CacheSettings).
        maps_ngram_table: whether a model's n-gram table stays on disk.
    """

    registry: Registry | None = None
    chain: str | None = Field(default=None, pattern=r"^[a-z0-9][a-z0-9.-]*$")
    engine: Literal["vllm", "sglang"] = "vllm"
    version: str
    flag_table: str | None = None
    flags_are_of_another_version: bool = False
    entrypoint: tuple[str, ...] = Field(min_length=1)
    environment: dict[str, str] = {}
    mounts: tuple[ImageMount, ...] = ()
    cache_folder: str | None = Field(default=None, pattern=r"^/[A-Za-z0-9/_.-]+$")
    drafter_placement: Literal["own-region", "shared-slots"] | None = None
    maps_ngram_table: bool = False

    @model_validator(mode="after")
    def _comes_from_one_place(self) -> "Image":
        if (self.registry is None) == (self.chain is None):
            raise ValueError("an image has exactly one of the keys registry and chain")
        return self
