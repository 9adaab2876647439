"""Patches of how a rank waits and what memory it may take."""

import ast
from types import SimpleNamespace

import pytest

from tests.patches.patched import definition, patched

CHAINS = ["glm53-nightly", "sm121-vllm-0.31-dflash2"]


@pytest.mark.parametrize("chain", CHAINS)
def test_a_waiting_rank_sleeps_after_two_milliseconds(chain: str) -> None:
    text = patched(chain).text("vllm/distributed/device_communicators/shm_broadcast.py")
    waits = definition(text, "SpinCondition.__init__").args
    defaults = dict(zip([argument.arg for argument in waits.args][::-1], waits.defaults[::-1], strict=False))
    assert ast.literal_eval(defaults["busy_loop_s"]) == 0.002


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(("environment", "capped"), [({}, []), ({"TORCH_MEM_FRACTION": "0.92"}, [(0.92, "cuda:0")])])
def test_memory_is_capped_where_the_environment_says_so(
    chain: str, environment: dict[str, str], capped: list[tuple[float, str]]
) -> None:
    built = definition(patched(chain).text("vllm/v1/worker/gpu_worker.py"), "Worker.init_device")
    (asked,) = [
        node for node in ast.walk(built) if isinstance(node, ast.If) and "TORCH_MEM_FRACTION" in ast.unparse(node.test)
    ]
    taken: list[tuple[float, str]] = []
    names = {
        "os": SimpleNamespace(environ=environment),
        "torch": SimpleNamespace(
            cuda=SimpleNamespace(set_per_process_memory_fraction=lambda part, device: taken.append((part, device)))
        ),
        "self": SimpleNamespace(device="cuda:0"),
    }
    exec(compile(ast.fix_missing_locations(ast.Module([asked], [])), "cap", "exec"), names)
    assert taken == capped
