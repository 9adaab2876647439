"""What the program does beside declaring: hooks that it is given, since components only declare."""

from dataclasses import dataclass

import pulumi


@dataclass(frozen=True)
class Hooks:
    """The hooks of a deployment.

    Attributes:
        before_rank_create: makes a rank's folder on its node and removes what an interrupted `up` left under its name.
        before_router_create: removes what an interrupted `up` left under the router's name.
    """

    before_rank_create: pulumi.ResourceHook
    before_router_create: pulumi.ResourceHook
