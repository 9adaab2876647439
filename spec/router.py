"""The router before the groups of a pool, and what their heads tell it."""

from spec.release import FrontPlan, MemberPlan, RouterPlan
from spec.situation import Situation

FOLDER = "/gb10-serving/router"
"""Where its container sees the folder that its node keeps for it."""

SETTINGS_FILE, SOCKET, STATES_FILE = "haproxy.cfg", "admin.sock", "states"
PROGRAM = "/usr/sbin/haproxy"


def router_plan(situation: Situation) -> RouterPlan | None:
    """Returns the router that the stack asks for, none where it asks for none."""
    router = situation.config.router
    if router is None:
        return None
    assert situation.router is not None
    container = f"gb10-{situation.stack}-router"
    members = tuple(
        MemberPlan(
            group=group,
            address=situation.nodes(group)[0].management_address,
            port=situation.config.port,
            health_port=router.health_port,
        )
        for group in situation.config.groups
    )
    return RouterPlan(
        node=router.node,
        container=container,
        port=router.port,
        image=situation.router.reference,
        folder=f"{situation.cluster.storage_folder}/routers/{container}",
        settings=settings_text(router.port, router.answer_seconds, members),
        members=members,
        drain_seconds=router.drain_seconds,
    )


def front_plan(situation: Situation, rank: int) -> FrontPlan | None:
    """Returns what a head tells the router, none for a worker or without a router."""
    router = situation.config.router
    if router is None or rank:
        return None
    return FrontPlan(
        port=router.health_port,
        drain_seconds=router.drain_seconds,
        probe=situation.model.probes[0],
        served_name=str(situation.model.served_name),
        answer_timeout_seconds=situation.config.readiness.answer_timeout_seconds,
    )


def settings_text(port: int, answer_seconds: int, members: tuple[MemberPlan, ...]) -> str:
    """Returns the settings file of HAProxy.

    A request goes on a connection of its own, so that open connections of a head are its running requests. Only a
    connection that could not be opened is tried elsewhere: a request that ended one engine must not end the others.
    A reload keeps what is known of the members, and hands the listening socket on.
    """
    servers = [
        f"    server {one.group} {one.address}:{one.port} check port {one.health_port} addr {one.address}"
        for one in members
    ]
    lines = (
        "global",
        "    maxconn 4096",
        f"    stats socket {FOLDER}/{SOCKET} mode 600 level admin expose-fd listeners",
        f"    server-state-file {FOLDER}/{STATES_FILE}",
        "    log stdout format raw local0 notice",
        "defaults",
        "    mode http",
        "    log global",
        "    option dontlog-normal",
        "    option http-server-close",
        "    option redispatch 1",
        "    retries 4",
        "    retry-on conn-failure",
        "    timeout connect 2s",
        "    timeout check 2s",
        "    timeout queue 30s",
        "    timeout client 1h",
        f"    timeout server {answer_seconds}s",
        "    load-server-state-from-file global",
        "frontend users",
        f"    bind :{port}",
        "    default_backend members",
        "backend members",
        "    balance leastconn",
        "    http-reuse never",
        "    option httpchk GET /",
        "    http-check expect status 200",
        "    http-check disable-on-404",
        "    default-server inter 500ms fall 1 rise 1 observe layer4 error-limit 1 on-error mark-down",
        *servers,
        "",
    )
    return "\n".join(lines)
