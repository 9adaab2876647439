"""From a stack file and the catalogue to a Release: the one way in."""

from typing import Any

from spec.catalog import STACK_KEY, Catalog, parse
from spec.cluster import Cluster, Node
from spec.connection import connection_to
from spec.deployment import DeploymentConfig
from spec.errors import Problem, SpecificationError
from spec.model import Model
from spec.release import ImagePlan, NodePlan, Release, WeightsPlan
from spec.render import render_group


def plan_release(stack: str, config: Any, catalog: Catalog) -> Release:
    """Validates what a stack file says and resolves it to plain data.

    Args:
        stack: name of the stack.
        config: what Pulumi.STACK.yaml holds under `gb10-serving:deployment`, as plain data.
        catalog: where the names in it are looked up.

    Raises:
        SpecificationError: something is unknown, malformed or cannot work.
    """
    shown = f"Pulumi.{stack}.yaml"
    deployment = parse(DeploymentConfig, config, shown, f"config/{STACK_KEY}")
    cluster = catalog.cluster(deployment.cluster)
    hardware = catalog.hardware(cluster.hardware)
    image = catalog.image(deployment.image)
    model = catalog.model(deployment.model)
    _refuse_unknown_nodes(deployment, cluster, shown)
    _refuse_indivisible_heads(deployment, model, shown)

    image_plan = ImagePlan(
        reference=image.reference,
        archive=f"images/{image.recipe_hash}.tar",
    )
    weights = WeightsPlan(
        revision=model.revision,
        source=f"models/{model.revision}",
        folder=f"{cluster.storage_folder}/weights/{deployment.model}/{model.revision[:16]}",
    )
    used = {node for nodes in deployment.groups.values() for node in nodes}
    return Release(
        stack=stack,
        cluster=deployment.cluster,
        model_name=deployment.model,
        storage_folder=cluster.storage_folder,
        image=image_plan,
        weights=weights,
        nodes={name: _node_plan(cluster, name, node) for name, node in cluster.nodes.items() if name in used},
        groups=tuple(
            render_group(stack, name, deployment, cluster, hardware, image, image_plan.reference, model, weights)
            for name in deployment.groups
        ),
        memory=deployment.memory,
        readiness=deployment.readiness,
        stop_grace_seconds=deployment.stop_grace_seconds,
    )


def _node_plan(cluster: Cluster, name: str, node: Node) -> NodePlan:
    return NodePlan(
        connection=connection_to(cluster, name),
        fabric={rail.interface: rail.address for rail in node.rails},
        shared_memory_bytes=cluster.limits.shared_memory_bytes,
    )


def _refuse_unknown_nodes(deployment: DeploymentConfig, cluster: Cluster, shown: str) -> None:
    problems = [
        Problem(
            shown,
            f"config/{STACK_KEY}/groups/{group}",
            node,
            f"the cluster {deployment.cluster} has no node of this name",
            f"use one of: {', '.join(cluster.nodes)}; or add it to catalog/clusters/{deployment.cluster}.yaml",
        )
        for group, nodes in deployment.groups.items()
        for node in nodes
        if node not in cluster.nodes
    ]
    if problems:
        raise SpecificationError(*problems)


def _refuse_indivisible_heads(deployment: DeploymentConfig, model: Model, shown: str) -> None:
    for group, nodes in deployment.groups.items():
        size = len(nodes)
        if model.attention_heads % size:
            raise SpecificationError(
                Problem(
                    shown,
                    f"config/{STACK_KEY}/groups/{group}",
                    list(nodes),
                    f"tensor parallel {size} does not divide the {model.attention_heads} attention heads of "
                    f"{deployment.model}: {model.attention_heads} = {model.attention_heads // size} x {size} "
                    f"+ {model.attention_heads % size}",
                    "use a number of nodes that divides it: "
                    + ", ".join(str(n) for n in range(1, model.attention_heads + 1) if model.attention_heads % n == 0),
                )
            )
