package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	// engineCheckInterval is the time between two looks at the engine.
	engineCheckInterval = 15 * time.Second
	// engineCheckLimit is how many looks may fail before it counts as gone.
	engineCheckLimit = 3
)

// engineClient sends messages to the engine, which shows them to the operator.
type engineClient struct {
	connection *grpc.ClientConn
	client     pulumirpc.EngineClient
}

func connectEngine(address string) (*engineClient, error) {
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connecting to the engine at %s: %w", address, err)
	}
	return &engineClient{connection: connection, client: pulumirpc.NewEngineClient(connection)}, nil
}

func (e *engineClient) close() { _ = e.connection.Close() }

// logger sends the messages of one resource.
type logger struct {
	engine *engineClient
	urn    string
}

// log sends a message that stays in the output of the run.
func (l logger) log(severity pulumirpc.LogSeverity, message string) {
	l.send(severity, message, false)
}

// status sends a message that is shown beside the resource until the next one.
func (l logger) status(message string) {
	l.send(pulumirpc.LogSeverity_INFO, message, true)
}

func (l logger) send(severity pulumirpc.LogSeverity, message string, ephemeral bool) {
	// Messages are a courtesy: losing one must not fail the command, and a
	// cancelled operation must still be able to say so. Hence no ctx from above.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, _ = l.engine.client.Log(ctx, &pulumirpc.LogRequest{
		Severity:  severity,
		Message:   strings.ToValidUTF8(message, "\uFFFD"),
		Urn:       l.urn,
		Ephemeral: ephemeral,
	})
}

// watchEngine calls gone when the engine no longer listens, so that a killed
// engine does not leave providers and their commands behind.
func watchEngine(ctx context.Context, address string, gone func()) {
	ticker := time.NewTicker(engineCheckInterval)
	defer ticker.Stop()
	for failures := 0; failures < engineCheckLimit; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		connection, err := net.DialTimeout("tcp", address, engineCheckInterval)
		if err != nil {
			failures++
			continue
		}
		_ = connection.Close()
		failures = 0
	}
	gone()
}
