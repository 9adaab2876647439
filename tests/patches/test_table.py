"""docs/patches.md is what the sources show today."""

from typing import Any

import pytest

from tools import patch_table
from tools.patch_table import TABLE, TableError, table


def test_the_table_is_current() -> None:
    assert TABLE.read_text(encoding="utf-8") == table(), "run `python -m tools.patch_table --write`"


def test_a_claim_that_the_sources_do_not_show_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = patch_table.read_yaml

    def without_a_reason(path: Any, shown: str) -> Any:
        written = real(path, shown)
        if shown == "patches/fixes.yaml":
            del written["vllm"][1]["reasons"]
        return written

    monkeypatch.setattr(patch_table, "read_yaml", without_a_reason)
    with pytest.raises(TableError, match=r"vLLM 0\.29\.0: not upstream, no reason, and no edit fits.*sm90\.py': None"):
        table()
