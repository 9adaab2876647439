//go:build tools

// Package tools pins the Pulumi command line, which is built from here with
// "go build github.com/pulumi/pulumi/pkg/v3/cmd/pulumi". The blank import
// makes "go mod tidy" keep every module the program needs in go.sum.
package tools

import _ "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi"
