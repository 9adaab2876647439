"""Other ways to bring a folder from one node to another; each as the shell text that its users would write."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.nodes import FOLDER, TOOLS, BenchNode

SOURCE, TARGET = f"{FOLDER}/source", f"{FOLDER}/target"
_LIBRARIES = f"LD_LIBRARY_PATH={TOOLS}/usr/lib/$(uname -m)-linux-gnu:{TOOLS}/lib/$(uname -m)-linux-gnu"
_PORT = 8873

_NGINX = f"""
worker_processes 2; pid {FOLDER}/nginx.pid; error_log {FOLDER}/nginx.log; user root;
events {{ worker_connections 512; }}
http {{ sendfile on; access_log off; root {SOURCE};
  client_body_temp_path {FOLDER}/n1; proxy_temp_path {FOLDER}/n2; fastcgi_temp_path {FOLDER}/n3;
  uwsgi_temp_path {FOLDER}/n4; scgi_temp_path {FOLDER}/n5;
  server {{ listen {_PORT}; }} }}
"""

_TORRENT = f'''
import sys, time
sys.path.insert(0, "{TOOLS}/usr/lib/python3/dist-packages")
import libtorrent as lt
me, folder, peer = sys.argv[1:4]
session = lt.session({{"listen_interfaces": me + ":{_PORT}", "enable_dht": False, "enable_lsd": False,
    "enable_upnp": False, "enable_natpmp": False, "enable_incoming_utp": False, "enable_outgoing_utp": False,
    "allow_multiple_connections_per_ip": True, "alert_mask": 0}})
info = lt.torrent_info("{FOLDER}/bench.torrent")
handle = session.add_torrent({{"ti": info, "save_path": folder, "flags":
    lt.torrent_flags.seed_mode if peer == "-" else lt.torrent_flags.default_flags & ~lt.torrent_flags.paused
    & ~lt.torrent_flags.auto_managed}})
handle.resume()
if peer != "-":
    handle.connect_peer((peer, {_PORT}))
while peer == "-" or not handle.status().is_seeding:
    time.sleep(0.02)
'''

_MAKE_TORRENT = f'''
import sys
sys.path.insert(0, "{TOOLS}/usr/lib/python3/dist-packages")
import libtorrent as lt
files = lt.file_storage()
lt.add_files(files, "{SOURCE}")
made = lt.create_torrent(files, 4 << 20, lt.create_torrent.v1_only)
lt.set_piece_hashes(made, "{FOLDER}")
open("{FOLDER}/bench.torrent", "wb").write(lt.bencode(made.generate()))
'''


@dataclass(frozen=True)
class Rival:
    """One other way.

    Attributes:
        name: for the table.
        verified: what it verifies by itself.
        prepare: done before the clock starts.
        carry: what is measured.
        finish: done afterwards.
    """

    name: str
    verified: str
    prepare: Callable[[BenchNode, BenchNode, Sequence[str]], None]
    carry: Callable[[BenchNode, BenchNode], None]
    finish: Callable[[BenchNode, BenchNode], None]


def _nothing(*_: object) -> None:
    pass


def tar_over_ssh(source: BenchNode, target: BenchNode) -> None:
    """Carries with tar over ssh, default cipher."""
    source.run(f"tar -C {SOURCE} -cf - . | ssh {target.address} 'tar -C {TARGET} -xf -'")


def _rsync_over_ssh(source: BenchNode, target: BenchNode) -> None:
    source.run(f"rsync -a --whole-file {SOURCE}/ {target.address}:{TARGET}/")


def _start_rsync_daemon(source: BenchNode, target: BenchNode, paths: Sequence[str]) -> None:
    settings = f"uid=root\\ngid=root\\nuse chroot=no\\n[bench]\\npath={TARGET}\\nread only=no\\n"
    target.run(
        f"printf '{settings}' > {FOLDER}/rsyncd.conf; rm -f {FOLDER}/rsyncd.pid; rsync --daemon --port={_PORT} "
        f"--config={FOLDER}/rsyncd.conf --dparam=pidfile={FOLDER}/rsyncd.pid"
    )
    for number in range(4):
        listed = "\\n".join(paths[number::4])
        source.run(f"printf '{listed}\\n' > {FOLDER}/list-{number}")


def _rsync_daemon(source: BenchNode, target: BenchNode) -> None:
    source.run(
        f"for n in 0 1 2 3; do rsync -a --whole-file --files-from={FOLDER}/list-$n {SOURCE}/ "
        f"rsync://{target.address}:{_PORT}/bench/ & done; wait"
    )


def _stop_rsync_daemon(_: BenchNode, target: BenchNode) -> None:
    target.run(f"kill $(cat {FOLDER}/rsyncd.pid)")


def _start_nginx(source: BenchNode, target: BenchNode, paths: Sequence[str]) -> None:
    source.run(
        f"cat > {FOLDER}/nginx.conf <<'E'\n{_NGINX}\nE\n{_LIBRARIES} {TOOLS}/usr/sbin/nginx -c {FOLDER}/nginx.conf"
    )
    urls = [f"http://{source.address}:{_PORT}/{path}" for path in paths]
    curl = "\n".join(f'url="{url}"\noutput="{TARGET}/{path}"' for url, path in zip(urls, paths, strict=True))
    aria = "\n".join(f"{url}\n  out={path}" for url, path in zip(urls, paths, strict=True))
    target.run(f"cat > {FOLDER}/curl.list <<'E'\n{curl}\nE\ncat > {FOLDER}/aria.list <<'E'\n{aria}\nE")


def _curl(_: BenchNode, target: BenchNode) -> None:
    target.run(
        f"{_LIBRARIES} {TOOLS}/usr/bin/curl --silent --fail --parallel --parallel-max 4 --config {FOLDER}/curl.list"
    )


def _aria2(_: BenchNode, target: BenchNode) -> None:
    target.run(
        f"{_LIBRARIES} {TOOLS}/usr/bin/aria2c --quiet --file-allocation=none -x 4 -s 4 -j 2 -d {TARGET} "
        f"--input-file={FOLDER}/aria.list"
    )


def _stop_nginx(source: BenchNode, _: BenchNode) -> None:
    source.run(f"kill $(cat {FOLDER}/nginx.pid)")


def _start_torrent(source: BenchNode, target: BenchNode, _: Sequence[str]) -> None:
    for node in (source, target):
        node.run(f"cat > {FOLDER}/torrent.py <<'E'\n{_TORRENT}\nE")
    source.run(f"cat > {FOLDER}/make.py <<'E'\n{_MAKE_TORRENT}\nE\n{_LIBRARIES} python3 {FOLDER}/make.py")
    source.run(f"scp -q {FOLDER}/bench.torrent {target.address}:{FOLDER}/")
    source.run(
        f"{_LIBRARIES} nohup python3 {FOLDER}/torrent.py {source.address} {FOLDER} - >{FOLDER}/seed.log 2>&1 "
        f"</dev/null & echo $! > {FOLDER}/seed.pid; sleep 1"
    )


def _torrent(source: BenchNode, target: BenchNode) -> None:
    target.run(f"{_LIBRARIES} python3 {FOLDER}/torrent.py {target.address} {TARGET} {source.address}")


def _stop_torrent(source: BenchNode, _: BenchNode) -> None:
    source.run(f"kill $(cat {FOLDER}/seed.pid)")


def _copy(source: BenchNode, _: BenchNode) -> None:
    source.run(f"cp -r {SOURCE} {FOLDER}/copy")


def _copy_and_sync(source: BenchNode, _: BenchNode) -> None:
    source.run(f"cp -r {SOURCE} {FOLDER}/copy && sync -f {FOLDER}/copy")


def _remove_copy(source: BenchNode, *_: object) -> None:
    source.run(f"rm -rf {FOLDER}/copy")


RIVALS = (
    Rival("tar over ssh", "MAC of the wire", _nothing, tar_over_ssh, _nothing),
    Rival("rsync over ssh", "MAC of the wire", _nothing, _rsync_over_ssh, _nothing),
    Rival("rsync daemon, 4 streams", "checksum", _start_rsync_daemon, _rsync_daemon, _stop_rsync_daemon),
    Rival("curl from nginx, 4 at once", "nothing", _start_nginx, _curl, _stop_nginx),
    Rival("aria2 from nginx, 4 connections", "nothing", _start_nginx, _aria2, _stop_nginx),
    Rival("libtorrent over TCP", "SHA-1 pieces", _start_torrent, _torrent, _stop_torrent),
    Rival("local cp", "nothing", _remove_copy, _copy, _remove_copy),
    Rival("local cp and sync", "nothing", _remove_copy, _copy_and_sync, _remove_copy),
)
