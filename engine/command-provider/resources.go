package main

import (
	"context"
	"slices"

	"google.golang.org/protobuf/types/known/structpb"
)

// resource is one kind of resource that the provider manages.
type resource struct {
	inputs *objectType
	// outputs are the properties that running it adds to the inputs.
	outputs []string
	// check looks for what the types of the inputs cannot express. May be nil.
	check func(inputs properties) decodingError
	// create, update and remove do the work. They see inputs with defaults and
	// return the values of the outputs that they set.
	create func(ctx context.Context, log logger, inputs properties) (properties, error)
	update func(ctx context.Context, log logger, inputs, old properties) (properties, error)
	remove func(ctx context.Context, log logger, old properties) error
}

// resources holds all kinds of resources by their type tokens.
var resources = map[string]*resource{
	"command:local:Command": {
		inputs:  localCommandInputs,
		outputs: []string{"stdout", "stderr", "assets", "archive"},
		create:  createLocalCommand,
		update:  updateLocalCommand,
		remove:  deleteLocalCommand,
	},
	"command:remote:Command": {
		inputs:  remoteCommandInputs,
		outputs: []string{"stdout", "stderr"},
		create:  createRemoteCommand,
		update:  updateRemoteCommand,
		remove:  deleteRemoteCommand,
	},
	"command:remote:CopyToRemote": {
		inputs: copyInputs,
		check:  checkCopy,
		create: createCopy,
		update: updateCopy,
		remove: deleteCopy,
	},
}

var (
	localCommandInputs = &objectType{
		module: "local", name: "CommandInputs",
		fields: slices.Concat(lifecycleFields, runFields, localFields),
	}
	localRunInputs = &objectType{
		module: "local", name: "RunInputs",
		fields: slices.Concat([]field{{name: "command", kind: textKind, required: true}}, runFields, localFields),
	}
	remoteCommandInputs = &objectType{
		module: "remote", name: "CommandInputs",
		fields: slices.Concat([]field{connectionField}, lifecycleFields, runFields),
	}
	copyInputs = &objectType{
		module: "remote", name: "CopyToRemoteInputs",
		fields: []field{
			connectionField,
			{name: "source", kind: assetKind, required: true},
			{name: "remotePath", kind: textKind, required: true},
			triggersField,
		},
	}

	triggersField = field{name: "triggers", kind: listKind, replaces: true}

	// lifecycleFields say which command runs when.
	lifecycleFields = []field{
		{name: "create", kind: textKind},
		{name: "update", kind: textKind},
		{name: "delete", kind: textKind},
		triggersField,
	}
	// runFields say how a command runs, here or on a remote host.
	runFields = []field{
		{name: "stdin", kind: textKind},
		{name: "environment", kind: textMapKind},
		{name: "logging", kind: textKind},
		{name: "addPreviousOutputInEnv", kind: boolKind},
	}
	// localFields say how a command runs on this machine.
	localFields = []field{
		{name: "interpreter", kind: textListKind},
		{name: "dir", kind: textKind},
		{name: "assetPaths", kind: textListKind},
		{name: "archivePaths", kind: textListKind},
	}

	connectionField = field{
		name: "connection", kind: objectKind, required: true, secret: true,
		object: &objectType{
			module: "remote", name: "Connection",
			fields: slices.Concat(hostFields, []field{{name: "proxy", kind: objectKind, object: proxyType}}),
		},
	}
	proxyType = &objectType{module: "remote", name: "ProxyConnection", fields: hostFields}

	// hostFields say how to reach a host over ssh and how to log in.
	hostFields = []field{
		{name: "host", kind: textKind, required: true},
		{name: "user", kind: textKind, fallback: structpb.NewStringValue("root")},
		{name: "port", kind: numberKind, fallback: structpb.NewNumberValue(22)},
		{name: "password", kind: textKind},
		{name: "privateKey", kind: textKind},
		{name: "privateKeyPassword", kind: textKind},
		{name: "agentSocketPath", kind: textKind},
		{name: "hostKey", kind: textKind},
		{name: "dialErrorLimit", kind: numberKind, fallback: structpb.NewNumberValue(10)},
		{name: "perDialTimeout", kind: numberKind, fallback: structpb.NewNumberValue(15)},
	}
)
