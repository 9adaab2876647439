"""Renders every rank of a group: command line, environment, mounts and limits."""

from spec.base import content_hash
from spec.cluster import Cluster, Hardware
from spec.deployment import DeploymentConfig
from spec.fabric import fabric_environment
from spec.image import Image
from spec.model import Model
from spec.release import GroupPlan, Mount, RankPlan, WeightsPlan

MODEL_FOLDER = "/model"
"""Where a rank finds the weights, whatever the node calls the folder."""


def render_group(
    stack: str,
    name: str,
    config: DeploymentConfig,
    cluster: Cluster,
    hardware: Hardware,
    image: Image,
    image_reference: str,
    model: Model,
    weights: WeightsPlan,
) -> GroupPlan:
    """Returns the plan of the group `name`, with the hash of all that its ranks are made from."""
    nodes = config.groups[name]
    ranks = tuple(
        RankPlan(
            rank=rank,
            node=node,
            container=f"gb10-{stack}-{name}-rank{rank}",
            command=(*image.entrypoint, *_serve_arguments(rank, nodes, config, cluster, model)),
            environment={**image.environment, **fabric_environment(cluster.nodes[node])},
            mounts=(*_image_mounts(image), Mount(source=weights.folder, target=MODEL_FOLDER)),
            open_files=cluster.limits.open_files,
            locked_memory_bytes=cluster.limits.locked_memory_bytes,
            gpus=hardware.gpus > 0,
        )
        for rank, node in enumerate(nodes)
    )
    return GroupPlan(
        name=name,
        ranks=ranks,
        address=cluster.nodes[nodes[0]].rails[0].address,
        port=config.port,
        master_port=config.master_port,
        probes=model.probes,
        served_name=model.served_name,
        hash=content_hash(
            {
                "image": image_reference,
                "weights": weights.revision,
                "ranks": [rank.model_dump(mode="json") for rank in ranks],
            }
        ),
    )


def _serve_arguments(
    rank: int, nodes: tuple[str, ...], config: DeploymentConfig, cluster: Cluster, model: Model
) -> tuple[str, ...]:
    return (
        "serve",
        MODEL_FOLDER,
        *("--served-model-name", model.served_name),
        *("--host", "0.0.0.0"),
        *("--port", str(config.port)),
        *_parallel_arguments(rank, nodes, config, cluster),
        *config.engine.arguments(),
    )


def _parallel_arguments(
    rank: int, nodes: tuple[str, ...], config: DeploymentConfig, cluster: Cluster
) -> tuple[str, ...]:
    if len(nodes) == 1:
        return ()
    return (
        *("--tensor-parallel-size", str(len(nodes))),
        *("--nnodes", str(len(nodes))),
        *("--node-rank", str(rank)),
        *("--master-addr", cluster.nodes[nodes[0]].rails[0].address),
        *("--master-port", str(config.master_port)),
        *("--distributed-executor-backend", "mp"),
        *(("--headless",) if rank > 0 else ()),
    )


def _image_mounts(image: Image) -> tuple[Mount, ...]:
    return tuple(Mount(source=mount.source, target=mount.target) for mount in image.mounts)
