"""`fleet image`: the image chains of patches/ with the identities of their steps."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ops.places import PROJECT
from spec.chain import Debootstrap, PatchChain
from spec.chain_files import read_chain
from spec.errors import SpecificationError
from spec.image import Registry


@dataclass(frozen=True)
class ListedChain:
    """One folder of patches/ that holds a chain.

    Attributes:
        name: of the folder.
        chain: what it describes; none where that is refused.
        refusal: why it is.
    """

    name: str
    chain: PatchChain | None
    refusal: str | None

    def as_data(self) -> dict[str, Any]:
        """Returns it as plain data, for JSON."""
        steps = self.chain.steps if self.chain else ()
        return {
            "name": self.name,
            "identity": self.chain.identity if self.chain else None,
            "steps": [{"name": step.name, "identity": step.identity} for step in steps],
            "refusal": self.refusal,
        }


def listed_chains(patches: Path = PROJECT / "patches") -> list[ListedChain]:
    """Reads every chain; one that is refused does not hide the others."""
    return [_listed(path.parent) for path in sorted(patches.glob("*/chain.yaml"))]


def show_chains(chains: list[ListedChain]) -> None:
    """Prints the chains, a step a line."""
    console = Console(highlight=False, soft_wrap=True)
    for listed in chains:
        if listed.chain is None:
            console.print(f"[bold]{listed.name}[/bold]  [yellow]refused[/yellow]")
            console.print(f"  {listed.refusal}", markup=False)
            continue
        console.print(f"[bold]{listed.name}[/bold]  {listed.chain.identity[:16]}")
        console.print(f"  {listed.chain.description.purpose}", markup=False)
        console.print(f"  base {_shown_origin(listed.chain.description.origin)}", markup=False)
        for step in listed.chain.steps:
            console.print(f"  {step.identity[:16]}  {step.slug}", markup=False)


def _listed(folder: Path) -> ListedChain:
    try:
        return ListedChain(folder.name, read_chain(folder), None)
    except SpecificationError as error:
        return ListedChain(folder.name, None, str(error))


def _shown_origin(origin: Registry | Debootstrap) -> str:
    if isinstance(origin, Registry):
        return f"{origin.repository}@{origin.digest[:19]} ({origin.tag})"
    return f"{origin.reference}: Debian {origin.suite} made here"
