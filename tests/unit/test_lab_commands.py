import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.commands import dying_with_us, run
from lab.errors import LabError

_ROOT = Path(__file__).parents[2]


def test_a_failure_names_the_command_its_message_and_the_way_out() -> None:
    with pytest.raises(LabError) as caught:
        run(["sh", "-c", "echo no disk >&2; exit 3"], what="write", way_out="Buy one.")
    first, message, last = str(caught.value).splitlines()
    assert first.startswith("write: sh -c")
    assert first.endswith("ended with 3")
    assert (message, last) == ("no disk", "Buy one.")


def test_a_missing_program_and_an_endless_one_are_named() -> None:
    with pytest.raises(LabError, match="no-such-program is not there"):
        run(["no-such-program"], what="try")
    with pytest.raises(LabError, match="no end after 0 s: sleep 1000"):
        run(["sleep", "1000"], what="try", timeout_seconds=0.1)


def test_output_and_input_pass_through() -> None:
    assert run(["cat"], what="copy", input_bytes=b"text") == "text"


def _running_sleeps(seconds: str) -> int:
    listed = subprocess.check_output(["ps", "-e", "-o", "args"], text=True).splitlines()
    return listed.count(f"sleep {seconds}")


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_what_dies_with_us_leaves_nothing_behind() -> None:
    seconds = str(100_000 + os.getpid())
    shell = f"['sh', '-c', 'sleep {seconds} & sleep {seconds}']"
    program = f"from lab.commands import dying_with_us, run; run(dying_with_us({shell}), what='sleep')"
    with subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(_ROOT)}) as child:
        assert _reaches(seconds, 2)
        child.send_signal(signal.SIGKILL)
    assert _reaches(seconds, 0)


def _reaches(seconds: str, count: int) -> bool:
    end = time.monotonic() + 20
    while _running_sleeps(seconds) != count and time.monotonic() < end:
        time.sleep(0.05)
    return _running_sleeps(seconds) == count


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_the_exit_code_of_what_dies_with_us_is_seen() -> None:
    assert run(dying_with_us(["echo", "two words"]), what="echo") == "two words\n"
    with pytest.raises(LabError, match="ended with 7"):
        run(dying_with_us(["sh", "-c", "exit 7"]), what="fail")
