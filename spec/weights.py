"""Where the weights of a deployment come from, as a stack file says it, and where a rank finds them."""

from typing import Annotated, Literal

from pydantic import Field

from spec.base import Strict
from spec.cluster import Name
from spec.model import Model

Path = Annotated[str, Field(pattern=r"^/[A-Za-z0-9/_.@+-]*[A-Za-z0-9_.@+-]$")]
"""A path on a node."""

MODEL_FOLDER = "/model"
DRAFTER_FOLDER = "/drafter"
"""What a rank sees, whatever the node calls the folders."""

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""Every rank has this: all that it needs is on its node, and a rank that asks the internet may get another revision."""


class FromController(Strict):
    """A folder on the controller.

    Attributes:
        folder: `~` allowed; none is `models/REVISION` below the controller's cache folder.
    """

    kind: Literal["controller"] = "controller"
    folder: str | None = Field(default=None, pattern=r"^(/|~/)([^\n]*[^/\n])?$")


class FromNode(Strict):
    """A node of the cluster that has them, whether it runs a rank or not.

    Attributes:
        node: its name.
        folder: where it has them; a folder `models--OWNER--NAME` is one of the cache of Hugging Face.
    """

    kind: Literal["node"]
    node: Name
    folder: Path


class FromHuggingFace(Strict):
    """A download on one node, from where the others get them.

    Attributes:
        node: which one has a way to the internet.
        python: on that node, with the module huggingface_hub.
        endpoint: of a mirror; none is huggingface.co.
    """

    kind: Literal["huggingface"]
    node: Name
    python: str = "python3"
    endpoint: str | None = Field(default=None, pattern=r"^https?://[^@]+$")


class FromShare(Strict):
    """An NFS share that every node has mounted: nothing is copied, and every rank reads over the network.

    Attributes:
        export: `SERVER:/PATH`, as /proc/mounts of a node shows it.
        folder: where it is on every node, down to the weights.
    """

    kind: Literal["nfs"]
    export: str = Field(pattern=r"^[^\s:]+:/\S*$")
    folder: Path


WeightsChoice = Annotated[FromController | FromNode | FromHuggingFace | FromShare, Field(discriminator="kind")]


def layout_of(choice: WeightsChoice) -> Literal["flat", "huggingface"]:
    """Returns how the folder is laid out; Hugging Face's cache calls a repository's folder `models--OWNER--NAME`."""
    if isinstance(choice, FromHuggingFace):
        return "huggingface"
    last = (choice.folder or "").rsplit("/", 1)[-1]
    return "huggingface" if last.startswith("models--") else "flat"


def path_in_container(choice: WeightsChoice, model: Model, mounted: str) -> str:
    """Returns the folder that the engine is pointed to.

    The whole repository's folder is mounted, because the files of a snapshot are links into the blobs beside it
    (seed 000, "Traps around the launch").
    """
    return f"{mounted}/snapshots/{model.revision}" if layout_of(choice) == "huggingface" else mounted
