"""Reads the YAML files that describe clusters, hardware, images, models and stacks. The only file access of spec/."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from spec.cluster import Cluster, Hardware
from spec.errors import Problem, SpecificationError, problems_of
from spec.failures import Failure, FailureFile
from spec.flags import FlagTable, flag_tables, table_of
from spec.image import Image
from spec.model import Model

STACK_KEY = "gb10-serving:deployment"

Entry = TypeVar("Entry", bound=BaseModel)


class _StrictLoader(yaml.SafeLoader):
    """A safe loader that refuses a key that stands twice in one mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, shown: str) -> Any:
    """Reads one YAML file strictly.

    Args:
        path: the file.
        shown: its name in messages.

    Raises:
        SpecificationError: it is absent, is not UTF-8, starts with a byte-order mark, has carriage returns, is not
            YAML or holds a key twice.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise SpecificationError(
            Problem(shown, "(whole file)", None, "the file does not exist", f"create {shown}")
        ) from None
    if raw.startswith(b"\xef\xbb\xbf"):
        raise _unreadable(shown, "the file starts with a byte-order mark", "save it as UTF-8 without BOM")
    if b"\r" in raw:
        line = raw[: raw.index(b"\r")].count(b"\n") + 1
        raise _unreadable(shown, f"line {line} ends with a carriage return", "save the file with Unix line ends")
    try:
        return yaml.load(raw.decode(), _StrictLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _unreadable(shown, f"not readable as YAML: {error}", "correct the file at that place") from None


def _unreadable(shown: str, rule: str, way_out: str) -> SpecificationError:
    return SpecificationError(Problem(shown, "(whole file)", None, rule, way_out))


@dataclass(frozen=True)
class Catalog:
    """The folder that holds what deployments are made of, one YAML file an entry.

    Attributes:
        folder: holds the folders clusters, failures, flags, hardware, images and models.
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


def parse(entry: type[Entry], data: Any, shown: str, prefix: str = "") -> Entry:
    """Validates plain data as one model.

    Raises:
        SpecificationError: naming `shown`, the key below `prefix`, the value and the rule.
    """
    try:
        return entry.model_validate(data)
    except ValidationError as error:
        raise SpecificationError(*problems_of(error, shown, prefix)) from None


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
