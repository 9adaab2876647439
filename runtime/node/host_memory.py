"""What else on a node acts on its memory: earlyoom, which kills without a word, and swap."""

from pathlib import Path

EARLYOOM_DEFAULT_PERCENT = 10.0
"""Of MemAvailable, where nobody gave `-m`."""


def earlyoom(floor_percent: float, proc: Path = Path("/proc")) -> str | None:
    """Refuses an earlyoom that acts before our own guard, which says why and stops the whole group.

    Seed 000: earlyoom's default ended a worker with no traceback, and nothing but its own journal told.

    Args:
        floor_percent: of the guard.
        proc: where processes are found.
    """
    arguments = _arguments_of("earlyoom", proc)
    if arguments is None:
        return None
    percent = _percent(arguments)
    if percent < floor_percent:
        return None
    return (
        f"earlyoom: it runs here and kills the largest process below {percent:g} % of memory, the rank's own guard "
        f"acts below {floor_percent:g} %: `systemctl disable --now earlyoom`, or give it less than that with `-m` in "
        "/etc/default/earlyoom"
    )


def swap_warnings(proc: Path = Path("/proc")) -> list[str]:
    """Returns what the node's swap may do to an engine on unified memory; a matter of choice, so never a refusal.

    The sources met both (facts/seed-repos.md section 6, 44): pages that are swapped out under load bring the driver to
    a standstill, and without any swap repacking the weights was killed.
    """
    swaps = (proc / "swaps").read_text().splitlines()[1:]
    swappiness = int((proc / "sys/vm/swappiness").read_text())
    if not swaps:
        return ["swap: there is none, and repacking weights needs more than serving them: a few GiB help the start"]
    if swappiness > 0:
        return [
            f"swap: vm.swappiness is {swappiness}, so pages go out under load, which has brought the driver to a "
            "standstill: `sysctl vm.swappiness=0`, and in /etc/sysctl.d so that it lasts"
        ]
    return []


def _arguments_of(program: str, proc: Path) -> list[str] | None:
    for path in proc.glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it ended
        if Path(words[0]).name == program:
            return words[1:]
    return None


def _percent(arguments: list[str]) -> float:
    """Returns the threshold of `-m PERCENT[,KILL]`, in any of the forms that getopt takes."""
    for position, word in enumerate(arguments):
        if word.startswith("-m"):
            text = word[2:] or (arguments[position + 1] if position + 1 < len(arguments) else "")
            number = text.lstrip("=").split(",")[0]
            return float(number) if number.replace(".", "", 1).isdigit() else EARLYOOM_DEFAULT_PERCENT
        if word.startswith("-M"):
            return 0.0  # in KiB, which is chosen for the machine
    return EARLYOOM_DEFAULT_PERCENT
