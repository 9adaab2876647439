"""The pages on fabric and failures say what the program does."""

import re

from ops.places import PROJECT
from spec.catalog import Catalog

DOCS = PROJECT / "docs"

# The numbers that facts/seed-repos.md section 6 has.
PROBLEMS_OF_THE_SOURCES = {
    *(1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22, 23, 25, 26, 28, 29, 31, 32, 34, 35, 37, 38, 40, 41),
    *(43, 44, 46, 47, 49, 50, 52, 53, 55, 56, 58, 59, 61, 62, 64, 65, 67, 68, 70, 71, 73, 74, 76, 77),
}


def test_every_problem_of_the_sources_has_an_entry_or_a_reason_for_none() -> None:
    sources = " ".join(failure.source for failure in Catalog(PROJECT / "catalog").failures().values())
    page = (DOCS / "known-failures.md").read_text()
    silent = "\n".join(row for row in page.splitlines() if row.startswith("| 6."))
    found = {int(number) for number in re.findall(r"\b6\.(\d+)\b", f"{sources}\n{silent}")}
    assert found == PROBLEMS_OF_THE_SOURCES


def test_every_rule_of_the_fabric_is_explained() -> None:
    code = "\n".join((PROJECT / "runtime/fabric" / name).read_text() for name in ("rules.py", "leftovers.py"))
    problems = [text for text in code.split("Problem(")[1:] if re.match(r'\s*"', text)]
    rules = {re.findall(r'"([a-z0-9-]+)"', text)[0]: "may_pass=" in text for text in problems}
    # These two share one message, whose first argument is chosen a line before.
    rules |= dict.fromkeys(re.findall(r'code, why = "([a-z0-9-]+)"', code), False)
    page = (DOCS / "fabric.md").read_text()
    explained: dict[str, bool] = {}
    for row in page.splitlines():
        if row.startswith("| `"):
            names, waits = row.split("|")[1:3]
            explained |= dict.fromkeys(re.findall(r"`([a-z0-9-]+)`", names), "waits" in waits)
    assert explained == rules


def test_the_page_names_rules_that_exist() -> None:
    page = (DOCS / "known-failures.md").read_text()
    rules = "\n".join(path.read_text() for path in (PROJECT / "spec/rules").glob("*.py"))
    named = re.findall(r"rule `([a-z-]+)`", page)
    assert named
    for name in named:
        assert f"def {name.replace('-', '_')}(" in rules
