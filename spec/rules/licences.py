"""Rules about the terms of the weights."""

from collections.abc import Iterator

from spec.deployment import DflashChoice
from spec.errors import Problem
from spec.model import Model
from spec.rules.rule import Estimates, warn
from spec.situation import Situation


@warn
def weights_may_earn_money(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """Weights that must not be used commercially are used knowingly.

    Source: facts/seed-repos.md 0.2 (DFlash2 is CC BY-NC-ND 4.0).
    """
    yield from _with_terms(situation, "no", "forbids commercial use")


@warn
def weights_have_no_conditions(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """Weights whose terms set limits are used knowingly.

    Source: catalog/models (Qwen Community License 1.0).
    """
    yield from _with_terms(situation, "conditional", "sets conditions to commercial use")


def _with_terms(situation: Situation, commercial_use: str, meaning: str) -> Iterator[Problem]:
    for key, name, model in _weights(situation):
        if model.licence and model.licence.commercial_use == commercial_use:
            yield situation.problem(
                key,
                name,
                f"the licence {model.licence.name} {meaning}"
                + (f": {model.licence.note}" if model.licence.note else ""),
                "use other weights, or acknowledge the terms with the reason why they are kept",
            )


def _weights(situation: Situation) -> Iterator[tuple[str, str, Model]]:
    yield "model", situation.config.model, situation.model
    choice = situation.config.speculative
    if situation.drafter and isinstance(choice, DflashChoice):
        yield "speculative/drafter", choice.drafter, situation.drafter
