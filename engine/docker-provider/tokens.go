package main

import (
	"strings"

	"github.com/pulumi/pulumi/sdk/v3/go/common/tokens"
)

// resourceToken returns the type token of a resource, docker:index/x:X.
func resourceToken(name string) tokens.Type {
	return tokens.Type(memberToken(name))
}

// functionToken returns the token of a function, docker:index/getX:getX.
func functionToken(name string) tokens.ModuleMember {
	return tokens.ModuleMember(memberToken(name))
}

func memberToken(name string) string {
	file := strings.ToLower(name[:1]) + name[1:]
	return packageName + ":" + moduleName + "/" + file + ":" + name
}
