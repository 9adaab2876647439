"""The golden files: what every stack makes each rank run, a word a line, so that a change is a plain diff in review."""

from pathlib import Path

from ops.places import PROJECT
from ops.stacks import planned, stacks
from spec.release import FrontPlan, GroupPlan, ImagePlan, RankPlan, Release, RouterPlan

GOLDEN = PROJECT / "tests" / "golden"


def golden_path(stack: str) -> Path:
    """Returns where a stack's golden file is."""
    return GOLDEN / f"{stack}.txt"


def golden_text(release: Release) -> str:
    """Returns everything of a Release that a node gets to see, without hashes, which change with every line."""
    lines = [
        f"stack {release.stack} on cluster {release.cluster}",
        *_image_lines(release.image),
        *(f"weights {plan.name} {plan.revision} -> {plan.target}" for plan in release.weights),
    ]
    for group in release.groups:
        lines += ["", *_group_lines(group)]
    if release.router:
        lines += ["", *_router_lines(release.router)]
    return "\n".join(lines) + "\n"


def write_golden_files() -> list[str]:
    """Writes all golden files anew and returns the stacks whose file changed."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    changed = []
    for stack in stacks():
        path, text = golden_path(stack), golden_text(planned(stack))
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            changed.append(stack)
    for stale in {path.stem for path in GOLDEN.glob("*.txt")} - set(stacks()):
        golden_path(stale).unlink()
        changed.append(stale)
    return changed


def _image_lines(image: ImagePlan) -> list[str]:
    """Returns where the image starts and which steps it has; their content is reviewed in patches/."""
    steps = image.chain.steps if image.chain else ()
    return [
        f"image {image.base.pull or image.version}, built on {image.build_on}",
        *(f"  step {step.name}" for step in steps),
    ]


def _group_lines(group: GroupPlan) -> list[str]:
    lines = [f"group {group.name}: port {group.port}, needs {group.required_bytes} bytes on each node"]
    if group.kv_cache:
        lines.append(f"KV cache: {group.kv_cache.tokens} tokens in {group.kv_cache.blocks} blocks")
    for rank in group.ranks:
        lines += ["", *_rank_lines(rank)]
    return lines


def _router_lines(router: RouterPlan) -> list[str]:
    return [
        f"router on {router.node}:{router.port}: {router.container}, {router.image}",
        *(f"  {line}" for line in router.settings.splitlines()),
    ]


def _rank_lines(rank: RankPlan) -> list[str]:
    own = rank.supervision.peers[rank.rank]
    return [
        f"rank {rank.rank} on {rank.node}: {rank.container}",
        *(f"  {line}" for line in _command_lines(rank.command)),
        *(f"  {key}={value}" for key, value in sorted(rank.environment.items())),
        *(
            f"  mount {mount.source} at {mount.target}{'' if mount.read_only else ', writable'}"
            for mount in rank.mounts
        ),
        *(f"  before: {' '.join(step)}" for step in rank.supervision.before),
        *([f"  awaits {n} accelerators"] if (n := rank.supervision.awaited_accelerators) else []),
        f"  supervisor at {own.address}:{own.port}, floor {rank.supervision.floor_percent:g} %, "
        f"backstop {rank.supervision.backstop_percent:g} %, page cache {rank.supervision.page_cache.release}",
        *(
            [f"  tells the router on port {front.port}, drains {front.drain_seconds} s"]
            if (front := _front(rank))
            else []
        ),
        *(f"  device {device}" for device in rank.devices),
        *(f"  capability {capability}" for capability in rank.capabilities),
        f"  open files {rank.open_files}, locked memory {rank.locked_memory_bytes}, gpus {rank.gpus}",
    ]


def _front(rank: RankPlan) -> FrontPlan | None:
    return rank.supervision.front


def _command_lines(command: tuple[str, ...]) -> list[str]:
    """Returns a flag with its values a line; what stands before the first flag is one line."""
    lines: list[list[str]] = [[]]
    for word in command:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word)
    return [" ".join(words) for words in lines if words]
