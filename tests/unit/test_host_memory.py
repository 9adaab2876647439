"""earlyoom and swap, as a preflight finds them."""

from pathlib import Path

import pytest

from runtime.node.host_memory import earlyoom, swap_warnings


def proc(folder: Path, command: str = "", swaps: int = 1, swappiness: int = 0) -> Path:
    """Makes what /proc says of a node."""
    for number, words in enumerate(("/sbin/init", command), start=1):
        (folder / str(number)).mkdir()
        (folder / str(number) / "cmdline").write_bytes("\0".join(words.split(" ")).encode())
    (folder / "swaps").write_text("Filename Type Size\n" + "/swap file 1\n" * swaps)
    (folder / "sys/vm").mkdir(parents=True)
    (folder / "sys/vm/swappiness").write_text(f"{swappiness}\n")
    return folder


@pytest.mark.parametrize(
    ("command", "floor", "percent"),
    [
        ("", 2, None),
        ("/usr/bin/earlyoom", 12, None),
        ("/usr/bin/earlyoom", 10, "10"),
        ("/usr/bin/earlyoom -r 3600", 2, "10"),
        ("/usr/bin/earlyoom -m 15,5 -s 80", 12, "15"),
        ("/usr/bin/earlyoom -m15", 12, "15"),
        ("earlyoom -m 2 -s 80", 12, None),
        ("earlyoom -m 2", 2, "2"),
        ("/usr/bin/earlyoom -M 524288,102400 -s 100", 2, None),
    ],
)
def test_earlyoom_must_act_after_the_guard(tmp_path: Path, command: str, floor: float, percent: str | None) -> None:
    found = earlyoom(floor, proc(tmp_path, command))
    if percent is None:
        assert found is None
    else:
        assert found is not None
        assert f"below {percent} % of memory, the rank's own guard acts below {floor:g} %" in found


@pytest.mark.parametrize(
    ("swaps", "swappiness", "words"),
    [(0, 60, "there is none"), (1, 60, "vm.swappiness is 60"), (1, 0, "")],
)
def test_swap_is_warned_of(tmp_path: Path, swaps: int, swappiness: int, words: str) -> None:
    found = swap_warnings(proc(tmp_path, swaps=swaps, swappiness=swappiness))
    assert [(words or "") in text for text in found] == ([True] if words else [])
