"""What a rank asks of its node's fabric."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KINDS = ("roce", "ethernet", "nvlink", "virtual")
"""As in a stack file; only the first needs RDMA devices."""


@dataclass(frozen=True)
class Rail:
    """One port of the node on the fabric, as the cluster file describes it.

    Attributes:
        address: the node's own IPv4 address on this rail.
        interface: the network device that should carry it.
        hca: the RDMA device of the same port; none leaves it to the address.
    """

    address: str
    interface: str
    hca: str | None = None


@dataclass(frozen=True)
class FabricRequest:
    """What must be found before the engine may start.

    Attributes:
        kind: one of `KINDS`.
        rails: those that the deployment uses; sockets take the first.
        environment: what the Release sets for this rank, without what the image bakes in.
    """

    kind: str
    rails: tuple[Rail, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"the fabric's kind is {self.kind!r}; there are: {', '.join(KINDS)}")
        if not self.rails:
            raise ValueError("a rank needs one rail at least: its address is how other ranks find it")

    @staticmethod
    def from_plain(data: Mapping[str, Any]) -> "FabricRequest":
        """Reads a request from JSON data: `kind`, `rails` (`address`, `interface`, `hca`), `environment`.

        Raises:
            ValueError: the kind is not known, or there is no rail.
            TypeError: a rail has other keys than those.
        """
        rails = tuple(Rail(**rail) for rail in data["rails"])
        return FabricRequest(data["kind"], rails, data.get("environment", {}))
