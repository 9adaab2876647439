"""What the program does beside declaring: hooks that it is given, since components only declare."""

from dataclasses import dataclass

import pulumi


@dataclass(frozen=True)
class Hooks:
    """The hooks of a deployment.

    Attributes:
        before_rank_create: removes what an interrupted `up` left under a rank's name.
        before_ready: starts a group again that a failed `up` left with an ended rank.
    """

    before_rank_create: pulumi.ResourceHook
    before_ready: pulumi.ResourceHook
