"""Every edit of every chain against the real sources: counts, compiling, doing it twice, assertions."""

import pytest

from runtime.build.edits import ALREADY_PATCHED, apply_edits
from runtime.build.errors import BuildError
from runtime.build.texts import check_assertion, check_edit
from spec.chain import normal_name
from spec.chain_files import read_chain
from spec.errors import SpecificationError
from tests.patches.patched import CHAINS, Patched, as_built, original, patched
from tools.patch_sources import PATCHES, path_in_releases, releases
from tools.patch_table import Measured

EDITED = [(name, file) for name, chain in CHAINS.items() for file in Patched(chain).edits()]
UNPINNED = {"sm121-vllm-0.32", "sm121-vllm-0.33"}


@pytest.mark.parametrize(("chain", "file"), EDITED)
def test_a_chain_patches_its_sources_once_and_what_it_makes_compiles(chain: str, file: str) -> None:
    text = patched(chain).text(file)
    for step, edit in patched(chain).edits()[file]:
        assert edit.marker in text
        assert apply_edits(step, text, [edit]) == (text, [ALREADY_PATCHED])
    if file.endswith(".py"):
        compile(text, file, "exec", dont_inherit=True)


@pytest.mark.parametrize("chain", CHAINS)
def test_what_verify_will_ask_holds_of_the_patched_files(chain: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp(chain)
    for file, edits in patched(chain).edits().items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(patched(chain).text(file), encoding="utf-8")
        for step, edit in edits:
            asked = {
                "step": step,
                "file": file,
                "marker": edit.marker,
                "anchor": edit.anchor,
                "leftover": edit.leftover,
            }
            assert check_edit(asked, folder).outcome == "passed"


@pytest.mark.parametrize("chain", CHAINS)
def test_what_a_chain_takes_for_upstream_is_there(chain: str) -> None:
    for step in CHAINS[chain].steps.values():
        for assertion in step.asserts:
            check = check_assertion(assertion.model_dump(exclude_none=True), patched(chain).folder(assertion.file))
            assert check.outcome == "passed", str(check)


@pytest.mark.parametrize(("tree", "least_tried"), [("vllm", 100), ("flashinfer", 20), ("sglang", 4)])
def test_an_edit_that_fits_a_release_compiles_there_and_one_that_does_not_is_refused(
    tree: str, least_tried: int
) -> None:
    measured = Measured()
    tried = 0
    for name, step in measured.steps.items():
        for edit in (edit for edit in step.edits if edit.file.startswith(f"{tree}/")):
            for release in releases(tree):
                count = measured.count(edit, tree, release)
                if count is None:
                    continue
                tried += 1
                text = original(tree, release, edit.file)
                if count == edit.count:
                    compiled, _ = apply_edits(name, text, [as_built(edit)])
                    if edit.file.endswith(".py"):
                        compile(compiled, f"{release}: {edit.file}", "exec", dont_inherit=True)
                else:
                    with pytest.raises(BuildError, match=r"the anchor is (missing|ambiguous)|only once"):
                        apply_edits(name, text, [as_built(edit)])
    assert tried >= least_tried


@pytest.mark.parametrize("chain", [name for name in CHAINS if name not in UNPINNED])
def test_a_pinned_chain_is_read_and_resolved(chain: str) -> None:
    resolved = read_chain(PATCHES / chain)
    assert [step.name for step in resolved.steps] == list(CHAINS[chain].steps)
    assert "flashinfer-jit-cache" not in resolved.versions


@pytest.mark.parametrize("chain", sorted(UNPINNED))
def test_a_chain_that_nobody_has_pinned_is_refused(chain: str) -> None:
    if CHAINS[chain].is_pinned:
        pytest.fail(f"{chain} is pinned now: take it out of UNPINNED here and out of its chain.yaml's comment")
    with pytest.raises(SpecificationError, match="named by a tag alone"):
        read_chain(PATCHES / chain)


@pytest.mark.parametrize("chain", CHAINS)
def test_headers_are_only_patched_where_no_kernel_is_compiled_ahead(chain: str) -> None:
    """A header takes effect when FlashInfer compiles, which it does not where flashinfer-jit-cache has the kernel."""
    steps = CHAINS[chain].steps.values()
    removed = {normal_name(name) for step in steps if step.packages for name in step.packages.remove}
    headers = {edit.file for step in steps for edit in step.edits if edit.file.endswith(".cuh")}
    assert not headers or "flashinfer-jit-cache" in removed


@pytest.mark.parametrize("chain", CHAINS)
def test_nothing_that_is_installed_moves_nccl_or_mixes_the_dsl(chain: str) -> None:
    for step in CHAINS[chain].steps.values():
        if step.packages is None or not step.packages.install:
            continue
        pins = step.packages.pins
        assert pins["nvidia-nccl-cu13"] == "2.30.7"
        assert {version for name, version in pins.items() if name.startswith("nvidia-cutlass-dsl")} <= {"4.6.2"}
        assert pins.get("flashinfer-python") == pins.get("flashinfer-cubin")


def test_a_step_for_an_absent_base_says_what_it_was_tested_with() -> None:
    """A chain on a stand-in may use steps of released chains; those that only it has say so themselves."""
    bases = {name: chain.description.versions for name, chain in CHAINS.items()}
    absent = {name for name, versions in bases.items() if any("dev" in version for version in versions.values())}
    shared = {step for name, chain in CHAINS.items() if name not in absent for step in chain.steps}
    for name in absent:
        for step_name, step in CHAINS[name].steps.items():
            touches = bool(step.edits or step.packages)
            assert step_name in shared or not touches or step.base_is_absent, step_name


def test_a_file_of_the_image_is_found_under_its_later_name() -> None:
    assert (
        path_in_releases("vllm/models/qwen3_8_flash_next/nvidia/ple_layer.py")
        == "vllm/models/qwen4_exp/nvidia/ple_layer.py"
    )
    assert path_in_releases("vllm/platforms/cuda.py") == "vllm/platforms/cuda.py"
