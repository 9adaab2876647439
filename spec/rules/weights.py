"""Rules about where the files of a model come from."""

from collections.abc import Iterator

from spec.catalog import STACK_KEY
from spec.errors import Problem
from spec.rules.rule import Estimates, refuse
from spec.rules.words import listed
from spec.situation import Situation
from spec.weights import OFFLINE, FromHuggingFace, FromNode


@refuse
def weights_are_of_this_deployment(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """A source of weights is given for the model or the drafter, names a node of the cluster, and can have them.

    Source: design.md section 2, names of a stack file are looked up.
    """
    models = {situation.config.model: situation.model}
    if situation.drafter:
        models[getattr(situation.config.speculative, "drafter", "")] = situation.drafter
    for name, choice in situation.config.weights.items():
        key = f"weights/{name}"
        if name not in models:
            yield situation.problem(
                key,
                choice.kind,
                "this deployment has no model or drafter of this name",
                f"use one of: {listed(models)}; or remove the key",
            )
        elif isinstance(choice, FromHuggingFace) and models[name].source is None:
            yield situation.problem(
                f"{key}/kind",
                choice.kind,
                f"catalog/models/{name}.yaml names no repository: the lab makes this model",
                "take another kind of source, or remove the key",
            )
        if isinstance(choice, FromHuggingFace | FromNode) and choice.node not in situation.cluster.nodes:
            yield situation.problem(
                f"{key}/node",
                choice.node,
                f"the cluster {situation.config.cluster} has no node of this name",
                f"use one of: {listed(situation.cluster.nodes)}; or add it to {situation.cluster_file}",
            )


@refuse
def ranks_stay_offline(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """No rank asks Hugging Face for files: what it got could be of another revision than on other nodes.

    Source: issue 6, offline flags for all ranks; facts/peers.md 3.4.
    """
    for file, key, variables in (
        (situation.image_file, "environment", situation.image.environment),
        (situation.file, f"config/{STACK_KEY}/environment", situation.config.environment),
    ):
        for name in OFFLINE:
            if variables.get(name, "1") != "1":
                yield Problem(
                    file,
                    f"{key}/{name}",
                    variables[name],
                    "the files of a deployment are on its nodes, and each rank is told to stay offline",
                    "remove it; docs/weights.md says where files can come from",
                )
