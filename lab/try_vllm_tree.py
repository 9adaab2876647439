"""Imports from a new tree what serving imports; runs inside the rank image's Python with the tree writable.

Ranks cannot write into the tree, and three processes each import vLLM, one after the other. What is imported here is
kept compiled, and so is what vLLM finds out about the lab's architecture in one more process: a rank starts in 20 s
instead of 50.
"""

import importlib

MODULES = (
    "compressed_tensors",
    "model_hosting_container_standards.sagemaker",
    "prometheus_fastapi_instrumentator",
    "setproctitle",
    "transformers.models.qwen3.modeling_qwen3",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.websockets.auto",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
    "vllm.entrypoints.anthropic.api_router",
    "vllm.entrypoints.cli.benchmark.main",
    "vllm.entrypoints.cli.collect_env",
    "vllm.entrypoints.cli.launch",
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.openai",
    "vllm.entrypoints.cli.run_batch",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.cli.snapshot",
    "vllm.entrypoints.cohere.api_router",
    "vllm.entrypoints.generate.api_router",
    "vllm.entrypoints.generate.generative_scoring.api_router",
    "vllm.entrypoints.generate.structured_decisions.api_router",
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.openai.chat_completion.api_router",
    "vllm.entrypoints.openai.completion.api_router",
    "vllm.entrypoints.openai.responses.api_router",
    "vllm.entrypoints.serve.elastic_ep.api_router",
    "vllm.entrypoints.serve.tokenize.api_router",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.model_executor.models.qwen3",
    "vllm.renderers.hf",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
)


def main() -> None:
    """Imports it all and looks at the lab's architecture.

    Raises:
        RuntimeError: vLLM does not take itself for the build for processors.
    """
    for module in MODULES:
        importlib.import_module(module)
    platforms = importlib.import_module("vllm.platforms")
    if not platforms.current_platform.is_cpu():
        raise RuntimeError(f"vLLM chose {platforms.current_platform}, not the platform for processors")
    registry = importlib.import_module("vllm.model_executor.models.registry")
    registry.ModelRegistry.models["Qwen3ForCausalLM"].inspect_model_cls()


if __name__ == "__main__":
    main()
