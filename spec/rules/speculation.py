"""Rules about who drafts tokens."""

from collections.abc import Iterator

from spec.architecture import Dflash2, Glm5Next, Qwen4Exp
from spec.deployment import DflashChoice
from spec.errors import Problem
from spec.rules.rule import Estimates, refuse, warn
from spec.rules.words import listed
from spec.situation import Situation
from spec.speculative import DFLASH_MOST_DRAFT_TOKENS


@refuse
def model_serves_by_itself(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """The model of a deployment is not a drafter.

    Source: catalog/models; a drafter only proposes tokens for its target (facts/seed-repos.md 2.2).
    """
    if isinstance(situation.model.architecture, Dflash2):
        yield situation.problem(
            "model",
            situation.config.model,
            "it is a drafter, which proposes tokens for another model and answers nobody",
            "name the model here and the drafter under `speculative`",
        )


@refuse
def drafter_belongs_to_the_model(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """An external drafter was made for this model.

    Source: facts/vllm-patches.md section 4 (Qwen4Exp takes mtp and ngram only); `drafters` of catalog/models.
    """
    choice, drafters = situation.config.speculative, situation.model.drafters
    if isinstance(choice, DflashChoice) and choice.drafter not in drafters:
        yield situation.problem(
            "speculative/drafter",
            choice.drafter,
            f"it was made for another model than {situation.config.model}, which has {len(drafters)} drafter(s)",
            f"use one of: {listed(drafters)}" if drafters else "use `method: mtp`, or remove `speculative`",
        )
    elif isinstance(choice, DflashChoice) and not isinstance(_drafter(situation), Dflash2):
        yield situation.problem(
            "speculative/drafter",
            choice.drafter,
            "its architecture is not that of a DFlash2 drafter",
            f"correct `drafters` in catalog/models/{situation.config.model}.yaml",
        )


@refuse
def draft_fits_the_block(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """A DFlash2 drafter proposes at most its block without the model's own token.

    Source: facts/seed-repos.md 2.2 and 3.4 (num_speculative_tokens <= 7).
    """
    choice, drafter = situation.config.speculative, _drafter(situation)
    if not isinstance(choice, DflashChoice) or not isinstance(drafter, Dflash2):
        return
    most = min(drafter.most_draft_tokens, DFLASH_MOST_DRAFT_TOKENS)
    if choice.draft_tokens > most:
        yield situation.problem(
            "speculative/draft_tokens",
            choice.draft_tokens,
            f"{choice.drafter} drafts blocks of {drafter.block_tokens} tokens, of which the first is the model's own: "
            f"{drafter.block_tokens} - 1 = {most} is the most",
            f"write {most} or less",
        )


@refuse
def prediction_layer_exists(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """The checkpoint has a prediction layer, where it is to draft by itself.

    Source: facts/vllm-patches.md 6.1 (layers of each model) and section 4 (`--speculative-config`).
    """
    choice, architecture = situation.config.speculative, situation.model.architecture
    if choice is None or choice.method != "mtp":
        return
    layers = architecture.mtp_layers if isinstance(architecture, Glm5Next | Qwen4Exp) else 0
    if not layers:
        yield situation.problem(
            "speculative/method",
            "mtp",
            f"{situation.config.model} has {layers} layers for multi-token prediction",
            "remove `speculative`",
        )


@warn
def prediction_layer_is_as_declared(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """The prediction layer is quantised as config.json says, or the image is patched for it.

    Source: seed 002 (NVIDIA's layer 45 is BF16, config.json says NVFP4); facts/vllm-patches.md P9.
    """
    choice, checkpoint = situation.config.speculative, situation.model.checkpoint
    if choice and choice.method == "mtp" and checkpoint and checkpoint.unquantized_mtp:
        yield situation.problem(
            "speculative/method",
            "mtp",
            f"the prediction layer of {situation.config.model} is BF16 although config.json says "
            f"{checkpoint.quantization}: without a patch the load ends at `tensor a (256) must match ... (512)`",
            f"use an external drafter or another checkpoint; or acknowledge that {situation.image_file} has the patch",
        )


@warn
def drafter_has_its_own_attention(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """A drafter does not inherit an attention backend that a flag chose for the model.

    Source: facts/vllm-patches.md P1 (an external drafter inherits the flag unless its own backend is given).
    """
    choice, backend = situation.config.speculative, situation.config.engine.other.get("attention_backend")
    if backend and isinstance(choice, DflashChoice) and choice.attention_backend is None:
        yield situation.problem(
            "speculative/attention_backend",
            None,
            f"the drafter's plain attention would run on {backend}, which was chosen for the model",
            "give the drafter a backend of its own, or patch the list in the image instead of setting the flag",
        )


def _drafter(situation: Situation) -> object:
    return situation.drafter.architecture if situation.drafter else None
