"""The four parts of the engine: their versions, and how each is built from the Go modules in `engine/`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Script:
    """A file that is taken as it is from a Go module and made executable."""

    folder: str
    """Folder below the part's own whose go.mod pins the module."""
    module: str
    """The module's path."""
    path: str
    """The file's path in the module."""


@dataclass(frozen=True)
class Part:
    """A program of the engine and the recipe to build it."""

    name: str
    """Name for operators; also the folder below `engine/`."""
    version: str
    """Version of the official release that it is or stands in for, without a leading v."""
    binary: str
    """File name of the program."""
    package: str
    """The Go package that is built."""
    linked: str
    """What the linker sets, as `variable=value`."""
    tags: str = ""
    """Build tags."""
    scripts: tuple[Script, ...] = ()
    """Files that belong beside the program."""
    size: str = ""
    """What to expect of the build, for operators."""


_SDK_VERSION = "github.com/pulumi/pulumi/sdk/v3/go/common/version.Version"
_SDK = "github.com/pulumi/pulumi/sdk/v3"

PULUMI = Part(
    name="pulumi",
    version="3.274.1",
    binary="pulumi",
    package="github.com/pulumi/pulumi/pkg/v3/cmd/pulumi",
    linked=f"{_SDK_VERSION}=v3.274.1",
    size="about 4 minutes on 2 cores",
)

LANGUAGE_PYTHON = Part(
    name="language-python",
    version="3.60.0",
    binary="pulumi-language-python",
    package=f"{_SDK}/python/cmd/pulumi-language-python",
    linked=f"{_SDK_VERSION}=v3.60.0",
    scripts=(
        Script("executor", _SDK, "python/cmd/pulumi-language-python-exec"),
        Script("executor", _SDK, "python/dist/pulumi-resource-pulumi-python"),
    ),
    size="about half a minute",
)

DOCKER_PROVIDER = Part(
    name="docker-provider",
    version="5.2.0",
    binary="pulumi-resource-docker",
    package=".",
    linked="main.version=5.2.0",
    tags="no_compose",
    size="about 2 minutes on 2 cores",
)

COMMAND_PROVIDER = Part(
    name="command-provider",
    version="1.2.1",
    binary="pulumi-resource-command",
    package=".",
    linked="main.version=1.2.1",
    size="about 10 seconds",
)

PROVIDERS = (DOCKER_PROVIDER, COMMAND_PROVIDER)
"""The parts that go into the plugin cache of PULUMI_HOME."""

OLDEST_PULUMI = (3, 231, 0)
"""The oldest official program that the Python SDKs in requirements.txt work with."""
