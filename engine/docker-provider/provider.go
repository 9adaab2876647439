package main

import (
	"encoding/json"
	"fmt"

	"github.com/pulumi/pulumi-terraform-bridge/v3/pkg/tfbridge"
	"github.com/pulumi/pulumi-terraform-bridge/v3/pkg/tfbridge/tokens"
	sdkv2 "github.com/pulumi/pulumi-terraform-bridge/v3/pkg/tfshim/sdk-v2"
	"github.com/terraform-providers/terraform-provider-docker/shim"
)

const (
	// packageName is the name of the Pulumi package.
	packageName = "docker"
	// moduleName is the one module that holds all of its resources.
	moduleName = "index"
)

// providerInfo describes how the Terraform provider appears in Pulumi.
//
// The bridge derives the names of all resources and properties. Stated here is
// only what the official provider names differently from the bridge's default.
func providerInfo(version string) tfbridge.ProviderInfo {
	info := tfbridge.ProviderInfo{
		P:           sdkv2.NewProvider(shim.NewProvider(version)),
		Name:        packageName,
		DisplayName: "Docker",
		Version:     version,
		Config: map[string]*tfbridge.SchemaInfo{
			"registry_auth": {Name: "registryAuth"},
		},
		Resources: map[string]*tfbridge.ResourceInfo{
			"docker_config": {Tok: resourceToken("ServiceConfig")},
			"docker_image": {
				Tok: resourceToken("RemoteImage"),
				// Naming the field keeps the bridge from inventing an image's
				// name when none is given.
				Fields: map[string]*tfbridge.SchemaInfo{"name": {Name: "name"}},
			},
			"docker_container": {
				Tok: resourceToken("Container"),
				Fields: map[string]*tfbridge.SchemaInfo{
					"command":           {Name: "command"},
					"networks_advanced": {Name: "networksAdvanced"},
				},
				// Names, ports and devices of a container cannot be held
				// twice, so the old one has to go first.
				DeleteBeforeReplace: true,
			},
		},
		DataSources: map[string]*tfbridge.DataSourceInfo{
			"docker_image": {Tok: functionToken("getRemoteImage")},
		},
	}
	info.MustComputeTokens(tokens.SingleModule("docker_", moduleName, tokens.MakeStandard(packageName)))
	info.SetAutonaming(255, "-")
	return info
}

// minimalSchema returns the schema that the provider reports. Programs bring
// their own SDK, so that only the package's name and version are ever read.
func minimalSchema(version string) []byte {
	schema, err := json.Marshal(map[string]string{"name": packageName, "version": version})
	if err != nil {
		panic(fmt.Sprintf("encoding two strings failed: %v", err))
	}
	return schema
}
