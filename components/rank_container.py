"""The container of one rank."""

import pulumi
import pulumi_docker as docker

from components.node import Node
from spec.release import GroupPlan, RankPlan, Release
from spec.supervision import supervisor_command, supervisor_mounts


def rank_container(
    name: str,
    release: Release,
    group: GroupPlan,
    rank: RankPlan,
    node: Node,
    image: pulumi.Input[str],
    depends_on: list[pulumi.Resource],
    before_create: pulumi.ResourceHook,
    parent: pulumi.Resource,
) -> docker.Container:
    """Declares the container, whose first process is the rank's supervisor.

    Args:
        name: logical name.
        release: the whole deployment.
        group: the rank's group.
        rank: what the container is made from.
        node: where it runs.
        image: the image's reference, as an output of the group's generation: only a plain text input that forces
            replacement makes the engine stop the whole old group first (shared/facts/engine.md 2.3).
        depends_on: what must be there before.
        before_create: makes the rank's folder on the node, and removes what an interrupted `up` left under this name.
        parent: the group.
    """
    program, *arguments = supervisor_command(release, group, rank)
    front = rank.supervision.front
    return docker.Container(
        name,
        name=rank.container,
        image=image,
        entrypoints=[program],
        command=arguments,
        envs=[f"{key}={value}" for key, value in sorted(rank.environment.items())],
        labels=_labels(release, group, rank),
        mounts=_mounts(release, rank),
        ulimits=_limits(rank),
        gpus="all" if rank.gpus else None,
        devices=[docker.ContainerDeviceArgs(host_path=device) for device in rank.devices] or None,
        capabilities=docker.ContainerCapabilitiesArgs(adds=list(rank.capabilities)) if rank.capabilities else None,
        network_mode="host",
        ipc_mode="host",
        # A group that serves comes back after a reboot; a job that was interrupted does not begin again by itself.
        restart="unless-stopped" if group.serves else "no",
        must_run=group.serves,
        wait=False,
        log_driver="json-file",
        log_opts={"max-size": "100m", "max-file": "3"},
        destroy_grace_seconds=release.stop_grace_seconds + (front.drain_seconds if front else 0),
        opts=pulumi.ResourceOptions(
            parent=parent,
            provider=node.docker,
            depends_on=depends_on,
            delete_before_replace=True,
            hooks=pulumi.ResourceHookBinding(before_create=[before_create]),
        ),
    )


def _labels(release: Release, group: GroupPlan, rank: RankPlan) -> list[docker.ContainerLabelArgs]:
    """Returns what tells our containers apart; the generation is among them, so that no changed rank stays."""
    labels = {
        "gb10-serving.stack": release.stack,
        "gb10-serving.group": group.name,
        "gb10-serving.rank": str(rank.rank),
        "gb10-serving.generation": group.hash,
    }
    return [docker.ContainerLabelArgs(label=key, value=value) for key, value in labels.items()]


def _mounts(release: Release, rank: RankPlan) -> list[docker.ContainerMountArgs]:
    return [
        docker.ContainerMountArgs(type="bind", source=mount.source, target=mount.target, read_only=mount.read_only)
        for mount in (*rank.mounts, *supervisor_mounts(release, rank))
    ]


def _limits(rank: RankPlan) -> list[docker.ContainerUlimitArgs]:
    limits = {"nofile": rank.open_files, "memlock": rank.locked_memory_bytes, "core": 0}
    return [docker.ContainerUlimitArgs(name=name, soft=limit, hard=limit) for name, limit in limits.items()]
