"""What the router's image is made of."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from spec.base import Strict, content_hash

_RECIPE_VERSION = 1
"""Another one is another image of the same packages."""


def _ends_with_slash(text: str) -> str:
    if not text.startswith(("http://", "https://")) or not text.endswith("/"):
        raise ValueError("a mirror is an address that begins with http:// or https:// and ends with /")
    return text


class RouterPackage(Strict):
    """A Debian package by its content.

    Attributes:
        path: below a mirror: the archive's name (`debian`, `debian-security`) and the path in it.
        sha256: of the file.
    """

    path: str = Field(pattern=r"^debian(-security)?/pool/[A-Za-z0-9/+._~-]+\.deb$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class RouterSource(Strict):
    """What the router's image is made of (catalog/routers/NAME.yaml).

    Attributes:
        version: of the router.
        mirrors: where packages are looked for, in this order; `{archive}` stands for the first part of a path.
        packages: by Debian's name of the architecture.
    """

    version: str
    mirrors: tuple[Annotated[str, AfterValidator(_ends_with_slash)], ...] = Field(min_length=1)
    packages: dict[Literal["amd64", "arm64"], tuple[RouterPackage, ...]]

    @property
    def identity(self) -> str:
        """Hash of all that goes into the image, whatever mirror it comes from."""
        return content_hash([_RECIPE_VERSION, self.model_dump(mode="json", include={"packages"})])

    @property
    def reference(self) -> str:
        """The image's tag."""
        return f"gb10-serving/router:{self.identity[:16]}"
