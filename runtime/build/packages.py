"""Which packages a folder holds, read from their metadata: nothing is imported."""

import re
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from pathlib import Path

_FOLDER_NAME = re.compile(r"^(?P<name>.+?)-(?P<version>[^-]+?)(-py[0-9.]+)?\.(dist|egg)-info$")


@dataclass(frozen=True)
class Distribution:
    """One package as its metadata folder describes it.

    Attributes:
        name: normalised as in PEP 503.
        version: as written there.
        folder: name of the metadata folder.
    """

    name: str
    version: str
    folder: str


def normal_name(name: str) -> str:
    """Returns a package's name as PEP 503 normalises it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(packages: Path) -> dict[str, list[Distribution]]:
    """Returns the packages of a folder by normalised name; a name with two metadata folders has two entries.

    What pip left behind of a broken removal (`~name`) is no package and is not in it.
    """
    found: dict[str, list[Distribution]] = {}
    for folder in sorted((*packages.glob("*.dist-info"), *packages.glob("*.egg-info"))):
        distribution = _read(folder)
        if distribution is not None:
            found.setdefault(distribution.name, []).append(distribution)
    return found


def same_version(found: str, expected: str) -> bool:
    """Compares as `==` of PEP 440 does: a build suffix such as +cu130 counts only where it is expected."""
    return found == expected or ("+" not in expected and found.partition("+")[0] == expected)


def _read(folder: Path) -> Distribution | None:
    matched = _FOLDER_NAME.match(folder.name)
    if folder.name.startswith("~") or matched is None:
        return None
    metadata = folder if folder.is_file() else folder / ("METADATA" if folder.suffix == ".dist-info" else "PKG-INFO")
    headers = BytesHeaderParser().parsebytes(metadata.read_bytes()) if metadata.is_file() else {}
    name, version = headers.get("Name") or matched["name"], headers.get("Version") or matched["version"]
    return Distribution(normal_name(str(name)), str(version).strip(), folder.name)
