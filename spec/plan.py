"""From a stack file and the catalogue to a Release: the one way in."""

from typing import Any

from spec.catalog import STACK_KEY, Catalog
from spec.connection import connection_to
from spec.deployment import DeploymentConfig
from spec.errors import Problem, SpecificationError
from spec.estimate import estimate_kv_cache, estimate_memory
from spec.image_plan import plan_image
from spec.judge import judge, refuse_idle_acknowledgements
from spec.kv_cache import PlanningError
from spec.model import Model
from spec.release import NodePlan, Release, WeightsPlan
from spec.render import render_group
from spec.router import router_plan
from spec.rules import FIRST, RULES, Estimate
from spec.situation import Situation, look_up
from spec.weights import DRAFTER_FOLDER, MODEL_FOLDER
from spec.weights_plan import weights_plan
from spec.yaml_files import parse


def plan_release(stack: str, config: Any, catalog: Catalog) -> Release:
    """Validates what a stack file says and resolves it to plain data.

    Args:
        stack: name of the stack.
        config: what Pulumi.STACK.yaml holds under `gb10-serving:deployment`, as plain data.
        catalog: where the names in it are looked up.

    Raises:
        SpecificationError: something is unknown, malformed or cannot work.
    """
    deployment = parse(DeploymentConfig, config, f"Pulumi.{stack}.yaml", f"config/{STACK_KEY}")
    situation = look_up(stack, deployment, catalog)
    early = judge(situation, {}, FIRST)
    estimates = {group: _estimate(situation, group) for group in deployment.groups}
    findings = (*early, *judge(situation, estimates, RULES))
    refuse_idle_acknowledgements(situation, findings)

    image = plan_image(situation)
    weights = _weights_plans(situation)
    router = router_plan(situation)
    used = {image.build_on, *(node for nodes in deployment.groups.values() for node in nodes)}
    used |= {router.node} if router else set()
    return Release(
        stack=stack,
        cluster=deployment.cluster,
        model_name=deployment.model,
        storage_folder=situation.cluster.storage_folder,
        image=image,
        weights=weights,
        nodes={name: _node_plan(situation, name) for name in situation.cluster.nodes if name in used},
        groups=tuple(
            render_group(situation, name, image, weights, estimate, _required_bytes(situation, estimate))
            for name, estimate in estimates.items()
        ),
        memory=deployment.memory,
        readiness=deployment.readiness,
        stop_grace_seconds=deployment.stop_grace_seconds,
        active=deployment.active,
        kept_releases=deployment.kept_releases,
        router=router,
        findings=findings,
    )


def _estimate(situation: Situation, group: str) -> Estimate:
    memory = estimate_memory(situation, group)
    pinned = situation.config.engine.kv_cache_memory_bytes
    cache_bytes = pinned or (memory.kv_cache_bytes.low if memory else None)
    if cache_bytes is None or situation.image.engine != "vllm":
        return Estimate(memory, None)
    try:
        return Estimate(memory, estimate_kv_cache(situation, group, cache_bytes))
    except PlanningError as error:
        raise SpecificationError(
            situation.problem(
                "engine", situation.image.version, str(error), "choose other engine arguments or another image"
            )
        ) from None


def _required_bytes(situation: Situation, estimate: Estimate) -> int:
    """Returns what must be free before a rank starts: the stack's word, or what vLLM refuses to start without."""
    chosen = situation.config.memory.required_bytes
    if chosen is not None:
        return chosen
    if estimate.memory is None:
        raise SpecificationError(
            situation.problem(
                "memory/required_bytes",
                None,
                "nobody measured this kind of machine or engine, so what must be free is not known",
                "give required_bytes, as in `required_bytes: 3 GiB`",
            )
        )
    return estimate.memory.start_check_bytes


def _weights_plans(situation: Situation) -> tuple[WeightsPlan, ...]:
    choice = situation.config.speculative
    plans = [_weights_plan(situation, situation.config.model, situation.model, MODEL_FOLDER)]
    if situation.drafter and choice and choice.method == "dflash":
        plans.append(_weights_plan(situation, choice.drafter, situation.drafter, DRAFTER_FOLDER))
    return tuple(plans)


def _weights_plan(situation: Situation, name: str, model: Model, mounted: str) -> WeightsPlan:
    if model.revision is None:
        raise SpecificationError(
            Problem(
                f"catalog/models/{name}.yaml",
                "source/revision",
                None,
                "weights without a revision can change under the same name, and nodes would hold different ones",
                "give the commit of the repository, 40 hexadecimal digits",
            )
        )
    return weights_plan(situation, name, model, mounted)


def _node_plan(situation: Situation, name: str) -> NodePlan:
    node = situation.cluster.nodes[name]
    rails = [node.rails[position] for position in situation.config.fabric.rails]
    return NodePlan(
        connection=connection_to(situation.cluster, name),
        switch=node.switch,
        fabric={rail.interface: rail.address for rail in rails},
        shared_memory_bytes=situation.cluster.limits.shared_memory_bytes,
    )
