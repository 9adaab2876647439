"""Reads the catalogue, the image chains that it names and the stack files."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spec.ailment import Ailment, AilmentFile
from spec.chain import PatchChain
from spec.chain_files import read_chain
from spec.cluster import Cluster, Hardware
from spec.errors import Problem, SpecificationError
from spec.failures import Failure, FailureFile
from spec.flags import FlagTable, flag_tables, table_of
from spec.image import Image
from spec.model import Model
from spec.reference import ReferenceFile
from spec.router_source import RouterSource
from spec.yaml_files import Entry, parse, read_yaml

STACK_KEY = "gb10-serving:deployment"


@dataclass(frozen=True)
class Catalog:
    """The folder that holds what deployments are made of, one YAML file an entry.

    Attributes:
        folder: holds the folders clusters, failures, flags, hardware, images, models and routers; the image chains are
            in patches/ beside it.
    """

    folder: Path

    def cluster(self, name: str) -> Cluster:
        """Returns catalog/clusters/NAME.yaml."""
        return self._entry("clusters", name, Cluster)

    def hardware(self, name: str) -> Hardware:
        """Returns catalog/hardware/NAME.yaml."""
        return self._entry("hardware", name, Hardware)

    def image(self, name: str) -> Image:
        """Returns catalog/images/NAME.yaml."""
        return self._entry("images", name, Image)

    def model(self, name: str) -> Model:
        """Returns catalog/models/NAME.yaml."""
        return self._entry("models", name, Model)

    def router(self, name: str) -> RouterSource:
        """Returns catalog/routers/NAME.yaml."""
        return self._entry("routers", name, RouterSource)

    def chain(self, name: str, file: str) -> PatchChain:
        """Returns the chain patches/NAME.

        Args:
            name: of its folder.
            file: where the name stands, for messages.
        """
        patches = self.folder.parent / "patches"
        if not (patches / name / "chain.yaml").is_file():
            known = ", ".join(sorted(path.parent.name for path in patches.glob("*/chain.yaml"))) or "none"
            raise SpecificationError(
                Problem(file, "chain", name, "there is no such chain", f"use one of: {known}; or add patches/{name}/")
            )
        return read_chain(patches / name)

    def references(self) -> dict[str, ReferenceFile]:
        """Returns every catalog/references/NAME.yaml by its name."""
        paths = sorted((self.folder / "references").glob("*.yaml"))
        return {path.stem: self._entry("references", path.stem, ReferenceFile) for path in paths}

    def ailments(self) -> dict[str, Ailment]:
        """Returns what may be wrong with a node (catalog/doctor/*.yaml), by id."""
        found: dict[str, Ailment] = {}
        for path in sorted((self.folder / "doctor").glob("*.yaml")):
            shown = f"{self.folder.name}/doctor/{path.name}"
            found |= parse(AilmentFile, read_yaml(path, shown), shown).root
        return found

    def flag_table(self, version: str, file: str) -> FlagTable:
        """Returns catalog/flags/vllm-VERSION.json.

        Args:
            version: of vLLM.
            file: where the version is named, for messages.
        """
        tables = {path.name: json.loads(path.read_text()) for path in (self.folder / "flags").glob("*.json")}
        return table_of(flag_tables(tables), version, file, "flag_table")

    def failures(self) -> dict[str, Failure]:
        """Returns the known failures of catalog/failures/*.yaml, by id.

        Raises:
            SpecificationError: a file is not readable, or an id stands in two of them.
        """
        found: dict[str, Failure] = {}
        for path in sorted((self.folder / "failures").glob("*.yaml")):
            shown = f"{self.folder.name}/failures/{path.name}"
            entries = parse(FailureFile, read_yaml(path, shown), shown).root
            for key in found.keys() & entries.keys():
                raise SpecificationError(
                    Problem(shown, key, None, "another file of this folder has this id too", "choose another id")
                )
            found |= entries
        return found

    def _entry(self, kind: str, name: str, entry: type[Entry]) -> Entry:
        path = self.folder / kind / f"{name}.yaml"
        shown = f"{self.folder.name}/{kind}/{name}.yaml"
        if not path.is_file():
            known = ", ".join(sorted(file.stem for file in path.parent.glob("*.yaml"))) or "none"
            raise SpecificationError(
                Problem(
                    shown,
                    "(whole file)",
                    name,
                    f"the catalogue has no such entry in {kind}",
                    f"use one of: {known}; or add {shown}",
                )
            )
        return parse(entry, read_yaml(path, shown), shown)


def refuse_unclean_file(project: Path, stack: str) -> None:
    """Reads Pulumi.STACK.yaml as strictly as every other file: Pulumi itself overlooks most of what can be wrong in it.

    A stack whose configuration lies elsewhere has no such file, and nothing to refuse.

    Raises:
        SpecificationError: the file is there and cannot be trusted, or says nothing of a deployment.
    """
    if (project / f"Pulumi.{stack}.yaml").is_file():
        read_stack(project, stack)


def read_stack(project: Path, stack: str) -> Any:
    """Returns what Pulumi.STACK.yaml says under `gb10-serving:deployment`, not yet validated.

    Raises:
        SpecificationError: the file or the key is absent, or the file is not readable.
    """
    shown = f"Pulumi.{stack}.yaml"
    content = read_yaml(project / shown, shown) or {}
    config = content.get("config") or {}
    if STACK_KEY not in config:
        raise SpecificationError(
            Problem(
                shown,
                f"config/{STACK_KEY}",
                None,
                "a stack file describes its deployment under this key",
                f"add the key to {shown}, as in Pulumi.lab.yaml",
            )
        )
    return config[STACK_KEY]
