"""Secrets of a group's ranks: files on their nodes; never in argv, environment or labels, encrypted in the state."""

import hashlib
import hmac
import json
from dataclasses import dataclass

import pulumi

from components.node import Node
from components.task import answer_of, task
from spec.release import GroupPlan


@dataclass(frozen=True)
class Secrets:
    """What a stack's configuration holds encrypted.

    Attributes:
        api_key: that clients must show.
        hf_token: for Hugging Face.
    """

    api_key: pulumi.Output[str | None]
    hf_token: pulumi.Output[str | None]


class RankSecrets(pulumi.ComponentResource):
    """Puts the group's key and the stack's secrets beside every rank, readable for root alone.

    The group's key is made once and signs what supervisors tell each other. The requests are secret inputs, so that
    Pulumi keeps them encrypted.

    Attributes:
        on_node: the command that put them there, by node.
        fingerprint: of all of them; another one is another generation, as an engine reads its key only once.
    """

    def __init__(
        self,
        name: str,
        group: GroupPlan,
        nodes: dict[str, Node],
        secrets: Secrets,
        depends_on: list[pulumi.Resource],
        parent: pulumi.Resource,
    ) -> None:
        """Declares the key and one command a rank."""
        super().__init__("gb10-serving:secrets:RankSecrets", name, None, pulumi.ResourceOptions(parent=parent))
        key = task(f"{name}-key", "new-key", {"group": group.name}, parent=self, secret_answer=True)
        given = pulumi.Output.all(
            **{"group-key": answer_of(key)["key"], "api-key": secrets.api_key, "hf-token": secrets.hf_token}
        ).apply(lambda found: {file: text for file, text in found.items() if text})
        self.on_node = {
            rank.node: task(
                f"{group.name}-{rank.node}-secrets",
                "put-secrets",
                {**nodes[rank.node].request, "container": rank.container, "secrets": pulumi.Output.secret(given)},
                parent=self,
                depends_on=depends_on,
                delete_verb="remove-rank-folder",
            )
            for rank in group.ranks
        }
        self.fingerprint = pulumi.Output.unsecret(given.apply(_fingerprint))
        self.register_outputs({})


def _fingerprint(secrets: dict[str, str]) -> str:
    """Returns what tells other secrets apart and nothing about them: the group's key, which is random, blinds it."""
    text = json.dumps(secrets, sort_keys=True)
    return hmac.new(secrets["group-key"].encode(), text.encode(), hashlib.sha256).hexdigest()[:32]
