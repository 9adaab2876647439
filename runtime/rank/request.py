"""What a supervisor is asked to do: the rank's part of a Release, as JSON in its only argument."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.rank.front import FrontRequest


@dataclass(frozen=True)
class Peer:
    """Another rank of the group, or this one.

    Attributes:
        rank: its number; 0 is the head.
        node: the node's name, for people.
        address: on the fabric.
        port: of its supervisor's status endpoint.
    """

    rank: int
    node: str
    address: str
    port: int

    @property
    def name(self) -> str:
        """How people call it."""
        return f"rank {self.rank}{' (head)' if self.rank == 0 else ''} on {self.node}"


@dataclass(frozen=True)
class GuardLimits:
    """When the host is in danger.

    Attributes:
        floor_percent: share of MemTotal; with less MemAvailable the engine is killed.
        backstop_percent: the engine is killed, too, when the trend leads below this share before the next look.
    """

    floor_percent: float
    backstop_percent: float


@dataclass(frozen=True)
class PageCache:
    """When the checkpoint's pages are given back while the engine starts.

    Attributes:
        release: `never`, `above-threshold` or `always`.
        threshold_bytes: for `above-threshold`: the size of the node's page cache.
        interval_seconds: between two looks.
        folders: the checkpoint's.
    """

    release: str
    threshold_bytes: int
    interval_seconds: float
    folders: tuple[str, ...]


@dataclass(frozen=True)
class Patience:
    """How long a supervisor waits, in seconds.

    Attributes:
        fabric: for a link that comes up late.
        memory: for memory that lags behind an engine that has ended.
        gather: for peers.
        start: for the engine to serve.
        stop: for the engine to end when it is asked to.
        silence_while_starting, silence_while_serving: for a peer that does not answer.
    """

    fabric: float
    memory: float
    gather: float
    start: float
    stop: float
    silence_while_starting: float
    silence_while_serving: float


@dataclass(frozen=True)
class Restarts:
    """How often a group may start again by itself within a window, before somebody has to look."""

    most: int
    window_seconds: float


@dataclass(frozen=True)
class Limits:
    """Process limits that the engine needs."""

    open_files: int
    locked_memory_bytes: int
    shared_memory_bytes: int


@dataclass(frozen=True)
class RankRequest:
    """One rank.

    Attributes:
        stack, group: whose it is.
        generation: hash of the group: other ranks are of this generation or refused.
        rank: this one's number.
        peers: all ranks in order, with this one.
        argv: the engine.
        before: commands that must have succeeded before the engine, in this order.
        awaited_accelerators: how many Ray must know of before the engine starts; 0 waits for none.
        shared_arguments: hash of what all ranks are started with.
        environment: names of the variables that the Release sets, values for those that must not come from an image.
        fabric: for runtime.fabric: `kind`, `rails`.
        sysfs_folder: where devices are looked for.
        serves: whether the head answers HTTP; an offline job ends by itself.
        http_port: where the head answers.
        required_bytes: what the plan needs: of MemAvailable, or of each accelerator's own memory.
        accelerator_memory: whether accelerators have memory of their own.
        record_folder: kept through restarts of the container.
        secrets_folder: files `group-key` and, if given, `api-key` and `hf-token`.
        front: what a head tells the router of its pool; none without one, and for workers.
    """

    stack: str
    group: str
    generation: str
    rank: int
    peers: tuple[Peer, ...]
    argv: tuple[str, ...]
    before: tuple[tuple[str, ...], ...]
    awaited_accelerators: int
    shared_arguments: str
    environment: Mapping[str, str]
    fabric: Mapping[str, Any]
    sysfs_folder: Path
    serves: bool
    http_port: int
    required_bytes: int
    accelerator_memory: bool
    guard: GuardLimits
    page_cache: PageCache
    patience: Patience
    restarts: Restarts
    limits: Limits
    record_folder: Path
    secrets_folder: Path
    front: FrontRequest | None = None

    @property
    def own(self) -> Peer:
        """This rank among its peers."""
        return self.peers[self.rank]

    @property
    def others(self) -> tuple[Peer, ...]:
        """The other ranks."""
        return tuple(peer for peer in self.peers if peer.rank != self.rank)

    @staticmethod
    def from_plain(data: Mapping[str, Any]) -> "RankRequest":
        """Reads a request from JSON data.

        Raises:
            TypeError: a key is missing or unknown.
        """
        page_cache = data["page_cache"]
        return RankRequest(
            **{
                **data,
                "peers": tuple(Peer(**peer) for peer in data["peers"]),
                "argv": tuple(data["argv"]),
                "before": tuple(tuple(step) for step in data["before"]),
                "guard": GuardLimits(**data["guard"]),
                "page_cache": PageCache(**{**page_cache, "folders": tuple(page_cache["folders"])}),
                "patience": Patience(**data["patience"]),
                "restarts": Restarts(**data["restarts"]),
                "limits": Limits(**data["limits"]),
                "sysfs_folder": Path(data["sysfs_folder"]),
                "record_folder": Path(data["record_folder"]),
                "secrets_folder": Path(data["secrets_folder"]),
                "front": FrontRequest(**data["front"]) if data.get("front") else None,
            }
        )
