"""Shows a Release to a person."""

import shlex

from rich.console import Console
from rich.table import Table

from spec.release import GroupPlan, Release


def show(release: Release) -> None:
    """Prints what is pinned, then every group with the command line of each rank."""
    console = Console(highlight=False)
    console.print(f"[bold]{release.stack}[/bold]  release {release.hash[:16]}  on cluster {release.cluster}")
    console.print(f"  image    {release.image.reference}")
    console.print(f"  weights  {release.model_name} {release.weights.revision[:16]} in {release.weights.folder}")
    console.print(f"  memory   {release.memory.required_bytes / 2**30:.1f} GiB must be available on each node")
    for group in release.groups:
        _show_group(console, group)


def _show_group(console: Console, group: GroupPlan) -> None:
    head = group.ranks[0]
    table = Table(
        title=f"group {group.name}: generation {group.hash[:16]}, API on {head.node}:{group.port}", title_justify="left"
    )
    for heading in ("rank", "node", "container", "command and environment"):
        table.add_column(heading, overflow="fold")
    for rank in group.ranks:
        environment = "\n".join(f"{key}={value}" for key, value in sorted(rank.environment.items()))
        table.add_row(
            str(rank.rank), rank.node, rank.container, f"{shlex.join(rank.command)}\n[dim]{environment}[/dim]"
        )
    console.print(table)
