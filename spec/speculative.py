"""Speculative decoding: a drafter proposes tokens and the model checks them in one step."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from spec.base import Strict, canonical_json

DFLASH_MOST_DRAFT_TOKENS = 7
"""DFlash2 drafts blocks of 8 tokens, of which the first is the model's own (facts/seed-repos.md 2.2 and 3.4)."""


class Mtp(Strict):
    """Multi-token prediction by a layer of the checkpoint itself.

    Attributes:
        draft_tokens: K. The first source keeps 4; 6 was slower for wasted verification.
    """

    method: Literal["mtp"]
    draft_tokens: int = Field(gt=0)

    def config(self) -> dict[str, Any]:
        """Returns vLLM's `--speculative-config`."""
        return {"method": self.method, "num_speculative_tokens": self.draft_tokens}


class DFlash(Strict):
    """A separate drafter that reads hidden states of the model (DFlash2).

    Attributes:
        draft_tokens: K.
        drafter: folder of the drafter in the container; every rank needs it.
        attention_backend: of the drafter; none leaves it to vLLM, which then hands it the model's own if a flag chose
            that (facts/vllm-patches.md 2.2 P1).
    """

    method: Literal["dflash"]
    draft_tokens: int = Field(gt=0)
    drafter: str = Field(pattern=r"^/[A-Za-z0-9/_.-]+$")
    attention_backend: str | None = Field(default=None, pattern=r"^[A-Z0-9_]+$")

    @field_validator("draft_tokens")
    @classmethod
    def _draft_fits_the_block(cls, draft_tokens: int) -> int:
        if draft_tokens > DFLASH_MOST_DRAFT_TOKENS:
            raise ValueError(
                "DFlash2 drafts blocks of 8 tokens, of which the first is the model's own: "
                f"8 - 1 = {DFLASH_MOST_DRAFT_TOKENS} is the most; write {DFLASH_MOST_DRAFT_TOKENS} or less"
            )
        return draft_tokens

    def config(self) -> dict[str, Any]:
        """Returns vLLM's `--speculative-config`."""
        config = {"method": self.method, "model": self.drafter, "num_speculative_tokens": self.draft_tokens}
        return config | ({"attention_backend": self.attention_backend} if self.attention_backend else {})


Speculative = Annotated[Mtp | DFlash, Field(discriminator="method")]


def speculative_arguments(speculative: Mtp | DFlash | None) -> tuple[str, ...]:
    """Returns the argv words of vLLM, its JSON in canonical form; none for no speculation."""
    return ("--speculative-config", canonical_json(speculative.config())) if speculative else ()


def sglang_speculative_arguments(mtp: Mtp | None) -> tuple[str, ...]:
    """Returns the argv words of SGLang for the checkpoint's own layer, which it calls NEXTN.

    A chain of K steps with one candidate each proposes K tokens behind the model's own: K + 1 in SGLang's count
    (facts/seed-repos.md 1.5: steps 3, draft 4).
    """
    if mtp is None:
        return ()
    return (
        *("--speculative-algorithm", "NEXTN"),
        *("--speculative-num-steps", str(mtp.draft_tokens)),
        *("--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", str(mtp.draft_tokens + 1)),
    )
