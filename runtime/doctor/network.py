"""Checks of the network: the rails' addresses, the default route, leftovers of NCCL, limits of ssh, the clock."""

import ipaddress
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from runtime.doctor.look import Found, Look

_NCCL_FILES = ("/etc/nccl.conf", "/root/.nccl.conf")
_MOST_SKEW_SECONDS = 2.0
_LEAST_SESSIONS = 10
_SSHD_FILES = "etc/ssh/sshd_config.d"


def rails(look: Look) -> Iterator[Found]:
    """Each rail's address must be on its interface, which must have an IPv4 address at all."""
    held = _addresses(look)
    for rail in look.request["rails"]:
        interface, address = rail["interface"], rail["address"]
        mine = [found["local"] for found in held.get(interface, ())]
        if address in mine:
            continue
        elsewhere = [name for name, found in held.items() if any(one["local"] == address for one in found)]
        if interface not in held:
            read = f"there is no interface {interface}; {address} is on {', '.join(elsewhere) or 'none'}"
            yield Found("rail-address-missing", read, rail)
        elif not any(ipaddress.ip_address(one).version == 4 for one in mine):
            yield Found("rail-only-ipv6", f"{interface} has {', '.join(mine) or 'no address'}, not {address}", rail)
        else:
            read = f"{interface} has {', '.join(mine)}; {address} is on {', '.join(elsewhere) or 'no interface'}"
            yield Found("rail-address-missing", read, rail)


def duplicates(look: Look) -> Iterator[Found]:
    """No address may be on two interfaces, and no two rails in one network."""
    places: dict[str, list[str]] = defaultdict(list)
    held = _addresses(look)
    for interface, found in held.items():
        for one in found:
            if not ipaddress.ip_address(one["local"]).is_link_local:
                places[one["local"]].append(interface)
    for address, interfaces in places.items():
        if len(interfaces) > 1:
            read = f"{address} is on {' and '.join(interfaces)}"
            yield Found("duplicate-address", read, {"address": address, "interfaces": interfaces})
    networks: dict[str, list[str]] = defaultdict(list)
    for rail in look.request["rails"]:
        for one in held.get(rail["interface"], ()):
            if one["local"] == rail["address"]:
                network = ipaddress.ip_network(f"{one['local']}/{one['prefixlen']}", strict=False)
                networks[str(network)].append(rail["interface"])
    for network, interfaces in networks.items():
        if len(interfaces) > 1:
            yield Found("rails-share-a-network", f"{' and '.join(interfaces)} are both in {network}", {})


def default_route(look: Look) -> Iterator[Found]:
    """The default route must not go over Wi-Fi: what is not told otherwise goes there."""
    for line in look.needed("/proc/net/route").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 1 and fields[1] == "00000000":
            folder = look.root / "sys/class/net" / fields[0]
            if (folder / "wireless").exists() or (folder / "phy80211").exists():
                yield Found("default-route-over-wifi", f"the default route is {fields[0]}", {"interface": fields[0]})


def leftover_nccl_conf(look: Look) -> Iterator[Found]:
    """No file may set for NCCL what the Release leaves to it."""
    for path in _NCCL_FILES:
        text = look.text(path)
        lines = [line.strip() for line in (text or "").splitlines() if line.strip() and not line.startswith("#")]
        if lines:
            yield Found("leftover-nccl-conf", f"{path}: {'; '.join(lines)[:200]}", {"path": path})


def ssh_limits(look: Look) -> Iterator[Found]:
    """Ssh must take as many sessions and starts as Docker's clients open at once."""
    settings = _sshd_settings(look)
    sessions = settings.get("maxsessions")
    if sessions and sessions.isdigit() and int(sessions) < _LEAST_SESSIONS:
        yield Found("ssh-few-sessions", f"MaxSessions {sessions}", {"least": _LEAST_SESSIONS})
    starts = settings.get("maxstartups", "").partition(":")[0]
    if starts.isdigit() and int(starts) < _LEAST_SESSIONS:
        yield Found("ssh-few-starts", f"MaxStartups {settings['maxstartups']}", {"least": _LEAST_SESSIONS})


def clock(look: Look) -> Iterator[Found]:
    """Node and controller must agree on the time."""
    skew = time.time() - look.request["controller_seconds"]
    if abs(skew) > _MOST_SKEW_SECONDS + look.request["delay_seconds"]:
        yield Found("clock-skewed", f"this node's clock is {skew:+.1f} s off the controller's", {})


def own_addresses(look: Look) -> list[str]:
    """Returns the node's IPv4 addresses but those that every node may have: loopback, link-local, Docker's bridges."""
    return sorted(
        one["local"]
        for interface, found in _addresses(look).items()
        for one in found
        if one["family"] == "inet"
        and not interface.startswith(("docker", "br-", "veth", "virbr"))
        and not ipaddress.ip_address(one["local"]).is_link_local
    )


def _addresses(look: Look) -> dict[str, list[dict[str, Any]]]:
    """Returns the addresses of each interface but loopback."""
    shown = json.loads(look.run(["ip", "-json", "address", "show"]))
    return {
        interface["ifname"]: [one for one in interface.get("addr_info", ()) if "local" in one]
        for interface in shown
        if interface.get("ifname") and interface["ifname"] != "lo"
    }


def _sshd_settings(look: Look) -> dict[str, str]:
    """Returns what sshd's files set outside of Match blocks; the first word wins, and included files come first."""
    names = [f"/{_SSHD_FILES}/{path.name}" for path in sorted((look.root / _SSHD_FILES).glob("*.conf"))]
    settings: dict[str, str] = {}
    for name in (*names, "/etc/ssh/sshd_config"):
        for line in (look.text(name) or "").splitlines():
            key, _, value = line.strip().partition(" ")
            if key.lower() == "match":
                break
            if key and not key.startswith("#"):
                settings.setdefault(key.lower(), value.strip())
    return settings
