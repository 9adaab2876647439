// Package shim hands out the constructor of the Terraform provider for Docker.
//
// Upstream keeps it in internal/provider, which only packages below upstream's
// own module path may import. This module's path lies there, so it may.
package shim

import (
	"github.com/hashicorp/terraform-plugin-sdk/v2/helper/schema"

	"github.com/terraform-providers/terraform-provider-docker/internal/provider"
)

// NewProvider returns a new instance of the upstream provider.
func NewProvider(version string) *schema.Provider {
	return provider.New(version)()
}
