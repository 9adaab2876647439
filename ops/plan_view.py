"""Shows a Release to a person: what is pinned, what each rank runs, where the memory goes, what the rules warn of."""

import shlex

from rich.console import Console
from rich.table import Table

from ops.errors import OperationError
from spec.arithmetic import Range
from spec.memory import MemoryPlan
from spec.origin import Origin
from spec.release import GroupPlan, RankPlan, Release, WeightsPlan
from spec.rules import FIRST, RULES

_GIB = 1 << 30
_BAR_WIDTH = 60


def show(release: Release) -> None:
    """Prints the whole plan."""
    console = Console(highlight=False)
    console.print(f"[bold]{release.stack}[/bold]  release {release.hash[:16]}  on cluster {release.cluster}")
    if not release.active:
        console.print("  parked   (active: false): the ranks below do not run; image and weights stay on the nodes")
    console.print(f"  image    {release.image.reference}  engine {release.image.version}")
    console.print(f"           {release.image.base.pull or 'made here'}, built on {release.image.build_on}")
    for step in release.image.chain.steps if release.image.chain else ():
        console.print(f"           {step.name} {step.identity[:16]}")
    for plan in release.weights:
        console.print(f"  weights  {plan.name} {plan.revision[:16]} in {plan.folder}, ranks see {plan.path}")
        console.print(f"           from {_origin_of(plan)}; manifest {plan.manifest or 'not pinned'}", markup=False)
    for group in release.groups:
        _show_group(console, group, release)
    if release.router:
        members = ", ".join(one.group for one in release.router.members)
        console.print(f"\n[bold]router[/bold]  {release.router.node}:{release.router.port} before {members}")
    _show_findings(console, release)


def show_origins(key: str, origins: list[Origin]) -> None:
    """Prints where a value came from.

    Raises:
        OperationError: nobody sets it.
    """
    if not origins:
        raise OperationError(
            f"{key}: nobody sets it. Ask for a flag (--block-size), a variable (NCCL_IB_HCA) or a key of the stack "
            "file (engine/max_model_len)"
        )
    console = Console(highlight=False, soft_wrap=True)
    for origin in origins:
        console.print(f"{origin.rank + ': ' if origin.rank else ''}{key} = {origin.value}", markup=False)
        console.print(f"    from {origin.place}", markup=False)
        if origin.why:
            console.print(f"    because {origin.why}", markup=False)
        for other in origin.instead_of:
            console.print(f"    instead of {other}", markup=False)


def show_rules() -> None:
    """Prints every rule with its severity."""
    table = Table(box=None, pad_edge=False)
    for heading in ("rule", "severity", "what must hold"):
        table.add_column(heading, overflow="fold")
    for rule in (*FIRST, *RULES):
        table.add_row(rule.id, rule.severity, rule.summary)
    Console(highlight=False).print(table)


def docker_run(release: Release, rank: RankPlan) -> str:
    """Returns the `docker run` of a rank's engine alone, a setting a line: to try it by hand, unwatched."""
    steps = [f"# before it, in the same container: {shlex.join(step)}" for step in rank.supervision.before]
    words = [
        f"--name {rank.container}",
        "--network host --ipc host --init",
        *(["--gpus all"] if rank.gpus else []),
        *(f"--device {device}" for device in rank.devices),
        *(f"--cap-add {capability}" for capability in rank.capabilities),
        f"--ulimit nofile={rank.open_files}:{rank.open_files}",
        f"--ulimit memlock={rank.locked_memory_bytes}:{rank.locked_memory_bytes} --ulimit core=0:0",
        *(f"--env {shlex.quote(f'{key}={value}')}" for key, value in sorted(rank.environment.items())),
        *(f"--volume {mount.source}:{mount.target}{':ro' if mount.read_only else ''}" for mount in rank.mounts),
        f"--entrypoint {shlex.quote(rank.command[0])} {release.image.reference}",
        shlex.join(rank.command[1:]),
    ]
    return "\n".join([*steps, " \\\n  ".join(["docker run --detach", *words])])


def find_rank(release: Release, name: str) -> RankPlan:
    """Returns the rank `GROUP/NUMBER`, or `NUMBER` of the first group.

    Raises:
        OperationError: there is none.
    """
    known = {f"{group.name}/{rank.rank}": rank for group in release.groups for rank in group.ranks}
    known |= {str(rank.rank): rank for rank in release.groups[0].ranks}
    if name not in known:
        raise OperationError(f"--docker {name}: the stack {release.stack} has the ranks {', '.join(known)}")
    return known[name]


def _origin_of(plan: WeightsPlan) -> str:
    source = plan.source
    if source.kind == "controller":
        return f"the controller, {source.folder}"
    if source.kind == "nfs":
        return f"the share {source.export}, read in place"
    node = source.connection.node if source.connection else ""
    return f"{node}, {f'downloaded from {plan.repository}' if source.kind == 'huggingface' else source.folder}"


def _show_group(console: Console, group: GroupPlan, release: Release) -> None:
    head = group.ranks[0]
    api = f"API on {head.node}:{group.port}" if group.serves else "an offline job, no API"
    console.print(f"\n[bold]group {group.name}[/bold]  generation {group.hash[:16]}  {api}")
    if group.kv_cache:
        cache = group.kv_cache
        console.print(
            f"  KV cache {cache.tokens:,} tokens, {cache.concurrency:.2f} requests of {cache.max_model_len:,} "
            f"({cache.kv_cache_bytes / _GIB:.2f} GiB a rank, formula of vLLM {cache.vllm_version})"
        )
    console.print(f"  {group.required_bytes / _GIB:.1f} GiB must be available on each node before its rank starts")
    if group.memory:
        _show_memory(console, group, group.memory, release.memory.floor_percent)
    table = Table(show_lines=True)
    for heading in ("rank", "node", "command and environment"):
        table.add_column(heading, overflow="fold")
    for rank in group.ranks:
        environment = "\n".join(f"{key}={value}" for key, value in sorted(rank.environment.items()))
        table.add_row(str(rank.rank), rank.node, f"{shlex.join(rank.command)}\n[dim]{environment}[/dim]")
    console.print(table)


def _show_memory(console: Console, group: GroupPlan, plan: MemoryPlan, floor_percent: float) -> None:
    console.print(f"  memory of each node at rest, of {plan.total_bytes / _GIB:.1f} GiB (floor {floor_percent:g} %):")
    for rank, memory in zip(group.ranks, plan.ranks, strict=True):
        parts = {
            "weights": ("W", memory.weights),
            "drafter": ("D", memory.drafter),
            "KV cache": ("K", memory.kv_cache),
            "engine": ("E", memory.runtime),
            "graphs": ("G", memory.graphs),
            "host": ("H", memory.host),
            "API server": ("A", memory.api_server),
        }
        bar = "".join(letter * _width(part, plan.total_bytes) for letter, part in parts.values() if part)
        left = f"{memory.available_share_low * 100:.0f} to {memory.available_share_high * 100:.0f} % left"
        console.print(f"    {rank.node:<12} |{bar[:_BAR_WIDTH]:.<{_BAR_WIDTH}}| {left}", markup=False)
    console.print("    W weights, D drafter, K KV cache, E engine, G graphs, H host, A API server, . available")


def _width(part: Range, total_bytes: int) -> int:
    return round(_BAR_WIDTH * (part.low + part.high) / 2 / total_bytes)


def _show_findings(console: Console, release: Release) -> None:
    for finding in release.findings:
        accepted = f" (acknowledged: {finding.acknowledged})" if finding.acknowledged else ""
        console.print(f"\n[yellow]warning {finding.rule}[/yellow]{accepted}")
        console.print(f"  {finding.text}", markup=False, soft_wrap=True)
