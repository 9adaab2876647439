//go:build tools

// Package tools pins the Pulumi language host for Python, which is built from
// here with "go build .../python/cmd/pulumi-language-python". It is the last
// release whose Go module still contains the program. The blank import makes
// "go mod tidy" keep every module the program needs in go.sum.
package tools

import _ "github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python"
