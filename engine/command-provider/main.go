// Command pulumi-resource-command is a Pulumi provider that runs commands, on
// this machine or over ssh, and copies files over ssh.
//
// It speaks the same protocol and keeps the same state as the official provider
// of that name, version 1.2.1, and exists for machines on which the official
// one cannot be downloaded. tests/engine/test_command_conformance.py replays
// recorded exchanges with the official provider against it.
//
// Where the recordings leave room it differs on purpose: an output line of any
// length is logged instead of blocking the command, cancellation ends remote
// commands too, every ssh connection is closed after use, and a resource whose
// connection did not pass through Check gets its defaults instead of a crash.
//
// The resources are local.Command, remote.Command and remote.CopyToRemote, the
// function is local.run. The deprecated remote.CopyFile is not offered.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"google.golang.org/grpc"
)

// version is the version of the official provider that this one stands in for.
// The linker sets it (-X main.version=...).
var version = "1.2.1"

// maxMessageSize bounds one message of the protocol. Commands may print a lot,
// and grpc's own limit of 4 MiB is easily reached.
const maxMessageSize = 400 << 20

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "pulumi-resource-command:", err)
		os.Exit(1)
	}
}

// serve answers requests until it is told to stop or until the engine is gone.
func serve() error {
	if len(os.Args) == 2 && (os.Args[1] == "-version" || os.Args[1] == "--version") {
		fmt.Println(version)
		return nil
	}
	if len(os.Args) < 2 {
		return fmt.Errorf("it is started by pulumi, with the engine's address as the argument")
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	engineAddress := os.Args[len(os.Args)-1]
	engine, err := connectEngine(engineAddress)
	if err != nil {
		return err
	}
	defer engine.close()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listening for the engine's requests: %w", err)
	}

	commands := newProvider(ctx, engine)
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessageSize), grpc.MaxSendMsgSize(maxMessageSize))
	pulumirpc.RegisterResourceProviderServer(server, commands)

	go watchEngine(ctx, engineAddress, stop)
	go func() {
		<-ctx.Done()
		server.GracefulStop() // the running operations see ctx and come to an end
	}()

	// The engine reads this line to learn where the provider listens.
	fmt.Printf("%d\n", listener.Addr().(*net.TCPAddr).Port)
	return server.Serve(listener)
}
