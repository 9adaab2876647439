package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// provider answers the engine's requests. Methods that it does not have are
// answered with "unimplemented", which the engine expects of simple providers.
type provider struct {
	pulumirpc.UnimplementedResourceProviderServer

	engine *engineClient

	// running ends when all operations have to end.
	running context.Context
	cancel  context.CancelFunc
	// attached guards engine against a change while requests are answered.
	attached sync.RWMutex
}

func newProvider(ctx context.Context, engine *engineClient) *provider {
	running, cancel := context.WithCancel(ctx)
	return &provider{engine: engine, running: running, cancel: cancel}
}

// operation returns a context that ends with the request, after the given
// number of seconds (if any), and when the provider is cancelled.
func (p *provider) operation(request context.Context, timeout float64) (context.Context, context.CancelFunc) {
	limit := orForever(seconds(timeout))
	ctx, cancel := context.WithTimeout(request, limit)
	if p.running.Err() != nil {
		cancel()
	}
	unlink := context.AfterFunc(p.running, cancel)
	return ctx, func() { unlink(); cancel() }
}

func (p *provider) logger(urn string) logger {
	p.attached.RLock()
	defer p.attached.RUnlock()
	return logger{engine: p.engine, urn: urn}
}

// resourceOf returns the kind of resource that a URN names.
func resourceOf(urn string) (*resource, error) {
	// urn:pulumi:<stack>::<project>::<parent types>$<type>::<name>
	parts := strings.SplitN(urn, "::", 4)
	if len(parts) == 4 {
		token := parts[2][strings.LastIndex(parts[2], "$")+1:]
		if kind, ok := resources[token]; ok {
			return kind, nil
		}
		return nil, status.Errorf(codes.NotFound, "this provider has no resource type %q; it has %s",
			token, strings.Join(sortedKeys(resources), ", "))
	}
	return nil, status.Errorf(codes.InvalidArgument, "%q is not a resource's URN", urn)
}

// GetPluginInfo tells the version.
func (p *provider) GetPluginInfo(context.Context, *emptypb.Empty) (*pulumirpc.PluginInfo, error) {
	return &pulumirpc.PluginInfo{Version: version}, nil
}

// GetSchema returns the package's name and version. Programs use the SDKs that
// were generated from the official schema.
func (p *provider) GetSchema(context.Context, *pulumirpc.GetSchemaRequest) (*pulumirpc.GetSchemaResponse, error) {
	schema, err := json.Marshal(map[string]string{"name": "command", "version": version})
	if err != nil {
		return nil, err
	}
	return &pulumirpc.GetSchemaResponse{Schema: string(schema)}, nil
}

// Attach is called when the provider was started by hand, for debugging.
func (p *provider) Attach(_ context.Context, request *pulumirpc.PluginAttach) (*emptypb.Empty, error) {
	engine, err := connectEngine(request.GetAddress())
	if err != nil {
		return nil, err
	}
	p.attached.Lock()
	defer p.attached.Unlock()
	p.engine = engine
	return &emptypb.Empty{}, nil
}

// Cancel ends all running operations.
func (p *provider) Cancel(context.Context, *emptypb.Empty) (*emptypb.Empty, error) {
	p.cancel()
	return &emptypb.Empty{}, nil
}

// CheckConfig accepts any configuration; there is nothing to configure.
func (p *provider) CheckConfig(_ context.Context, request *pulumirpc.CheckRequest) (*pulumirpc.CheckResponse, error) {
	return &pulumirpc.CheckResponse{Inputs: request.GetNews()}, nil
}

// DiffConfig says that a changed configuration changes nothing.
func (p *provider) DiffConfig(context.Context, *pulumirpc.DiffRequest) (*pulumirpc.DiffResponse, error) {
	return &pulumirpc.DiffResponse{Changes: pulumirpc.DiffResponse_DIFF_NONE}, nil
}

// Configure tells the engine what the provider understands.
func (p *provider) Configure(
	context.Context, *pulumirpc.ConfigureRequest,
) (*pulumirpc.ConfigureResponse, error) {
	return &pulumirpc.ConfigureResponse{
		AcceptSecrets:   true,
		SupportsPreview: true,
		AcceptResources: true,
		AcceptOutputs:   true,
	}, nil
}

// Check looks for mistakes in the inputs and fills in defaults.
func (p *provider) Check(_ context.Context, request *pulumirpc.CheckRequest) (*pulumirpc.CheckResponse, error) {
	kind, err := resourceOf(request.GetUrn())
	if err != nil {
		return nil, err
	}
	inputs := cloneProperties(request.GetNews())
	failures := kind.inputs.check(inputs)
	if len(failures) == 0 {
		kind.inputs.applyDefaults(inputs)
		if kind.check != nil {
			failures = kind.check(inputs)
		}
	}
	kind.inputs.applySecrets(inputs)

	response := &pulumirpc.CheckResponse{Inputs: inputs.toStruct()}
	for _, failure := range failures {
		response.Failures = append(response.Failures, &pulumirpc.CheckFailure{
			Property: failure.property, Reason: failure.reason,
		})
	}
	return response, nil
}

// Diff compares the inputs of before with the new ones.
func (p *provider) Diff(_ context.Context, request *pulumirpc.DiffRequest) (*pulumirpc.DiffResponse, error) {
	kind, err := resourceOf(request.GetUrn())
	if err != nil {
		return nil, err
	}
	old := oldInputs(kind, request.GetOldInputs(), request.GetOlds())
	news := cloneProperties(request.GetNews())
	for _, name := range request.GetIgnoreChanges() {
		if kind.inputs.field(name) != nil {
			news[name] = old[name]
		}
	}
	return diffInputs(kind.inputs, old, news), nil
}

// Create runs a new resource's command, unless this is a preview.
func (p *provider) Create(ctx context.Context, request *pulumirpc.CreateRequest) (*pulumirpc.CreateResponse, error) {
	kind, err := resourceOf(request.GetUrn())
	if err != nil {
		return nil, err
	}
	inputs, err := decode(kind, request.GetProperties())
	if err != nil {
		return nil, err
	}
	state := cloneProperties(request.GetProperties())

	if request.GetPreview() {
		state.setUnknown(kind, state)
		return &pulumirpc.CreateResponse{Properties: state.toStruct()}, nil
	}

	ctx, done := p.operation(ctx, request.GetTimeout())
	defer done()
	outputs, err := kind.create(ctx, p.logger(request.GetUrn()), inputs)
	if err != nil {
		return nil, operationError(ctx, err)
	}
	state.set(outputs)
	id, err := newID(request.GetUrn())
	if err != nil {
		return nil, err
	}
	return &pulumirpc.CreateResponse{Id: id, Properties: state.toStruct()}, nil
}

// Update runs the update command, or the create command if there is none.
func (p *provider) Update(ctx context.Context, request *pulumirpc.UpdateRequest) (*pulumirpc.UpdateResponse, error) {
	kind, err := resourceOf(request.GetUrn())
	if err != nil {
		return nil, err
	}
	inputs, err := decode(kind, request.GetNews())
	if err != nil {
		return nil, err
	}
	old := cloneProperties(request.GetOlds())
	state := cloneProperties(request.GetNews())
	for _, name := range kind.outputs {
		if value, ok := old[name]; ok {
			state[name] = value
		}
	}

	if request.GetPreview() {
		if mayChangeOutputs(oldInputs(kind, request.GetOldInputs(), request.GetOlds()), inputs) {
			state.setUnknown(kind, state)
		}
		return &pulumirpc.UpdateResponse{Properties: state.toStruct()}, nil
	}

	ctx, done := p.operation(ctx, request.GetTimeout())
	defer done()
	kind.inputs.applyDefaults(old)
	outputs, err := kind.update(ctx, p.logger(request.GetUrn()), inputs, old)
	if err != nil {
		return nil, operationError(ctx, err)
	}
	state.set(outputs)
	return &pulumirpc.UpdateResponse{Properties: state.toStruct()}, nil
}

// Read returns the stored state: what a command did cannot be looked up.
func (p *provider) Read(_ context.Context, request *pulumirpc.ReadRequest) (*pulumirpc.ReadResponse, error) {
	if _, err := resourceOf(request.GetUrn()); err != nil {
		return nil, err
	}
	return &pulumirpc.ReadResponse{
		Id:         request.GetId(),
		Properties: request.GetProperties(),
		Inputs:     request.GetInputs(),
	}, nil
}

// Delete runs the delete command of the stored state.
func (p *provider) Delete(ctx context.Context, request *pulumirpc.DeleteRequest) (*emptypb.Empty, error) {
	kind, err := resourceOf(request.GetUrn())
	if err != nil {
		return nil, err
	}
	ctx, done := p.operation(ctx, request.GetTimeout())
	defer done()
	old := cloneProperties(request.GetProperties())
	kind.inputs.applyDefaults(old)
	if err := kind.remove(ctx, p.logger(request.GetUrn()), old); err != nil {
		return nil, operationError(ctx, err)
	}
	return &emptypb.Empty{}, nil
}

// Invoke runs a function. There is one, local.run.
func (p *provider) Invoke(ctx context.Context, request *pulumirpc.InvokeRequest) (*pulumirpc.InvokeResponse, error) {
	if request.GetTok() != "command:local:run" {
		return nil, status.Errorf(codes.NotFound, "this provider has no function %q; it has command:local:run",
			request.GetTok())
	}
	arguments := cloneProperties(request.GetArgs())
	if failures := localRunInputs.check(arguments); len(failures) > 0 {
		response := &pulumirpc.InvokeResponse{}
		for _, failure := range failures {
			response.Failures = append(response.Failures, &pulumirpc.CheckFailure{
				Property: failure.property, Reason: failure.reason,
			})
		}
		return response, nil
	}
	ctx, done := p.operation(ctx, 0)
	defer done()
	outputs, err := runLocal(ctx, p.logger(""), arguments.text("command"), arguments, nil)
	if err != nil {
		return nil, operationError(ctx, err)
	}
	arguments.set(outputs)
	return &pulumirpc.InvokeResponse{Return: arguments.toStruct()}, nil
}

// decode returns checked inputs with all defaults. The engine has called Check
// before, but a state that was imported or edited by hand has not been there.
func decode(kind *resource, given *structpb.Struct) (properties, error) {
	inputs := cloneProperties(given)
	if failures := kind.inputs.check(inputs); len(failures) > 0 {
		return nil, fmt.Errorf("invalid inputs: %w", failures)
	}
	kind.inputs.applyDefaults(inputs)
	return inputs, nil
}

// oldInputs returns the inputs of the stored state. Engines send them, very old
// ones only as a part of all properties.
func oldInputs(kind *resource, inputs, state *structpb.Struct) properties {
	source := inputs
	if source == nil {
		source = state
	}
	values := cloneProperties(source)
	for name := range values {
		if kind.inputs.field(name) == nil {
			delete(values, name)
		}
	}
	return values
}

// set takes over the given outputs. Those that are nil are removed.
func (p properties) set(outputs properties) {
	for name, value := range outputs {
		if value == nil {
			delete(p, name)
		} else {
			p[name] = value
		}
	}
}

// setUnknown marks all outputs that these inputs will produce as unknown.
func (p properties) setUnknown(kind *resource, inputs properties) {
	for _, name := range kind.outputs {
		switch {
		case name == "assets" && !inputs.has("assetPaths"), name == "archive" && !inputs.has("archivePaths"):
			delete(p, name)
		default:
			p[name] = structpb.NewStringValue(unknownString)
		}
	}
}

// newID returns a new resource's id: its name and eight random digits.
func newID(urn string) (string, error) {
	random := make([]byte, 4)
	if _, err := rand.Read(random); err != nil {
		return "", err
	}
	return urn[strings.LastIndex(urn, "::")+2:] + hex.EncodeToString(random), nil
}

// maxErrorText bounds the text of an error. It travels in a header, which grpc
// limits, and it would fill the operator's screen.
const maxErrorText = 128 << 10

// operationError completes the error of an operation with the reason why it
// was ended, and makes it fit for travel.
func operationError(ctx context.Context, err error) error {
	switch cause := ctx.Err(); {
	case errors.Is(cause, context.DeadlineExceeded):
		err = fmt.Errorf("timed out: %w", err)
	case errors.Is(cause, context.Canceled):
		err = fmt.Errorf("cancelled: %w", err)
	}
	text := strings.ToValidUTF8(err.Error(), "\uFFFD")
	if len(text) > maxErrorText {
		const edge = maxErrorText / 2
		text = strings.ToValidUTF8(text[:edge], "") +
			fmt.Sprintf("\n[... %d bytes left out ...]\n", len(text)-2*edge) +
			strings.ToValidUTF8(text[len(text)-edge:], "")
	}
	return errors.New(text)
}
