"""Which Release the program deploys: the one that the stack file describes, or a kept one for `fleet rollback`."""

import json
import os
from pathlib import Path
from typing import Any

from spec.catalog import Catalog, refuse_unclean_file
from spec.errors import Problem, SpecificationError
from spec.plan import plan_release
from spec.release import Release
from spec.yaml_files import parse

RELEASE_FILE = "GB10_SERVING_RELEASE_FILE"
"""Variable that names a file with a Release to deploy as it is."""


def is_told() -> bool:
    """Whether a Release is to be deployed as it is."""
    return RELEASE_FILE in os.environ


def release_to_deploy(stack: str, config: Any, project: Path) -> Release:
    """Plans what the stack file describes, or takes the Release of the file that the environment names.

    A given Release needs neither the stack file nor the catalogue nor the patches: all was decided when it was planned.

    Raises:
        SpecificationError: the stack file cannot work, or the given Release is of another stack or program.
    """
    if is_told():
        return _given(stack, Path(os.environ[RELEASE_FILE]))
    refuse_unclean_file(project, stack)
    return plan_release(stack, config, Catalog(project / "catalog"))


def _given(stack: str, path: Path) -> Release:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SpecificationError(
            Problem(RELEASE_FILE, "(environment)", str(path), f"it names no readable Release: {error}", _UNSET)
        ) from None
    release = parse(Release, data, f"the Release in {path}")
    if release.stack != stack:
        raise SpecificationError(
            Problem(str(path), "stack", release.stack, f"a Release is of one stack, and this one is {stack}", _UNSET)
        )
    return release


_UNSET = f"unset {RELEASE_FILE}, which only `./fleet rollback STACK` sets"
