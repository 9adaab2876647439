package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// terminationGrace is how long a cancelled command has to end by itself.
const terminationGrace = 3 * time.Second

// Previous output is given to the next command in these variables.
const (
	previousStdout = "PULUMI_COMMAND_STDOUT"
	previousStderr = "PULUMI_COMMAND_STDERR"
)

func createLocalCommand(ctx context.Context, log logger, inputs properties) (properties, error) {
	return runLocal(ctx, log, inputs.text("create"), inputs, nil)
}

func updateLocalCommand(ctx context.Context, log logger, inputs, old properties) (properties, error) {
	command := updateCommand(inputs)
	if command == "" {
		return nil, nil
	}
	return runLocal(ctx, log, command, inputs, old)
}

func deleteLocalCommand(ctx context.Context, log logger, old properties) error {
	command := old.text("delete")
	if command == "" {
		return nil
	}
	_, err := runLocal(ctx, log, command, old, old)
	return err
}

// updateCommand returns the command of an update: create stands in for update.
func updateCommand(inputs properties) string {
	if inputs.has("update") {
		return inputs.text("update")
	}
	return inputs.text("create")
}

// runLocal runs a command on this machine and returns its outputs. No command
// gives empty outputs. previous is the state whose output the command may see.
func runLocal(
	ctx context.Context, log logger, command string, inputs, previous properties,
) (properties, error) {
	logging := inputs.text("logging")
	collected := newOutput(log, logging)
	var err error
	if command != "" {
		err = startAndWait(ctx, localProcess(command, inputs, previous), collected, logging)
	}
	collected.finish()
	if err != nil {
		return nil, commandError(err, command, collected)
	}

	outputs := collected.results()
	if err := collectFiles(inputs, outputs); err != nil {
		return nil, err
	}
	return outputs, nil
}

// commandError completes the error of a command with the command's text and
// everything it printed.
func commandError(err error, command string, collected *output) error {
	return fmt.Errorf("%w: running %q:\n%s", err, command, collected.all())
}

// localProcess prepares the process of a command.
func localProcess(command string, inputs, previous properties) *exec.Cmd {
	interpreter := inputs.textList("interpreter")
	if len(interpreter) == 0 {
		interpreter = []string{"/bin/sh", "-c"}
	}
	arguments := append(interpreter[1:], command)
	process := exec.Command(interpreter[0], arguments...)
	process.Dir = inputs.text("dir")
	if inputs.has("stdin") {
		process.Stdin = strings.NewReader(inputs.text("stdin"))
	}

	process.Env = os.Environ()
	environment := inputs.textMap("environment")
	for _, name := range sortedKeys(environment) {
		process.Env = append(process.Env, name+"="+environment[name])
	}
	for _, variable := range previousOutput(inputs, previous) {
		process.Env = append(process.Env, variable.name+"="+variable.value)
	}
	inOwnGroup(process)
	return process
}

// variable is a variable of a command's environment.
type variable struct{ name, value string }

// previousOutput returns the variables that carry the previous output.
func previousOutput(inputs, previous properties) []variable {
	if !inputs.flag("addPreviousOutputInEnv", true) {
		return nil
	}
	var variables []variable
	for _, candidate := range []variable{
		{previousStdout, previous.text("stdout")},
		{previousStderr, previous.text("stderr")},
	} {
		if candidate.value != "" {
			variables = append(variables, candidate)
		}
	}
	return variables
}

// startAndWait runs the process until it has ended and its output is read to
// the end. When ctx ends, the process and all its descendants are ended.
func startAndWait(ctx context.Context, process *exec.Cmd, collected *output, logging string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	stdout, stderr := collected.writers(logging)
	var readers []*os.File
	copied := make(chan struct{}, 2)
	var writers []*os.File
	for _, target := range []struct {
		destination io.Writer
		stream      *io.Writer
	}{{stdout, &process.Stdout}, {stderr, &process.Stderr}} {
		reader, writer, err := os.Pipe()
		if err != nil {
			return err
		}
		readers, writers = append(readers, reader), append(writers, writer)
		*target.stream = writer
		go func() {
			_, _ = io.Copy(target.destination, reader)
			_ = reader.Close()
			copied <- struct{}{}
		}()
	}
	err := process.Start()
	for _, writer := range writers {
		_ = writer.Close() // the process has its own copies
	}
	if err != nil {
		return err
	}

	// Whatever the process leaves running may hold the pipes open, so their
	// ends are waited for as well.
	ended := make(chan error, 1)
	go func() {
		err := process.Wait()
		<-copied
		<-copied
		ended <- err
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}

	terminateGroup(process)
	select {
	case err := <-ended:
		killGroup(process)
		return err
	case <-time.After(terminationGrace):
	}
	killGroup(process)
	select {
	case err := <-ended:
		return err
	case <-time.After(terminationGrace):
		// A descendant has left the group and still holds the pipes.
		for _, reader := range readers {
			_ = reader.Close()
		}
		return <-ended
	}
}
