package main

import (
	"context"
	"fmt"
	"io"
	"time"

	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"golang.org/x/crypto/ssh"
)

func createRemoteCommand(ctx context.Context, log logger, inputs properties) (properties, error) {
	command := inputs.text("create")
	if command == "" {
		return properties{"stdout": textValue(""), "stderr": textValue("")}, nil
	}
	return runRemote(ctx, log, command, inputs, nil)
}

func updateRemoteCommand(ctx context.Context, log logger, inputs, old properties) (properties, error) {
	command := updateCommand(inputs)
	if command == "" {
		return nil, nil
	}
	return runRemote(ctx, log, command, inputs, old)
}

func deleteRemoteCommand(ctx context.Context, log logger, old properties) error {
	command := old.text("delete")
	if command == "" {
		return nil
	}
	_, err := runRemote(ctx, log, command, old, old)
	return err
}

// runRemote runs a command over ssh and returns its outputs. previous is the
// state whose output the command may see.
func runRemote(
	ctx context.Context, log logger, command string, inputs, previous properties,
) (properties, error) {
	client, err := dial(ctx, log, inputs.object("connection"))
	if err != nil {
		return nil, err
	}
	defer client.close()
	session, err := client.NewSession()
	if err != nil {
		return nil, fmt.Errorf("opening an ssh session: %w", err)
	}
	defer func() { _ = session.Close() }()
	if err := setEnvironment(session, log, inputs, previous); err != nil {
		return nil, err
	}

	logging := inputs.text("logging")
	collected := newOutput(log, logging)
	session.Stdout, session.Stderr = collected.writers(logging)
	err = runSession(ctx, client, session, command, inputs)
	collected.finish()
	if err != nil {
		return nil, commandError(err, command, collected)
	}
	return collected.results(), nil
}

// setEnvironment sends the command's variables. A server accepts only those
// that its AcceptEnv lists; refusing one of the operator's is an error.
func setEnvironment(session *ssh.Session, log logger, inputs, previous properties) error {
	environment := inputs.textMap("environment")
	for _, name := range sortedKeys(environment) {
		if err := session.Setenv(name, environment[name]); err != nil {
			log.log(pulumirpc.LogSeverity_ERROR, refusedVariable(name))
			return fmt.Errorf("could not set environment variable %q: %w", name, err)
		}
	}
	for _, variable := range previousOutput(inputs, previous) {
		if err := session.Setenv(variable.name, variable.value); err != nil {
			log.log(pulumirpc.LogSeverity_WARNING, refusedVariable(variable.name))
		}
	}
	return nil
}

func refusedVariable(name string) string {
	return fmt.Sprintf("Unable to set '%s'. This only works if your SSH server is configured to accept\n"+
		"\tthese variables via AcceptEnv. Alternatively, if a Bash-like shell runs the command on the remote host, you could\n"+
		"\tprefix the command itself with the variables in the form 'VAR=value command'", name)
}

// runSession runs the command until it has ended. When ctx ends, the command
// is asked to end and then cut off.
func runSession(
	ctx context.Context, client *sshClient, session *ssh.Session, command string, inputs properties,
) error {
	input, err := session.StdinPipe()
	if err != nil {
		return err
	}
	if err := session.Start(command); err != nil {
		return err
	}
	go func() {
		// A command need not read its input, so errors here say nothing.
		_, _ = io.WriteString(input, inputs.text("stdin"))
		_ = input.Close()
	}()

	ended := make(chan error, 1)
	go func() { ended <- session.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	for _, signal := range []ssh.Signal{ssh.SIGTERM, ssh.SIGKILL} {
		endRemote(client, session, signal)
		select {
		case err := <-ended:
			return err
		case <-time.After(terminationGrace):
		}
	}
	client.close()
	return <-ended
}

// endRemote sends a signal to the command and its descendants.
//
// OpenSSH does that on request, except for root. For root a second session of
// the same connection does it: the command is another child of its parent, and
// the leader of a process group.
func endRemote(client *sshClient, session *ssh.Session, signal ssh.Signal) {
	_ = session.Signal(signal)
	if client.User() != "root" {
		return
	}
	helper, err := client.NewSession()
	if err != nil {
		return
	}
	_ = helper.Start(fmt.Sprintf(`exec sh -c 'for status in /proc/[0-9]*/status; do
	pid=${status#/proc/}; pid=${pid%%/status}
	if [ "$pid" != $$ ] && grep -q "^PPid:[[:space:]]*$PPID\$" "$status"; then kill -%s "-$pid"; fi
done 2>/dev/null'`, signal))
	time.AfterFunc(terminationGrace, func() { _ = helper.Close() })
}
