"""All rules, in the order in which they are asked. A new rule is a function in one of the modules and a line here."""

from spec.rules import groups
from spec.rules.rule import Estimate, Rule

FIRST: tuple[Rule, ...] = (groups.nodes_exist,)
"""What must hold before anything can be estimated."""

RULES: tuple[Rule, ...] = ()
"""What is asked with the estimates at hand."""

__all__ = ["FIRST", "RULES", "Estimate", "Rule"]
