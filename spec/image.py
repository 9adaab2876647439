"""The image that ranks run: where it comes from and how the engine is started in it."""

from pydantic import Field

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


class ImageMount(Strict):
    """A folder of the node that the engine in this image needs, mounted read-only."""

    source: str
    target: str


class Image(Strict):
    """An image of the catalogue (catalog/images/NAME.yaml).

    Attributes:
        debootstrap: how the base is made.
        vllm_version: the vLLM whose flags this image takes.
        entrypoint: argv that starts the engine's server, before its own arguments.
        environment: variables that the engine needs in this image.
        mounts: folders of the node that the image needs.
    """

    debootstrap: Debootstrap
    vllm_version: str
    entrypoint: tuple[str, ...] = Field(min_length=1)
    environment: dict[str, str] = {}
    mounts: tuple[ImageMount, ...] = ()

    @property
    def recipe_hash(self) -> str:
        """Identity of the base: the hash of all that goes into it."""
        return content_hash(self.debootstrap.model_dump(mode="json"))

    @property
    def reference(self) -> str:
        """The tag under which the image is known on every node; it carries the recipe's hash."""
        return f"gb10-serving/base:{self.recipe_hash[:16]}"
