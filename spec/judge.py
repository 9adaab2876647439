"""Asks the rules about a deployment: refusals stop it, warnings are kept unless the stack file accepts them."""

from collections.abc import Iterable

from spec.errors import Problem, SpecificationError
from spec.release import Finding
from spec.rules import Estimate, Rule
from spec.situation import Situation


def judge(situation: Situation, estimates: dict[str, Estimate], rules: Iterable[Rule]) -> tuple[Finding, ...]:
    """Returns the warnings of these rules.

    Raises:
        SpecificationError: a rule refuses the deployment; all refusals are listed.
    """
    found = [(rule, problem) for rule in rules for problem in rule.check(situation, estimates)]
    refusals = [_named(rule, problem) for rule, problem in found if rule.severity == "refuse"]
    if refusals:
        raise SpecificationError(*refusals)
    accepted = situation.config.acknowledged
    return tuple(
        Finding(rule=rule.id, severity=rule.severity, text=str(problem), acknowledged=accepted.get(rule.id))
        for rule, problem in found
    )


def refuse_idle_acknowledgements(situation: Situation, findings: Iterable[Finding]) -> None:
    """Makes sure that every acknowledgement still accepts something.

    Raises:
        SpecificationError: one names a rule that has nothing to say, or that does not exist.
    """
    warned = {finding.rule for finding in findings}
    idle = [
        situation.problem(
            f"acknowledged/{rule}",
            reason,
            "no warning of this rule is there to be acknowledged",
            "remove the key; `./fleet rules` lists the rules"
            + (f", this deployment has: {', '.join(sorted(warned))}" if warned else ""),
        )
        for rule, reason in situation.config.acknowledged.items()
        if rule not in warned
    ]
    if idle:
        raise SpecificationError(*idle)


def _named(rule: Rule, problem: Problem) -> Problem:
    return Problem(problem.file, problem.key, problem.value, f"[{rule.id}] {problem.rule}", problem.way_out)
