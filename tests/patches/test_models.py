"""What patched models do: hidden states for a drafter, layers that are not quantised, parsing, Qwen's table."""

import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.patches.patched import definition, expression, function, patched

MODELS = {
    "glm53-sm121-dflash2": "vllm/models/glm5next/nvidia/model.py",
    "glm53-nightly": "vllm/models/glm5next/common/model.py",
    "sm121-vllm-0.31-dflash2": "vllm/models/glm5next/common/model.py",
}
PREDICTION = "vllm/models/glm5next/common/mtp.py"
WITH_PREDICTION = ["glm53-nightly", "sm121-vllm-0.31", "sm121-vllm-0.32", "sm121-vllm-0.33"]


class Layer:
    """A layer that leaves its last mixing to the next one, as GLM's do, on text instead of tensors."""

    n = 4

    def __init__(self, index: int, is_last: bool) -> None:
        self.index, self.is_last = index, is_last

    def __call__(self, *_: Any) -> tuple[Any, ...]:
        return (f"out{self.index}", None, None, None) if self.is_last else (f"x{self.index}", "r", "p", "c")

    def hc_post(self, state: str, residual: str, post: str, comb: str) -> str:
        return f"mixed({state},{residual},{post},{comb})"


def forward(chain: str, wanted: tuple[int, ...], is_parallel: bool = False) -> Any:
    text = patched(chain).text(MODELS[chain])
    names = {
        "get_pp_group": lambda: SimpleNamespace(is_first_rank=True, is_last_rank=True),
        "hc_contract": lambda state, streams: f"one of {streams}: {state}",
        "sp_shard": lambda state: state,
        "sp_all_gather": lambda state: [f"gathered {state}"],
    }
    model = SimpleNamespace(
        aux_hidden_state_layers=wanted,
        start_layer=0,
        end_layer=3,
        is_sequence_parallel=is_parallel,
        _active_layers=[Layer(index, index == 2) for index in range(3)],
        embed_input_ids=lambda ids: f"embedded {ids}",
        norm=lambda state: f"norm({state})",
    )
    entering = function(text, "Glm5NextModel._state_entering", names)
    model._state_entering = lambda *arguments: entering(model, *arguments)
    positions = SimpleNamespace(shape=(1,))
    return function(text, "Glm5NextModel.forward", names)(model, "ids", positions, None)


@pytest.mark.parametrize("chain", MODELS)
def test_without_a_drafter_the_model_answers_as_before(chain: str) -> None:
    assert forward(chain, ()) == "norm(out2)"


@pytest.mark.parametrize("chain", MODELS)
def test_the_drafter_gets_the_state_that_enters_its_layers(chain: str) -> None:
    answer, seen = forward(chain, (0, 1, 2, 3))
    assert answer == "norm(out2)"
    assert seen == ["embedded ids", "one of 4: mixed(x0,r,p,c)", "one of 4: mixed(x1,r,p,c)", "out2"]


@pytest.mark.parametrize("chain", MODELS)
def test_states_of_several_ranks_are_brought_together(chain: str) -> None:
    _, seen = forward(chain, (1,), is_parallel=True)
    assert seen == [["gathered one of 4: mixed(x0,r,p,c)"]]


@pytest.mark.parametrize("chain", MODELS)
def test_both_classes_say_that_they_support_a_drafter(chain: str) -> None:
    tree = ast.parse(patched(chain).text(MODELS[chain]))
    bases = {
        node.name: [ast.unparse(base) for base in node.bases]
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    assert "EagleModelMixin" in bases["Glm5NextModel"]
    assert "SupportsEagle3" in bases["Glm5NextForCausalLM"]
    assert "SupportsEagle3" in bases["Glm5NextForConditionalGeneration"]


def excluded_modules(chain: str, folder: Path, layer_tensors: list[str], quantised: Any) -> Any:
    names = [f"model.language_model.layers.45.{tensor}" for tensor in layer_tensors]
    names += ["model.language_model.layers.4.mlp.down_proj.weight_scale", "model.visual.blocks.45.attn.weight"]
    written = json.dumps({"weight_map": dict.fromkeys(names, "a.safetensors")})
    (folder / "model.safetensors.index.json").write_text(written, encoding="utf-8")
    config = SimpleNamespace(quant_config=quantised, model_config=SimpleNamespace(model=str(folder)))
    function(patched(chain).text(PREDICTION), "_exclude_unquantized", {})(config, "model.layers.45")
    return getattr(quantised, "exclude_modules", None)


@pytest.mark.parametrize("chain", WITH_PREDICTION)
@pytest.mark.parametrize(
    ("tensors", "excluded"),
    [
        (["mlp.experts.0.down_proj.weight", "eh_proj.weight"], ["lm_head", "model.layers.45.*"]),
        (["mlp.experts.0.down_proj.weight", "mlp.experts.0.down_proj.weight_scale"], ["lm_head"]),
        ([], ["lm_head"]),
    ],
    ids=["stored as BF16", "stored quantised", "not stored at all"],
)
def test_a_prediction_layer_without_scales_is_not_quantised(
    chain: str, tensors: list[str], excluded: list[str], tmp_path: Path
) -> None:
    assert excluded_modules(chain, tmp_path, tensors, SimpleNamespace(exclude_modules=["lm_head"])) == excluded


def test_a_quantisation_without_such_a_list_is_left_alone(tmp_path: Path) -> None:
    assert excluded_modules("sm121-vllm-0.33", tmp_path, ["eh_proj.weight"], None) is None


@pytest.mark.parametrize("chain", WITH_PREDICTION)
def test_the_prediction_layer_asks_before_it_builds(chain: str) -> None:
    built = definition(patched(chain).text(PREDICTION), "Glm5NextMultiTokenPredictorLayer.__init__")
    lines = [ast.unparse(node) for node in built.body]
    asked = lines.index("_exclude_unquantized(vllm_config, prefix)")
    assert lines[asked + 1].startswith("self.mtp_block = Glm5NextDecoderLayer(")


@pytest.mark.parametrize("chain", ["glm53-nightly", "sm121-vllm-0.31", "sm121-vllm-0.31-dflash2"])
@pytest.mark.parametrize("asked", [{}, {"enable_thinking": False}, {"thinking": False}])
def test_reasoning_is_parsed_whatever_the_request_says(chain: str, asked: dict[str, bool]) -> None:
    built = definition(patched(chain).text("vllm/parser/glm47_moe.py"), "Glm47MoeParser.__init__")
    (value,) = [
        node.value
        for node in ast.walk(built)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "self.thinking_enabled"
    ]
    names = {"thinking": asked.get("thinking"), "enable_thinking": asked.get("enable_thinking")}
    assert expression(value, names) is True


class Fp8Config:
    """As vLLM's, as far as the table's choice reads it."""

    packed_modules_mapping: dict[str, str] = {}
    ignored_layers_match_mode = "exact"

    def __init__(self, is_checkpoint_fp8_serialized: bool = False, ignored: tuple[str, ...] = ()) -> None:
        self.is_checkpoint_fp8_serialized, self.ignored_layers = is_checkpoint_fp8_serialized, list(ignored)


@pytest.mark.parametrize(
    ("table", "checkpoint", "is_fp8"),
    [
        ("float8_e4m3fn", None, True),
        ("float8_e4m3fn", "ModelOpt NVFP4", True),
        (None, "ModelOpt NVFP4", False),
        ("bfloat16", "ModelOpt NVFP4", False),
        (None, Fp8Config(is_checkpoint_fp8_serialized=True), True),
        (None, Fp8Config(is_checkpoint_fp8_serialized=True, ignored=("ple.ngram_embedding",)), False),
    ],
)
def test_the_table_is_fp8_where_its_own_config_says_so(table: str | None, checkpoint: Any, is_fp8: bool) -> None:
    config = SimpleNamespace(ple_embedding_dtype=table) if table else SimpleNamespace()
    current = SimpleNamespace(model_config=SimpleNamespace(hf_text_config=config))
    names = {
        "Fp8Config": Fp8Config,
        "get_current_vllm_config": lambda: current,
        "is_layer_skipped": lambda prefix, ignored, *_, **__: prefix in ignored,
        "Qwen4ExpPLEFp8EmbeddingMethod": lambda: "FP8",
    }
    text = patched("qwen38-ple").text("vllm/models/qwen3_8_flash_next/nvidia/ple_layer.py")
    chosen = function(text, "_get_ple_embedding_quant_method", names)(checkpoint, "ple.ngram_embedding")
    assert chosen == ("FP8" if is_fp8 else None)
