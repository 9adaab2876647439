"""An image chain: a base by digest and ordered steps, each with an identity made of all that goes into it.

The folders are patches/CHAIN/chain.yaml and STEP/step.yaml (spec/chain_files.py reads them); runtime/build/ applies the
steps inside the image build. What the rules here guard against was met by the authors of the chains
(facts/seed-repos.md section 2) and is explained in facts/vllm-patches.md sections 2.2 and 3.
"""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from pydantic import Field, field_validator, model_validator

from spec.base import Strict, content_hash
from spec.errors import Problem, SpecificationError
from spec.image import Registry, base_reference

# Raised when runtime/build/ makes something else from the same step; part of every identity.
BUILDER_VERSION = 1

# Kernels compiled ahead hide a patched header: FlashInfer then never compiles it (facts/vllm-patches.md P5).
FORBIDDEN_PACKAGES = ("flashinfer-jit-cache",)

# Parts of different versions end in a compiler error at 91 % of the load (facts/seed-repos.md 2.1, v5).
CUTLASS_DSL_PREFIX = "nvidia-cutlass-dsl"

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)$")
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


def normal_name(name: str) -> str:
    """Returns a package's name as PEP 503 normalises it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _relative_path(path: str) -> str:
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or path in ("", "."):
        raise ValueError("must be a path below its folder: relative, without `..`")
    return path


def _absolute_path(path: str) -> str:
    if ".." in PurePosixPath(path).parts:
        raise ValueError("must be an absolute path without `..`")
    return path


class Edit(Strict):
    """One anchored edit of a text file.

    Attributes:
        file: relative to the chain's packages folder, or to a source folder that has its package.
        anchor: the text that is replaced, with its indentation and line ends.
        count: how often the anchor stands in the file before the edit.
        replacement: what stands there afterwards, in each of these places.
        marker: a part of the replacement that stands nowhere in an unpatched file; where it stands, the edit is done.
    """

    file: str
    anchor: str = Field(min_length=1)
    count: int = Field(default=1, ge=1)
    replacement: str
    marker: str = Field(min_length=1)

    _file_is_relative = field_validator("file")(_relative_path)

    @model_validator(mode="after")
    def _marker_tells_patched_from_unpatched(self) -> "Edit":
        if self.marker not in self.replacement:
            raise ValueError("the marker must be a part of the replacement: it is how a patched file is known")
        if self.marker in self.anchor:
            raise ValueError("the marker must not be a part of the anchor: every unpatched file would count as patched")
        return self


class PackageChange(Strict):
    """Packages that a step removes and installs; installed without their dependencies, so each part is named.

    pip resolving torch's own pins is what took NCCL down to 2.29.7 (facts/vllm-patches.md section 0, 4).

    Attributes:
        remove: names, removed first.
        install: `name==version` each, in this order.
        index: a further package index, asked beside the usual one.
        pre: whether a version that is not a release may be installed.
    """

    remove: tuple[str, ...] = ()
    install: tuple[str, ...] = ()
    index: str | None = Field(default=None, pattern=r"^https://[^\s]+$")
    pre: bool = False

    @field_validator("remove")
    @classmethod
    def _are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not re.match(_NAME, name):
                raise ValueError(f"{name!r} is not a package's name")
        return names

    @field_validator("install")
    @classmethod
    def _are_pins(cls, requirements: tuple[str, ...]) -> tuple[str, ...]:
        for requirement in requirements:
            if not _PIN.match(requirement):
                raise ValueError(
                    f"{requirement!r} is not `name==version`; without a version the build is another one tomorrow, and "
                    "an extra such as [cu13] installs nothing, since dependencies are not followed: name each part"
                )
        return requirements

    @model_validator(mode="after")
    def _changes_something(self) -> "PackageChange":
        if not self.remove and not self.install:
            raise ValueError("a change of packages removes or installs at least one")
        return self

    @property
    def pins(self) -> dict[str, str]:
        """Versions that are installed, by normalised name."""
        return {normal_name(name): version for name, _, version in (pin.partition("==") for pin in self.install)}


class PlacedFile(Strict):
    """A file of the step that is put into the image.

    Attributes:
        source: inside the step's folder.
        target: absolute path in the image.
        mode: permissions, in octal digits.
    """

    source: str
    target: str = Field(pattern=r"^/[^\s]*[^/\s]$")
    mode: str = Field(default="0644", pattern=r"^0[0-7]{3}$")

    _source_is_relative = field_validator("source")(_relative_path)

    @field_validator("target")
    @classmethod
    def _stays_where_it_says(cls, target: str) -> str:
        return _absolute_path(target)


class Link(Strict):
    """A symbolic link that a step makes; it replaces nothing but itself.

    Attributes:
        path: of the link, absolute.
        target: what it leads to, absolute; it must be there.
    """

    path: str = Field(pattern=r"^/[^\s]*[^/\s]$")
    target: str = Field(pattern=r"^/[^\s]*[^/\s]$")

    @field_validator("path", "target")
    @classmethod
    def _stays_where_it_says(cls, path: str) -> str:
        return _absolute_path(path)

    @model_validator(mode="after")
    def _leads_elsewhere(self) -> "Link":
        if self.path == self.target:
            raise ValueError("a link leads to another place than its own")
        return self


class DebianPackage(Strict):
    """A package of the base's distribution, installed without what it recommends.

    Attributes:
        name: of the package.
        version: the one that is installed, as dpkg writes it; archives drop old ones, and the build then says so.
        any_version: that whichever version the archive has is installed; verify's report names it as not pinned.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9+.-]+$")
    version: str | None = Field(default=None, pattern=r"^[0-9][A-Za-z0-9.+:~-]*$")
    any_version: bool = False

    @model_validator(mode="after")
    def _is_pinned_or_says_that_it_is_not(self) -> "DebianPackage":
        if (self.version is None) != self.any_version:
            raise ValueError(
                "a Debian package has either a version, or `any_version: true` where the archive's versions cannot be "
                "known: then two builds of one identity may differ in it"
            )
        return self


class Assertion(Strict):
    """A fact about a text file after the step; where upstream already has a fix, it is asserted instead of patched.

    Attributes:
        file: relative to the chain's packages folder, or to a source folder that has its package.
        contains: text that must stand in it.
        count: how often it must stand there.
        absent: text that must not stand in it.
    """

    file: str
    contains: str | None = Field(default=None, min_length=1)
    count: int = Field(default=1, ge=1)
    absent: str | None = Field(default=None, min_length=1)

    _file_is_relative = field_validator("file")(_relative_path)

    @model_validator(mode="after")
    def _says_one_thing(self) -> "Assertion":
        if (self.contains is None) == (self.absent is None):
            raise ValueError("an assertion has exactly one of the keys contains and absent")
        if self.absent is not None and "count" in self.model_fields_set:
            raise ValueError("what is absent has no count: remove the key count")
        return self


class StepDescription(Strict):
    """What a step.yaml says.

    Attributes:
        purpose: why the step is there.
        source: where it comes from.
        base_is_absent: the base that it is written for cannot be had here.
        tested_against: what its edits are tested against instead.
        edits: anchored edits, in order.
        packages: removed and installed before the edits.
        debian: packages of the distribution, installed before the edits.
        files: put into the image.
        links: made in the image.
        asserts: checked after all of it.
    """

    purpose: str = Field(min_length=1)
    source: str = Field(min_length=1)
    base_is_absent: bool = False
    tested_against: str | None = None
    edits: tuple[Edit, ...] = ()
    packages: PackageChange | None = None
    debian: tuple[DebianPackage, ...] = ()
    files: tuple[PlacedFile, ...] = ()
    links: tuple[Link, ...] = ()
    asserts: tuple[Assertion, ...] = ()

    @model_validator(mode="after")
    def _does_something(self) -> "StepDescription":
        if not (self.edits or self.packages or self.debian or self.files or self.links or self.asserts):
            raise ValueError("a step has at least one of the keys edits, packages, debian, files, links and asserts")
        if self.base_is_absent and self.tested_against is None:
            raise ValueError("base_is_absent: the key tested_against then says what the step is tested with instead")
        made = [*(file.target for file in self.files), *(link.path for link in self.links)]
        for path in made:
            if made.count(path) > 1:
                raise ValueError(f"two files or links of the step are {path}")
        names = [package.name for package in self.debian]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"the step installs the Debian package {name} twice")
        return self


class Debootstrap(Strict):
    """A base made on the controller from Debian packages; its identity is this recipe. The lab's chains start from one.

    Attributes:
        suite: Debian release.
        packages: what is installed beside the minimal system.
        vllm: version of vLLM for processors whose Python files lie in the packages folder; none without vLLM.
        recipe_version: raised when the builder in lab/ changes what it makes from the same recipe.
    """

    suite: str = Field(pattern=r"^[a-z]+$")
    packages: tuple[str, ...]
    vllm: str | None = None
    recipe_version: int = 1

    @property
    def identity(self) -> str:
        """Hash of the recipe, 64 hexadecimal digits."""
        return content_hash(self.model_dump(mode="json"))

    @property
    def reference(self) -> str:
        """The tag under which a node keeps it."""
        return base_reference(self.model_dump(mode="json"))


class ChainDescription(Strict):
    """What a chain.yaml says.

    Attributes:
        purpose: what the image is for.
        base: what the first step starts from, by digest.
        debootstrap: what it starts from instead, where the lab makes its base.
        packages_folder: where the base has its Python packages and what is known of them.
        source_folders: where packages lie that are installed from their sources, by the name of their own folder; such
            as SGLang in its images.
        versions: of packages as the base has them, by name; checked before the first step.
        steps: folders, relative to the chain's own.
    """

    purpose: str = Field(min_length=1)
    base: Registry | None = None
    debootstrap: Debootstrap | None = None
    packages_folder: str = Field(pattern=r"^/[A-Za-z0-9/_.-]*[A-Za-z0-9_-]$")
    source_folders: dict[str, str] = {}
    versions: dict[str, str] = Field(min_length=1)
    steps: tuple[str, ...] = Field(min_length=1)

    @field_validator("source_folders")
    @classmethod
    def _are_absolute(cls, folders: dict[str, str]) -> dict[str, str]:
        for name, folder in folders.items():
            if not re.match(_NAME, name) or not folder.startswith("/") or ".." in PurePosixPath(folder).parts:
                raise ValueError(f"{name!r}: {folder!r} must be a package's name and an absolute path without `..`")
        return folders

    @field_validator("versions")
    @classmethod
    def _names_are_normal(cls, versions: dict[str, str]) -> dict[str, str]:
        for name in versions:
            if name != normal_name(name):
                raise ValueError(f"write {name!r} as {normal_name(name)!r}, so that it is the same key everywhere")
        return versions

    @model_validator(mode="after")
    def _starts_from_one_base(self) -> "ChainDescription":
        if (self.base is None) == (self.debootstrap is None):
            raise ValueError("a chain starts from exactly one of the keys base (a registry's image) and debootstrap")
        return self

    @property
    def origin(self) -> Registry | Debootstrap:
        """What the first step starts from."""
        origin = self.base or self.debootstrap
        assert origin is not None
        return origin

    def folder_of(self, file: str) -> str:
        """Returns the folder of the image that an edit's or assertion's file is relative to."""
        return self.source_folders.get(PurePosixPath(file).parts[0], self.packages_folder)


class FileContent(Strict):
    """What a placed file holds, read once.

    Attributes:
        path: on this machine; not part of any identity.
        sha256: of the content.
        size: in bytes.
    """

    path: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int


class ReadStep(Strict):
    """A step.yaml with the content of its files.

    Attributes:
        name: of the step's folder.
        shown: the step.yaml as messages name it.
        description: what it says.
        contents: of its placed files, by source.
    """

    name: str
    shown: str
    description: StepDescription
    contents: dict[str, FileContent]


class PatchStep(Strict):
    """One step of a chain, resolved.

    Attributes:
        name: of the step's folder.
        position: from 1.
        parent: identity of the step before, or of the base.
        identity: hash of the parent's identity and of all that goes into this step.
        description: what the step.yaml says.
        contents: of its placed files, by source.
        versions: of packages once the step is done, by normalised name.
    """

    name: str
    position: int
    parent: str
    identity: str
    description: StepDescription
    contents: dict[str, FileContent]
    versions: dict[str, str]

    @property
    def slug(self) -> str:
        """Names the step in paths and labels."""
        return f"{self.position:02d}-{self.name}"

    @property
    def reference(self) -> str:
        """The tag under which the node that builds keeps the image of this step and all before it."""
        return f"gb10-serving/step:{self.identity[:16]}"

    @property
    def changes(self) -> dict[str, str]:
        """What goes into the step, by readable names, each with its hash: a preview shows which one differs."""
        content = step_content(self.description, self.contents)
        parts = [(f"edit of {edit['file']}, {edit['marker']}", edit) for edit in content["edits"]]
        parts += [(f"file {file['target']}", file) for file in content["files"]]
        parts += [(f"link {link['path']}", link) for link in content.get("links", ())]
        parts += [(f"Debian package {package['name']}", package) for package in content.get("debian", ())]
        parts += [("packages", content["packages"])] if content["packages"] else []
        parts += [(f"assertion on {fact['file']}", fact) for fact in content["asserts"]]
        return {name: content_hash([part for other, part in parts if other == name])[:16] for name, _ in parts}

    @property
    def needs_network(self) -> bool:
        """Whether the build of this step fetches something."""
        installs = self.description.packages and self.description.packages.install
        return bool(installs or self.description.debian)


class PatchChain(Strict):
    """A chain, resolved: steps in order, each with its identity.

    Attributes:
        name: of the chain's folder.
        description: what the chain.yaml says.
        steps: in order.
    """

    name: str
    description: ChainDescription
    steps: tuple[PatchStep, ...]

    @property
    def identity(self) -> str:
        """Identity of the whole chain: that of its last step."""
        return self.steps[-1].identity

    @property
    def versions(self) -> dict[str, str]:
        """Versions of packages in the finished image, by normalised name."""
        return self.steps[-1].versions


def base_identity(description: ChainDescription) -> str:
    """Returns the identity that the first step starts from; a tag is for people and does not count."""
    content: dict[str, Any] = {
        "builder": BUILDER_VERSION,
        "base": description.origin.model_dump(mode="json", exclude={"tag"}),
        "packages_folder": description.packages_folder,
        "versions": description.versions,
    }
    if description.source_folders:
        content["source_folders"] = description.source_folders
    return content_hash(content)


def step_identity(parent: str, step: StepDescription, contents: dict[str, FileContent]) -> str:
    """Returns the hash of the parent's identity and of all that goes into the step; not of its purpose and source."""
    return content_hash({"parent": parent, **step_content(step, contents)})


def step_content(step: StepDescription, contents: dict[str, FileContent]) -> dict[str, Any]:
    """Returns all that goes into a step as plain data; placed files by the hash of their content."""
    content: dict[str, Any] = {
        "edits": [edit.model_dump(mode="json") for edit in step.edits],
        "packages": step.packages.model_dump(mode="json") if step.packages else None,
        "files": [
            {"target": file.target, "mode": file.mode, "sha256": contents[file.source].sha256} for file in step.files
        ],
        "asserts": [assertion.model_dump(mode="json", exclude_none=True) for assertion in step.asserts],
    }
    # Absent where empty: steps of before these keys keep the identity under which they are built.
    if step.debian:
        content["debian"] = [package.model_dump(mode="json") for package in step.debian]
    if step.links:
        content["links"] = [link.model_dump(mode="json") for link in step.links]
    return content


def resolve_chain(name: str, shown: str, description: ChainDescription, steps: Sequence[ReadStep]) -> PatchChain:
    """Gives each step its identity and the versions that hold after it.

    Args:
        name: of the chain's folder.
        shown: the chain.yaml as messages name it.
        description: what it says.
        steps: in the order of the chain.

    Raises:
        SpecificationError: the steps do not fit together.
    """
    resolved: list[PatchStep] = []
    parent, versions = base_identity(description), dict(description.versions)
    for position, step in enumerate(steps, start=1):
        versions = versions_after(versions, step.description.packages)
        identity = step_identity(parent, step.description, step.contents)
        resolved.append(
            PatchStep(
                name=step.name,
                position=position,
                parent=parent,
                identity=identity,
                description=step.description,
                contents=step.contents,
                versions=versions,
            )
        )
        parent = identity
    problems = [
        *_doubled_names(shown, steps),
        *_hidden_edits(steps),
        *_mixed_cutlass(steps, resolved),
        *_forbidden_packages(shown, versions),
    ]
    if problems:
        raise SpecificationError(*problems)
    return PatchChain(name=name, description=description, steps=tuple(resolved))


def versions_after(versions: dict[str, str], change: PackageChange | None) -> dict[str, str]:
    """Returns the versions of packages once a step has removed and installed its own."""
    if change is None:
        return versions
    removed = {normal_name(name) for name in change.remove}
    return {name: version for name, version in versions.items() if name not in removed} | change.pins


def _doubled_names(shown: str, steps: Sequence[ReadStep]) -> list[Problem]:
    names = [step.name for step in steps]
    return [
        Problem(shown, f"steps/{index}", name, "a step of this name stands before", "remove one, or rename its folder")
        for index, name in enumerate(names)
        if name in names[:index]
    ]


def _hidden_edits(steps: Sequence[ReadStep]) -> list[Problem]:
    """Finds edits whose marker an earlier edit writes: they would be taken for done and never applied."""
    problems: list[Problem] = []
    earlier: list[tuple[str, Edit]] = []
    for step in steps:
        for index, edit in enumerate(step.description.edits):
            problems += [
                Problem(
                    step.shown,
                    f"edits/{index}/marker",
                    edit.marker,
                    f"step {other} writes this text into {edit.file}, so this edit would count as done and be skipped",
                    "choose a marker that only this replacement contains, such as a comment with the step's name",
                )
                for other, before in earlier
                if before.file == edit.file and edit.marker in before.replacement
            ]
            earlier.append((step.name, edit))
    return problems


def _mixed_cutlass(steps: Sequence[ReadStep], resolved: Sequence[PatchStep]) -> list[Problem]:
    problems: list[Problem] = []
    for read, step in zip(steps, resolved, strict=True):
        packages = read.description.packages
        parts = {name: version for name, version in step.versions.items() if name.startswith(CUTLASS_DSL_PREFIX)}
        if packages and any(name in parts for name in packages.pins) and len(set(parts.values())) > 1:
            problems.append(
                Problem(
                    read.shown,
                    "packages/install",
                    list(packages.install),
                    f"the parts of the CUTLASS DSL must have one version, and would have {parts}",
                    f"install all of {', '.join(sorted(parts))} in one version, in this step",
                )
            )
    return problems


def _forbidden_packages(shown: str, versions: dict[str, str]) -> list[Problem]:
    return [
        Problem(
            shown,
            f"versions/{name}",
            versions[name],
            "the base has this package and no step removes it: kernels compiled ahead hide patched headers",
            f"add a step with `packages: {{remove: [{name}]}}`",
        )
        for name in FORBIDDEN_PACKAGES
        if name in versions
    ]
