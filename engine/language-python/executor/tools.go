//go:build tools

// Package tools pins the module that holds the two scripts that belong beside
// the language host: the executor, which has to match the Pulumi program and
// not the old language host, and the host of dynamic providers. Nothing is
// compiled from here.
package tools

import _ "github.com/pulumi/pulumi/sdk/v3/go/common/version"
