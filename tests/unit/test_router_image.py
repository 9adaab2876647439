"""The router's image: made of pinned packages, the same bytes each time, for any architecture, without running any."""

import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ops.errors import OperationError
from ops.router_image import router_archive
from spec.router_source import RouterPackage, RouterSource

FILES = {
    "./usr/sbin/haproxy": b"program",
    "./lib/aarch64-linux-gnu/libc.so.6": b"library",
    "./usr/lib/aarch64-linux-gnu/engines-3/afalg.so": b"plug-in",
    "./usr/share/doc/haproxy/README": b"text",
}


def debian_package(files: dict[str, bytes]) -> bytes:
    """Returns a Debian package with these files and an odd length before them."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.uid, member.mtime = len(content), 0o755, 1000, 1700000000
            tar.addfile(member, io.BytesIO(content))
    parts = {"debian-binary": b"2.0", "control.tar.xz": b"12345", "data.tar.xz": data.getvalue()}
    return b"!<arch>\n" + b"".join(
        f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content + b"\n" * (len(content) % 2)
        for name, content in parts.items()
    )


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serves a folder as a mirror; the cache is empty."""
    monkeypatch.setenv("GB10_SERVING_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mirror").mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "mirror"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


def source_of(mirrors: tuple[str, ...], content: bytes) -> RouterSource:
    package = RouterPackage(
        path="debian/pool/main/h/haproxy/haproxy_1+b_arm64.deb", sha256=hashlib.sha256(content).hexdigest()
    )
    return RouterSource(version="1", mirrors=mirrors, packages={"arm64": (package,)})


def put(tmp_path: Path, path: str, content: bytes) -> None:
    file = tmp_path / "mirror" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def test_the_image_holds_the_program_and_its_libraries_alone(tmp_path: Path, mirror: str) -> None:
    content = debian_package(FILES)
    put(tmp_path, "debian/pool/main/h/haproxy/haproxy_1+b_arm64.deb", content)
    archive = router_archive(source_of((mirror,), content), "aarch64", print)
    with tarfile.open(archive) as tar:
        (manifest,) = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
        assert json.load(tar.extractfile(manifest["Config"]))["architecture"] == "arm64"  # type: ignore[arg-type]
        with tarfile.open(fileobj=tar.extractfile(manifest["Layers"][0])) as layer:
            found = {member.name: member for member in layer}
    assert sorted(name for name, member in found.items() if member.isfile()) == [
        "usr/lib/aarch64-linux-gnu/libc.so.6",
        "usr/sbin/haproxy",
    ]
    assert found["lib"].linkname == "usr/lib"
    assert {(member.uid, member.mtime) for member in found.values()} == {(0, 0)}
    first = archive.read_bytes()
    archive.unlink()
    assert router_archive(source_of((mirror,), content), "aarch64", print).read_bytes() == first


def test_a_package_that_one_mirror_dropped_comes_from_the_next(tmp_path: Path, mirror: str) -> None:
    content = debian_package(FILES)
    put(tmp_path, "archive/debian/20261130/pool/main/h/haproxy/haproxy_1+b_arm64.deb", content)
    put(tmp_path, "debian/pool/main/h/haproxy/haproxy_1+b_arm64.deb", b"another version")
    source = source_of((mirror, mirror + "archive/{archive}/20261130/"), content)
    assert router_archive(source, "aarch64", print).is_file()


def test_a_package_that_nobody_has_is_named_with_a_way_out(mirror: str) -> None:
    with pytest.raises(
        OperationError, match=r"haproxy_1\+b_arm64.deb: no mirror has it with SHA-256 .*Put the file at"
    ):
        router_archive(source_of((mirror,), b"x"), "aarch64", print)


def test_an_architecture_without_packages_is_refused(mirror: str) -> None:
    with pytest.raises(OperationError, match=r"cannot run on riscv64: .* has packages for arm64"):
        router_archive(source_of((mirror,), b"x"), "riscv64", print)


def test_another_mirror_is_no_other_image(mirror: str) -> None:
    assert source_of((mirror,), b"x").identity == source_of(("http://elsewhere/",), b"x").identity
    assert source_of((mirror,), b"x").identity != source_of((mirror,), b"y").identity
