// Command pulumi-resource-docker is a Pulumi provider for Docker.
//
// It is the bridged half of the official provider 5.2.0, for machines on which
// the official one cannot be downloaded: the same Terraform provider, behind
// the same bridge, with the same tokens. The official provider's second half,
// the native docker.Image resource, is not part of it.
package main

import (
	"github.com/pulumi/pulumi-terraform-bridge/v3/pkg/tfbridge"
)

// version is the version of the official provider that this one stands in for.
// The linker sets it (-X main.version=...).
var version = "5.2.0"

func main() {
	tfbridge.Main(packageName, version, providerInfo(version), minimalSchema(version))
}
