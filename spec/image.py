"""The image that ranks run: where it comes from and how the engine is started in it."""

from typing import Any, Literal

from pydantic import Field, model_validator

from spec.base import Strict, content_hash


class Debootstrap(Strict):
    """A base image made from Debian packages on the controller; its identity is this recipe.

    Attributes:
        suite: Debian release.
        packages: what is installed beside the minimal system.
        recipe_version: raised when the builder in lab/ changes what it makes from the same packages.
    """

    suite: str
    packages: tuple[str, ...]
    recipe_version: int = 1


class Registry(Strict):
    """An image of a registry, by content.

    Attributes:
        repository: registry and name, without tag.
        digest: of the manifest for our platform.
        tag: under which its author publishes it, for people: a tag can move.
    """

    repository: str = Field(pattern=r"^[a-z0-9][a-z0-9./_-]*$")
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    tag: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_pinned(cls, data: Any) -> Any:
        if isinstance(data, dict) and "digest" not in data:
            raise ValueError(
                f"{data.get('repository')}:{data.get('tag', 'latest')} is named by a tag alone, and a tag can "
                "move: nodes would run different images. Pin it: `docker buildx imagetools inspect` prints the digests"
            )
        return data

    @property
    def pull_reference(self) -> str:
        """What `docker pull` is asked for."""
        return f"{self.repository}@{self.digest}"


class Chain(Strict):
    """A base of a registry with patches on top, built once.

    Attributes:
        base: what the first step starts from.
        steps: names of the patches, in order.
    """

    base: Registry
    steps: tuple[str, ...] = Field(min_length=1)


class ImageMount(Strict):
    """A folder of the node that the engine in this image needs, mounted read-only."""

    source: str
    target: str


class Image(Strict):
    """An image of the catalogue (catalog/images/NAME.yaml): exactly one of debootstrap, registry and chain.

    Attributes:
        debootstrap: a base made here.
        registry: an image as it is published.
        chain: a published one with our patches.
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

    debootstrap: Debootstrap | None = None
    registry: Registry | None = None
    chain: Chain | None = None
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
        if sum(origin is not None for origin in (self.debootstrap, self.registry, self.chain)) != 1:
            raise ValueError("an image has exactly one of the keys debootstrap, registry and chain")
        return self

    @property
    def recipe_hash(self) -> str:
        """Identity of the image: the hash of all that it is made from."""
        origin = self.debootstrap or self.registry or self.chain
        assert origin is not None
        return content_hash(origin.model_dump(mode="json", exclude={"tag"}))

    @property
    def reference(self) -> str:
        """The tag under which the image is known on every node; it carries the recipe's hash."""
        kind = "base" if self.debootstrap else "published" if self.registry else "chain"
        return f"gb10-serving/{kind}:{self.recipe_hash[:16]}"
