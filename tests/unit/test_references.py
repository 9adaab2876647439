"""The sources' measured figures, and whether the planner finds them again."""

from pathlib import Path

import pytest

from spec.architecture import Dflash2
from spec.arithmetic import GIB
from spec.kv_cache import CacheSettings, plan_kv_cache
from spec.model import Model
from spec.reference import Reference, ReferenceFile
from spec.yaml_files import parse, read_yaml

CATALOG = Path(__file__).parents[2] / "catalog"

NOT_PLANNED = {
    "eugr_388": "a fork of its own, whose version says nothing about its planner",
}
"""References with a pool size that the planner is not asked for, each with the reason."""


def references() -> dict[str, Reference]:
    files = sorted((CATALOG / "references").glob("*.yaml"))
    parsed = [parse(ReferenceFile, read_yaml(file, file.name), file.name) for file in files]
    names = [name for file in parsed for name in file.references]
    assert len(names) == len(set(names))
    return {name: reference for file in parsed for name, reference in file.references.items()}


def facts(name: str) -> Model:
    path = CATALOG / "models" / f"{name}.yaml"
    return parse(Model, read_yaml(path, path.name), path.name)


def with_a_pool() -> dict[str, Reference]:
    return {
        name: reference
        for name, reference in references().items()
        if reference.measured.kv_cache_tokens is not None and name not in NOT_PLANNED
    }


def settings_of(reference: Reference, kv_cache_bytes: int) -> CacheSettings:
    written = reference.settings
    assert written.vllm_version is not None
    assert written.max_model_len is not None
    return CacheSettings.model_validate(
        {
            "vllm_version": written.vllm_version,
            "tensor_parallel": written.tensor_parallel,
            "kv_cache_bytes": kv_cache_bytes,
            "max_model_len": written.max_model_len,
            "max_num_batched_tokens": written.max_num_batched_tokens,
            "kv_cache_dtype": written.kv_cache_dtype or "auto",
            "draft_tokens": written.draft_tokens or 0,
            "block_size": written.block_size,
            "prefix_caching": written.prefix_caching is not False,
            "linear_state_dtype": written.linear_state_dtype or "auto",
            "drafter_placement": written.drafter_placement,
        }
    )


def drafter_of(reference: Reference) -> Dflash2 | None:
    if reference.settings.drafter is None:
        return None
    drafter = facts(reference.settings.drafter).architecture
    assert isinstance(drafter, Dflash2)
    return drafter


def test_every_reference_names_models_of_the_catalogue() -> None:
    for name, reference in references().items():
        for model in filter(None, (reference.settings.model, reference.settings.drafter)):
            assert (CATALOG / "models" / f"{model}.yaml").is_file(), name


def test_what_did_not_serve_says_why() -> None:
    for name, reference in references().items():
        assert (reference.outcome == "served") == (reference.message is None), name


@pytest.mark.parametrize("name", [name for name, r in with_a_pool().items() if r.settings.kv_cache_memory_bytes])
def test_a_pinned_pool_is_planned_to_the_token(name: str) -> None:
    reference = references()[name]
    pinned = reference.settings.kv_cache_memory_bytes
    assert pinned is not None
    plan = plan_kv_cache(
        facts(reference.settings.model).architecture, settings_of(reference, pinned), drafter_of(reference)
    )
    assert plan.tokens == reference.measured.kv_cache_tokens


@pytest.mark.parametrize("name", [name for name, r in with_a_pool().items() if not r.settings.kv_cache_memory_bytes])
def test_a_profiled_pool_is_a_whole_number_of_planned_blocks(name: str) -> None:
    """Rank 0 logs its memory in rounded GiB and the pool is the smallest of all ranks: the bytes are only a bound."""
    reference = references()[name]
    tokens, length = reference.measured.kv_cache_tokens, reference.settings.max_model_len
    assert tokens is not None
    assert length is not None
    architecture = facts(reference.settings.model).architecture
    empty = plan_kv_cache(architecture, settings_of(reference, 0))
    blocks = round(tokens / length * empty.blocks_per_request)
    full = plan_kv_cache(architecture, settings_of(reference, blocks * empty.bytes_per_block))
    assert full.tokens == tokens
    if logged := reference.measured.kv_cache_gib:
        assert 0.98 * logged * GIB < full.used_bytes < (logged + 0.05) * GIB


def test_references_without_a_plan_have_a_reason() -> None:
    assert set(NOT_PLANNED) <= set(references())
