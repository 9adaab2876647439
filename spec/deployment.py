"""What one stack file says: the names of catalogue entries and what this deployment chooses."""

from pydantic import Field, field_validator

from spec.base import Strict
from spec.cluster import Name
from spec.engine import Engine


class Readiness(Strict):
    """How long a group may take to answer right.

    Attributes:
        start_timeout_seconds: from the start of the head to the first right answer.
        answer_timeout_seconds: for one answer.
    """

    start_timeout_seconds: int = Field(default=3600, gt=0)
    answer_timeout_seconds: int = Field(default=120, gt=0)


class Memory(Strict):
    """What a node must have free before a rank starts.

    Attributes:
        required_bytes: MemAvailable that preflight asks for, what this group's old rank holds counted as free.
    """

    required_bytes: int = Field(gt=0)


class DeploymentConfig(Strict):
    """The key `gb10-serving:deployment` of a stack file.

    Attributes:
        cluster, image, model: names of catalogue entries.
        groups: nodes of each group by its name, rank 0 (the head) first; every group serves the model on its own.
        port: where the head of a group answers HTTP.
        master_port: where the ranks of a group meet.
        stop_grace_seconds: how long a rank may take to end before it is killed.
    """

    cluster: Name
    image: Name
    model: Name
    groups: dict[Name, tuple[Name, ...]] = Field(min_length=1)
    engine: Engine
    memory: Memory
    readiness: Readiness = Readiness()
    port: int = Field(default=8000, ge=1024, le=65535)
    master_port: int = Field(default=29500, ge=1024, le=65535)
    stop_grace_seconds: int = Field(default=30, ge=0, le=600)

    @field_validator("groups")
    @classmethod
    def _each_node_is_used_once(cls, groups: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        seen: dict[str, str] = {}
        for group, nodes in groups.items():
            if not nodes:
                raise ValueError(f"group {group} has no node: name at least one, the head first")
            for node in nodes:
                if node in seen:
                    raise ValueError(f"node {node} is in {seen[node]} and again in {group}: a node runs one rank")
                seen[node] = group
        return groups
