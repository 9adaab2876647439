"""How ranks are started, against the sources' command lines, with each difference explained."""

import shlex
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from spec.executors import Executor, Launch, Start, start
from spec.speculative import DFlash, Mtp, sglang_speculative_arguments, speculative_arguments

FOUR = ("198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.4")

# Seed 000's block, as printed there, for rank r of Qwen3.8-Flash-Next at TP4 + EP (one rank: `--node-rank <r>`).
SEED_000_QWEN_TP4 = """
  vllm serve /hf/hub/models--.../snapshots/<hash>
    --tensor-parallel-size 4 --pipeline-parallel-size 1 --nnodes 4
    --master-addr 198.51.100.1 --master-port 29500 --node-rank {rank}
    --distributed-executor-backend mp
    --speculative-config '{{"method":"mtp","num_speculative_tokens":4}}'
    --max-model-len 262144 --max-num-seqs 32 --enable-chunked-prefill
    --gpu-memory-utilization 0.65 --kv-cache-dtype fp8_e4m3 --enforce-eager
    --enable-expert-parallel
    --host 0.0.0.0 --port 8000
"""
QWEN_TP4_ARGUMENTS = (
    *speculative_arguments(Mtp(method="mtp", draft_tokens=4)),
    *("--max-model-len", "262144"),
    *("--max-num-seqs", "32"),
    "--enable-chunked-prefill",
    *("--gpu-memory-utilization", "0.65"),
    *("--kv-cache-dtype", "fp8_e4m3"),
    "--enforce-eager",
    "--enable-expert-parallel",
)

# The command that seed 002's repository runs on its head (image/entrypoint.sh), with its defaults filled in.
SEED_002_GLM = """
  vllm serve /models/glm-5.3-flash-nvfp4
    --served-model-name glm53 --tensor-parallel-size 4 --distributed-executor-backend ray
    --load-format auto --safetensors-load-strategy eager --gpu-memory-utilization 0.88 --max-model-len 524288
    --kv-cache-dtype fp8_e4m3 --block-size 2304 --kv-cache-memory 27917287424 --trust-remote-code
    --enable-prefix-caching --max-num-batched-tokens 16384 --max-num-seqs 32 --long-prefill-token-threshold 2304
    --moe-backend flashinfer_cutlass --limit-mm-per-prompt '{"image":16,"video":0}'
    --chat-template /usr/local/share/glm53-chat-template.jinja
    --tool-parser-plugin /usr/local/share/glm47_failclosed.py --enable-auto-tool-choice
    --tool-call-parser glm47_failclosed --sparse-indexer-topk-backend per_row --reasoning-parser glm45
    --speculative-config
    '{"method":"dflash","model":"/models/glm-5.3-flash-dflash2","num_speculative_tokens":7}'
    --host 0.0.0.0 --port 8002
"""
GLM_DFLASH = DFlash(method="dflash", draft_tokens=7, drafter="/models/glm-5.3-flash-dflash2")
GLM_002_ARGUMENTS = (
    *("--load-format", "auto"),
    *("--safetensors-load-strategy", "eager"),
    *("--gpu-memory-utilization", "0.88"),
    *("--max-model-len", "524288"),
    *("--kv-cache-dtype", "fp8_e4m3"),
    *("--block-size", "2304"),
    *("--kv-cache-memory-bytes", "27917287424"),
    "--trust-remote-code",
    "--enable-prefix-caching",
    *("--max-num-batched-tokens", "16384"),
    *("--max-num-seqs", "32"),
    *("--long-prefill-token-threshold", "2304"),
    *("--moe-backend", "flashinfer_cutlass"),
    *("--limit-mm-per-prompt", '{"image":16,"video":0}'),
    *("--chat-template", "/usr/local/share/glm53-chat-template.jinja"),
    *("--tool-parser-plugin", "/usr/local/share/glm47_failclosed.py"),
    "--enable-auto-tool-choice",
    *("--tool-call-parser", "glm47_failclosed"),
    *("--sparse-indexer-topk-backend", "per_row"),
    *("--reasoning-parser", "glm45"),
    *speculative_arguments(GLM_DFLASH),
)

# Seed 003's `LLM(...)`, as the engine flags that the same names have.
GLM_003_ARGUMENTS = (
    *("--max-model-len", "131072"),
    *("--gpu-memory-utilization", "0.78"),
    *("--kv-cache-dtype", "fp8"),
    *("--block-size", "2304"),
    "--trust-remote-code",
    "--enforce-eager",
    *("--moe-backend", "marlin"),
)


def launch(**changes: Any) -> Launch:
    """Returns a rank of a four-node group, with what a test changes."""
    plain = {
        "program": ("vllm",),
        "model": "/model",
        "served_name": "served",
        "group": "stack-main",
        "port": 8000,
        "master_port": 29500,
        "addresses": FOUR,
        "rank": 0,
    }
    return Launch.model_validate(plain | changes)


def flags(words: str | tuple[str, ...]) -> dict[str, str]:
    """Returns each flag of a command line with the words behind it; what stands before the first under ''."""
    found = {"": ""}
    for word in shlex.split(words) if isinstance(words, str) else words:
        name, inline, value = word.partition("=")
        if word.startswith("--"):
            found[name] = value if inline else ""
        else:
            last = list(found)[-1]
            found[last] = f"{found[last]} {word}".strip()
    return found


def added(ours: Start, source: str) -> dict[str, str]:
    """Returns the flags that the source has not; all others must be as they are there."""
    expected = flags(source)
    found = flags(ours.argv)
    assert {name: found.get(name) for name in expected if name} == {k: v for k, v in expected.items() if k}
    return {name: value for name, value in found.items() if name not in expected}


@pytest.mark.parametrize("rank", range(4))
def test_qwen_tp4_as_the_first_source_runs_it(rank: int) -> None:
    ours = start("mp", launch(rank=rank, engine_arguments=QWEN_TP4_ARGUMENTS))
    assert added(ours, SEED_000_QWEN_TP4.format(rank=rank)) == {
        # The source leaves clients with the path as the model's name.
        "--served-model-name": "served",
        # The source prints one command for all ranks; vLLM needs this on every rank but the head
        # (facts/vllm-patches.md section 4).
        **({"--headless": ""} if rank else {}),
    }
    assert ours.environment == {}
    assert ours.before == ()
    assert ours.awaited_accelerators == 0


def test_the_exact_words_of_a_worker() -> None:
    worker = start("mp", launch(rank=3, engine_arguments=("--enforce-eager",)))
    assert worker.argv == (
        *("vllm", "serve", "/model"),
        *("--served-model-name", "served", "--host", "0.0.0.0", "--port", "8000"),
        *("--tensor-parallel-size", "4", "--pipeline-parallel-size", "1", "--distributed-executor-backend", "mp"),
        *("--nnodes", "4", "--node-rank", "3", "--master-addr", "198.51.100.1", "--master-port", "29500"),
        "--headless",
        "--enforce-eager",
    )


def test_one_node_meets_nobody() -> None:
    """The H200 reference: four accelerators of one host."""
    head = start("mp", launch(addresses=FOUR[:1], accelerators=4))
    assert head.argv == (
        *("vllm", "serve", "/model"),
        *("--served-model-name", "served", "--host", "0.0.0.0", "--port", "8000"),
        *("--tensor-parallel-size", "4", "--pipeline-parallel-size", "1", "--distributed-executor-backend", "mp"),
    )


def test_glm_as_the_second_source_runs_it_on_the_head() -> None:
    ours = start(
        "ray",
        launch(
            model="/models/glm-5.3-flash-nvfp4",
            served_name="glm53",
            group="glm53-main",
            port=8002,
            engine_arguments=GLM_002_ARGUMENTS,
        ),
    )
    # The source's flag is an abbreviation that argparse completes.
    source = SEED_002_GLM.replace("--kv-cache-memory ", "--kv-cache-memory-bytes ")
    # The source leaves stages to vLLM's default.
    assert added(ours, source) == {"--pipeline-parallel-size": "1"}
    assert ours.before == (
        (
            *("ray", "start", "--head", "--address=198.51.100.1:6379", "--node-ip-address=198.51.100.1"),
            *("--port=6379", "--object-store-memory=4294967296"),
        ),
    )
    assert ours.awaited_accelerators == 4
    assert ours.environment == {
        "RAY_ADDRESS": "198.51.100.1:6379",
        "MENTAT_GROUP": "glm53-main",
        "CONTAINER_NAME": "glm53-main-rank0",
        "VLLM_USE_RAY_V2_EXECUTOR_BACKEND": "1",
        "RAY_memory_monitor_refresh_ms": "0",
    }


def test_a_worker_of_the_second_source_joins_and_waits() -> None:
    worker = start("ray", launch(rank=2))
    assert worker.argv == (
        *("ray", "start", "--block", "--address=198.51.100.1:6379", "--object-store-memory=4294967296"),
    )
    assert worker.environment["CONTAINER_NAME"] == "stack-main-rank2"
    assert worker.before == ()
    assert worker.awaited_accelerators == 0


@pytest.mark.parametrize("rank", range(4))
def test_the_offline_job_of_the_third_source(rank: int) -> None:
    ours = start(
        "external_launcher",
        launch(
            program=("python3", "/opt/offline.py"),
            model="/var/tmp/glm-5.3-flash-nvfp4",
            addresses=("192.168.88.11", "192.168.88.12", "192.168.88.13", "192.168.88.14"),
            rank=rank,
            engine_arguments=GLM_003_ARGUMENTS,
        ),
    )
    # The source's `-e` options, but for those of the fabric.
    source = f"""
      VLLM_ENABLE_V1_MULTIPROCESSING=0 RANK={rank} LOCAL_RANK=0 WORLD_SIZE=4
      MASTER_ADDR=192.168.88.11 MASTER_PORT=29500
    """
    assert ours.environment == dict(word.split("=") for word in source.split())
    # The source writes its arguments into a script of its own; here one job takes vLLM's engine flags.
    assert ours.argv == (
        *("python3", "/opt/offline.py", "/var/tmp/glm-5.3-flash-nvfp4"),
        *("--tensor-parallel-size", "4", "--pipeline-parallel-size", "1"),
        *("--distributed-executor-backend", "external_launcher"),
        *GLM_003_ARGUMENTS,
    )


def test_the_offline_job_has_one_process_a_node() -> None:
    with pytest.raises(ValueError, match="a node has 4 accelerators: use mp"):
        start("external_launcher", launch(accelerators=4))


@pytest.mark.parametrize("rank", range(2))
def test_the_sglang_lane_that_the_first_source_measured(rank: int) -> None:
    """Of the repository that seed 000 names for it: two nodes, port 26400, API on 8888."""
    source = f"""
      python3 -m sglang.launch_server --model-path /model --served-model-name Qwen3.8-Flash-Next-NVFP4
        --trust-remote-code --tp-size 2 --quantization modelopt_fp4 --attention-backend flashinfer --page-size 64
        --mem-fraction-static 0.80 --context-length 262144
        --speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1
        --speculative-num-draft-tokens 4 --disable-prefill-cuda-graph --host 0.0.0.0 --port 8888
        --nnodes 2 --node-rank {rank} --dist-init-addr 10.0.22.1:26400
    """
    ours = start(
        "sglang",
        launch(
            program=("python3", "-m", "sglang.launch_server"),
            served_name="Qwen3.8-Flash-Next-NVFP4",
            addresses=("10.0.22.1", "10.0.22.2"),
            rank=rank,
            port=8888,
            master_port=26400,
            engine_arguments=(
                "--trust-remote-code",
                *("--quantization", "modelopt_fp4"),
                *("--attention-backend", "flashinfer"),
                *("--page-size", "64"),
                *("--mem-fraction-static", "0.80"),
                *("--context-length", "262144"),
                *sglang_speculative_arguments(Mtp(method="mtp", draft_tokens=3)),
                "--disable-prefill-cuda-graph",
            ),
        ),
    )
    # The source leaves stages to SGLang's default.
    assert added(ours, source) == {"--pp-size": "1"}
    assert ours.environment == {"SGLANG_HOST_IP": f"10.0.22.{rank + 1}"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 4}, "rank 4 has no address: there are 4, counted from 0"),
        ({"pipeline_parallel_size": 3}, "3 pipeline stages do not divide 4 accelerators"),
        ({"addresses": ("127.0.0.1", "198.51.100.2")}, "127.0.0.1 is a loopback, link-local, unspecified or multicast"),
        ({"addresses": ("169.254.1.1",)}, "169.254.1.1 is a loopback, link-local, unspecified or multicast address"),
        ({"program": ()}, "at least 1 item"),
        ({"port": 0}, "greater than or equal to 1"),
    ],
)
def test_a_rank_that_cannot_be(changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        launch(**changes)


executors = st.sampled_from(["mp", "ray", "external_launcher", "sglang"])


@given(executors, st.integers(1, 8), st.data())
def test_starting_is_pure_and_ranks_differ_only_in_their_number(executor: Executor, nodes: int, data: Any) -> None:
    addresses = tuple(f"198.51.100.{number}" for number in range(1, nodes + 1))
    rank = data.draw(st.integers(0, nodes - 1))
    described = launch(addresses=addresses, rank=rank, engine_arguments=("--enforce-eager",))
    found = start(executor, described)
    assert found == start(executor, described.model_copy())
    numbered = {"--node-rank", "--headless"}
    if executor != "ray":
        head = flags(start(executor, described.model_copy(update={"rank": 0})).argv)
        own = flags(found.argv)
        assert {name for name in head.keys() | own.keys() if head.get(name) != own.get(name)} <= numbered
        own_names = list(own)
        assert own_names.index("--enforce-eager") == len(own_names) - 1
