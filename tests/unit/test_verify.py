"""Verification of an image: made-up package folders, each with one thing wrong."""

import base64
import hashlib
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime.build.libraries import covers, torch_architectures
from runtime.build.verify import verify

VERSIONS = {"vllm": "0.33.0", "torch": "2.14.0", "flashinfer-python": "0.7.2.post1", "nvidia-nccl-cu13": "2.30.7"}
CUTLASS = ("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-cu13")


class Image:
    """An image's folder tree that passes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.packages = root / "packages"
        for name, version in VERSIONS.items():
            self.install(name, f"{version}+cu130" if name == "torch" else version)
        for name in CUTLASS:
            self.install(name, "4.8.0")
        self.nccl("packages/nvidia/nccl/lib/libnccl.so.2", "2.30.7")
        self.write("packages/torch/lib/libtorch_python.so", b"\x7fELF\0sm_90\0sm_80 sm_90 sm_120 compute_120\0rest")
        self.write("packages/vllm/a.py", b"x = 2  # GB10\n")

    def write(self, path: str, content: bytes) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(content)

    def install(self, name: str, version: str, folder: str | None = None) -> None:
        folder = folder or f"{name.replace('-', '_')}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n\nText: Name: x\n"
        self.write(f"packages/{folder}/METADATA", metadata.encode())

    def remove(self, folder: str) -> None:
        (self.packages / folder / "METADATA").unlink()
        (self.packages / folder).rmdir()

    def nccl(self, path: str, version: str) -> None:
        self.write(path, f"\x7fELF\0NCCL version %d\0NCCL version {version}+cuda13.3\0".encode())

    def verify(self, **changes: Any) -> dict[str, Any]:
        edit = {"step": "gate", "file": "vllm/a.py", "marker": "# GB10", "anchor": "x = 1\n", "leftover": 0}
        request = {
            "packages_folder": "/packages",
            "versions": VERSIONS,
            "capability": "12.0",
            "edits": [edit],
            "asserts": [{"file": "vllm/a.py", "contains": "x = 2", "count": 1}],
            **changes,
        }
        return verify(request, self.root)

    def failures(self, **changes: Any) -> list[str]:
        report = self.verify(**changes)
        failed = [check for check in report["checks"] if check["outcome"] == "failed"]
        assert report["ok"] == (not failed)
        assert all(check["way_out"] and check["expected"] is not None for check in failed)
        return [f"{check['subject']}: {check['found']}" for check in failed]


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def test_an_image_as_it_must_be_passes(image: Image) -> None:
    report = image.verify()
    assert [check for check in report["checks"] if check["outcome"] != "passed"] == []
    assert report["ok"]
    assert report["packages"]["torch"] == ["2.14.0+cu130"]


def test_nccl_downgraded_by_a_package_is_found_by_its_metadata(image: Image) -> None:
    image.remove("nvidia_nccl_cu13-2.30.7.dist-info")
    image.install("nvidia-nccl-cu13", "2.29.7")
    image.nccl("packages/nvidia/nccl/lib/libnccl.so.2", "2.29.7")
    assert [failure.partition(":")[0] for failure in image.failures()] == [
        "nvidia-nccl-cu13",
        "libnccl of nvidia-nccl-cu13",
    ]


def test_nccl_downgraded_behind_its_metadata_is_found_by_its_bytes(image: Image) -> None:
    image.nccl("packages/nvidia/nccl/lib/libnccl.so.2", "2.29.7")
    (failure,) = image.failures()
    assert failure.endswith("libnccl.so.2 says 2.29.7")


def test_a_second_nccl_among_the_packages_fails_and_links_do_not_count(image: Image) -> None:
    (image.packages / "nvidia/nccl/lib/libnccl.so").symlink_to("libnccl.so.2")
    assert image.failures() == []
    image.nccl("packages/other/libnccl.so.2.29.7", "2.29.7")
    assert image.failures()[0].startswith("libnccl of nvidia-nccl-cu13: ")


def test_a_libnccl_of_the_distribution_is_noted(image: Image) -> None:
    image.nccl("usr/lib/aarch64-linux-gnu/libnccl.so.2.28.3", "2.28.3")
    report = image.verify()
    assert report["ok"]
    assert any(check["outcome"] == "noted" and "2.28.3" in check["found"] for check in report["checks"])


def test_no_libnccl_at_all_fails(image: Image) -> None:
    (image.packages / "nvidia/nccl/lib/libnccl.so.2").unlink()
    assert image.failures() == ["libnccl of nvidia-nccl-cu13: no libnccl.so"]


def test_two_metadata_folders_of_one_name_fail(image: Image) -> None:
    image.install("flashinfer-python", "0.7.2.post1", "flashinfer_python-0.7.0.dist-info")
    assert image.failures() == [
        "flashinfer-python: ['flashinfer_python-0.7.0.dist-info', 'flashinfer_python-0.7.2.post1.dist-info']"
    ]


@pytest.mark.parametrize("left", ["flashinfer_jit_cache-0.7.2.dist-info/METADATA", "flashinfer_jit_cache/kernel.so"])
def test_kernels_compiled_ahead_fail_also_without_metadata(image: Image, left: str) -> None:
    image.write(f"packages/{left}", b"Name: flashinfer-jit-cache\nVersion: 0.7.2\n\n")
    assert image.failures()[0].startswith("flashinfer-jit-cache: ")


def test_kernels_compiled_on_the_builder_fail(image: Image) -> None:
    image.write("root/.cache/flashinfer/0.7.2/121a/x.so", b"")
    assert image.failures() == ["/root/.cache/flashinfer: present"]


def test_parts_of_the_cutlass_dsl_must_have_one_version(image: Image) -> None:
    image.remove("nvidia_cutlass_dsl_libs_base-4.8.0.dist-info")
    image.install("nvidia-cutlass-dsl-libs-base", "4.7.0")
    assert image.failures()[0].startswith("CUTLASS DSL: ")


def test_files_of_the_base_part_over_those_of_the_cuda_part_fail(image: Image) -> None:
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"cu13").digest()).rstrip(b"=").decode()
    record = f"cutlass/mma.py,sha256={digest},4\nnvidia_cutlass_dsl_libs_cu13-4.8.0.dist-info/RECORD,,\n"
    image.write("packages/nvidia_cutlass_dsl_libs_cu13-4.8.0.dist-info/RECORD", record.encode())
    image.write("packages/cutlass/mma.py", b"cu13")
    assert image.failures() == []
    image.write("packages/cutlass/mma.py", b"base")
    (failure,) = image.failures()
    assert "1 of 1 files are another package's, such as cutlass/mma.py" in failure


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"x = 2\n", "marker '# GB10' is missing"),
        (b"x = 2  # GB10\nx = 1\n", "stands there 1 times"),
    ],
)
def test_a_patch_that_a_later_step_lost_fails(image: Image, content: bytes, words: str) -> None:
    image.write("packages/vllm/a.py", content)
    (failure,) = image.failures()
    assert failure.startswith("edit of gate in vllm/a.py: ")
    assert words in failure


def test_a_package_that_is_absent_or_must_be(image: Image) -> None:
    assert image.failures(versions={"mentat": "0.12.0"}) == ["mentat: not installed"]
    assert image.failures(absent=["vllm"]) == ["vllm: ['vllm-0.33.0.dist-info']"]
    assert image.failures(versions={"torch": "2.14.0+cu129"}) == ["torch: 2.14.0+cu130"]


def test_a_folder_without_packages_fails(image: Image) -> None:
    failure, *_ = image.failures(packages_folder="/elsewhere", versions={}, edits=[], asserts=[])
    assert failure.startswith("packages folder: no packages in ")


def test_torch_without_code_for_the_gpu_fails_and_torch_that_does_not_tell_is_unknown(image: Image) -> None:
    image.write("packages/torch/lib/libtorch_python.so", b"\0sm_80 sm_90 compute_90\0")
    assert image.failures() == ["architectures of torch: sm_80 sm_90 compute_90"]
    image.write("packages/torch/lib/libtorch_python.so", b"")
    report = image.verify()
    assert report["ok"]
    assert [check["subject"] for check in report["checks"] if check["outcome"] == "unknown"] == [
        "architectures of torch"
    ]


@pytest.mark.parametrize(
    ("architectures", "capability", "expected"),
    [
        (["sm_120"], "12.1", True),
        (["sm_120f"], "12.1", True),
        (["sm_120a"], "12.1", False),
        (["sm_121a"], "12.1", True),
        (["sm_121"], "12.0", False),
        (["sm_90", "compute_90"], "12.0", False),
        (["compute_120"], "12.0", True),
        (["sm_100f"], "12.0", False),
    ],
)
def test_which_architectures_run_where(architectures: list[str], capability: str, expected: bool) -> None:
    assert covers(architectures, capability) == expected


def test_the_longest_list_is_torchs(image: Image) -> None:
    assert torch_architectures(image.packages) == ["sm_80", "sm_90", "sm_120", "compute_120"]


def test_a_link_that_a_later_step_took_away_or_emptied_fails(image: Image) -> None:
    link = {"path": "/usr/include/nvrtc.h", "target": "/packages/vllm/a.py"}
    assert image.failures(links=[link]) == ["link /usr/include/nvrtc.h: absent"]
    image.write("usr/include/nvrtc.h", b"real")
    assert image.failures(links=[link]) == ["link /usr/include/nvrtc.h: no link"]
    (image.root / "usr/include/nvrtc.h").unlink()
    (image.root / "usr/include/nvrtc.h").symlink_to("/packages/vllm/a.py")
    assert image.failures(links=[link]) == []
    (image.packages / "vllm/a.py").unlink()
    assert "link /usr/include/nvrtc.h: leads to nothing" in image.failures(links=[link])


def test_a_debian_package_that_is_not_pinned_is_named(image: Image) -> None:
    image.write("var/lib/dpkg/status", b"Package: iproute2\nStatus: install ok installed\nVersion: 6.1\n")
    free = {"name": "iproute2", "version": None, "any_version": True}
    report = image.verify(debian=[free])
    assert report["ok"]
    assert report["checks"][-1] == {
        "subject": "Debian package iproute2",
        "outcome": "noted",
        "found": "6.1: not pinned (any_version), another build may have another",
    }
    pinned = {"name": "iproute2", "version": "6.0", "any_version": False}
    assert image.failures(debian=[pinned]) == ["Debian package iproute2: 6.1"]


def test_entrypoint_and_architecture(image: Image) -> None:
    other = {"expected": "s390x"}
    own = {"aarch64": "arm64", "x86_64": "amd64"}.get(platform.machine(), platform.machine())
    assert image.failures(architecture={"expected": own}, entrypoint={"expected": ["python3"]}) == []
    assert image.failures(architecture=other) == [f"architecture: {own}"]
    assert image.failures(architecture=other | {"found": "s390x"}) == []
    assert image.failures(entrypoint={"expected": ["no-such-program"]}) == ["entrypoint: no program no-such-program"]
    found = {"expected": ["python3"], "found": ["vllm", "serve"]}
    assert image.failures(entrypoint=found) == ["entrypoint: ['vllm', 'serve']"]


def run(image: Image, request: dict[str, Any], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", "-m", "runtime.build", "verify", *arguments]
    project = Path(__file__).parents[2]
    request = {"packages_folder": str(image.packages), **request}
    return subprocess.run(command, input=json.dumps(request), cwd=project, capture_output=True, text=True, check=False)


def test_the_exit_code_and_the_report_file_say_what_was_found(image: Image, tmp_path: Path) -> None:
    report = tmp_path / "records" / "verify.json"
    good = run(image, {"versions": VERSIONS}, "-", "--report", str(report))
    assert good.returncode == 0, good.stderr
    assert json.loads(report.read_text()) == json.loads(good.stdout)
    bad = run(image, {"versions": {"vllm": "0.32.0"}}, "-", "--report", str(report))
    assert bad.returncode == 1
    assert "vllm: failed: 0.33.0, must be: 0.32.0" in bad.stderr
    assert not json.loads(report.read_text())["ok"]
