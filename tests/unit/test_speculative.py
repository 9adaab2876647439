"""Speculative decoding: what the sources write, from types that refuse what cannot work."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from spec.base import canonical_json
from spec.speculative import DFlash, Mtp, Speculative, sglang_speculative_arguments, speculative_arguments

SPECULATIVE: TypeAdapter[Mtp | DFlash] = TypeAdapter(Speculative)


@pytest.mark.parametrize(
    ("written", "config"),
    [
        # Seed 000's command line, word for word.
        ({"method": "mtp", "draft_tokens": 4}, '{"method":"mtp","num_speculative_tokens":4}'),
        # Seed 002's entrypoint, word for word.
        (
            {"method": "dflash", "draft_tokens": 7, "drafter": "/models/glm-5.3-flash-dflash2"},
            '{"method":"dflash","model":"/models/glm-5.3-flash-dflash2","num_speculative_tokens":7}',
        ),
        # No source chooses the drafter's own attention backend; canonical JSON puts it first.
        (
            {"method": "dflash", "draft_tokens": 7, "drafter": "/drafter", "attention_backend": "FLASH_ATTN"},
            '{"attention_backend":"FLASH_ATTN","method":"dflash","model":"/drafter","num_speculative_tokens":7}',
        ),
    ],
)
def test_what_the_sources_write(written: dict[str, Any], config: str) -> None:
    assert speculative_arguments(SPECULATIVE.validate_python(written)) == ("--speculative-config", config)


def test_no_speculation_has_no_words() -> None:
    assert speculative_arguments(None) == ()
    assert sglang_speculative_arguments(None) == ()


def test_sglang_counts_the_models_own_token() -> None:
    """MiaAI's lane: SPEC_STEPS=3, SPEC_TOPK=1, SPEC_DRAFT=4."""
    words = "--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1"
    assert sglang_speculative_arguments(Mtp(method="mtp", draft_tokens=3)) == (
        *words.split(),
        *("--speculative-num-draft-tokens", "4"),
    )


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (
            {"method": "dflash", "draft_tokens": 8, "drafter": "/drafter"},
            "DFlash2 drafts blocks of 8 tokens, of which the first is the model's own: "
            "8 - 1 = 7 is the most; write 7 or less",
        ),
        ({"method": "mtp", "draft_tokens": 0}, "Input should be greater than 0"),
        ({"method": "dflash", "draft_tokens": 7}, "Field required"),
        ({"method": "dflash", "draft_tokens": 7, "drafter": "models/draft"}, "String should match pattern"),
        ({"method": "mtp", "draft_tokens": 4, "drafter": "/drafter"}, "Extra inputs are not permitted"),
        ({"method": "eagle", "draft_tokens": 4}, "does not match any of the expected tags"),
    ],
)
def test_what_cannot_work_is_refused(written: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        SPECULATIVE.validate_python(written)
    assert message in refused.value.errors()[0]["msg"]


@given(st.integers(1, 7), st.from_regex(r"/[A-Za-z0-9/_.-]+", fullmatch=True))
def test_the_text_is_canonical_and_says_it_all(draft_tokens: int, drafter: str) -> None:
    drafting = DFlash(method="dflash", draft_tokens=draft_tokens, drafter=drafter)
    flag, text = speculative_arguments(drafting)
    assert (flag, text) == speculative_arguments(drafting.model_copy())
    assert canonical_json(json.loads(text)) == text
    assert json.loads(text) == {"method": "dflash", "model": drafter, "num_speculative_tokens": draft_tokens}
