"""What all levels of tests share: the catalogue, the real engine, and one virtual fabric for the whole run."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from lab import fabric
from lab.image_python import ImagePython, image_python
from lab.parts import make_parts
from ops.environment import environment_of
from ops.toolchain import ensure_toolchain
from spec.catalog import Catalog, read_stack
from tests.virtual import CHEAP_ENGINE, FABRIC, Project, make_catalog

PROJECT = Path(__file__).parents[1]

# A busy machine is slow, which is no fault of what is tested.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what runs on virtual nodes, so that the rest can run beside it."""
    for item in items:
        if "virtual_nodes" in getattr(item, "fixturenames", ()) or item.path.name == "test_fabric.py":
            item.add_marker("nodes")


@pytest.fixture
def catalog() -> Catalog:
    """The catalogue of this project."""
    return Catalog(PROJECT / "catalog")


@pytest.fixture
def lab_config() -> dict[str, Any]:
    """What Pulumi.lab.yaml says, to be changed by a test."""
    return read_stack(PROJECT, "lab")


@pytest.fixture(scope="session")
def pulumi_variables() -> dict[str, str]:
    """The environment of a real engine."""
    return environment_of(ensure_toolchain(print)) | {"PULUMI_CONFIG_PASSPHRASE": ""}


@pytest.fixture(scope="session")
def catalog_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """A catalogue with the tests' own cluster, on a login key of its own."""
    folder = tmp_path_factory.mktemp("catalog")
    return Catalog(make_catalog(folder / "catalog", folder / "id_ed25519"))


@dataclass(frozen=True)
class VllmTree:
    """The vLLM that ranks of the lab run, and the Python that runs it."""

    folder: Path
    python: ImagePython


@pytest.fixture(scope="session")
def vllm_tree(catalog_of_the_tests: Catalog) -> VllmTree:
    """Real vLLM, and the lab's model made with it."""
    chain = catalog_of_the_tests.chain("lab", "catalog/images/lab.yaml").description
    parts = make_parts(chain, "lab", catalog_of_the_tests.model("lab"), print)
    return VllmTree(parts.tree, image_python(parts.root, print))


@pytest.fixture(scope="session")
def virtual_nodes(catalog_of_the_tests: Catalog, vllm_tree: VllmTree) -> Iterator[Catalog]:
    """Four virtual nodes with real vLLM on them, beside whatever `./fleet lab up` made."""
    # Nodes of an earlier run have that run's login key and that run's containers.
    fabric.down(FABRIC, report=print)
    binds = [(vllm_tree.folder, "/opt/vllm"), (CHEAP_ENGINE, "/opt/cheap")]
    fabric.up(FABRIC, catalog_of_the_tests.cluster("test"), binds=binds, report=print)
    yield catalog_of_the_tests
    fabric.down(FABRIC, report=print)


@pytest.fixture
def project(tmp_path: Path, virtual_nodes: Catalog, pulumi_variables: dict[str, str]) -> Iterator[Project]:
    """An empty project of its own on the virtual nodes; what it deployed is gone afterwards, whatever happened."""
    made = Project(tmp_path / "project", virtual_nodes.folder, pulumi_variables)
    yield made
    made.end_processes()
    made.clean_nodes()
