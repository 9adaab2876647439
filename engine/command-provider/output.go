package main

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"unicode/utf8"
)

// maxLogLine is the longest piece of output that is logged as one message.
// Longer lines, such as progress bars that only return to the line's start,
// are logged in pieces.
const maxLogLine = 32 << 10

// logQueue is how many lines may wait to be logged before a command that
// prints faster than the engine reads has to wait.
const logQueue = 1024

// output collects what a command prints.
type output struct {
	mutex    sync.Mutex
	stdout   bytes.Buffer
	stderr   bytes.Buffer
	combined bytes.Buffer
	lines    *lineLogger
}

// newOutput returns an empty output. logging says which streams are shown to
// the operator while the command runs.
func newOutput(log logger, logging string) *output {
	o := &output{}
	if logging != "none" {
		o.lines = newLineLogger(log.status)
	}
	return o
}

// writers returns where the command's two streams go.
func (o *output) writers(logging string) (stdout, stderr io.Writer) {
	return &stream{o, &o.stdout, o.lines != nil && logging != "stderr"},
		&stream{o, &o.stderr, o.lines != nil && logging != "stdout"}
}

// finish logs what is left and waits until everything has been logged.
func (o *output) finish() {
	if o.lines != nil {
		o.lines.close()
	}
}

// results returns the outputs of a resource. As in a shell's $(...), a line's
// end at the very end is dropped, but only one.
func (o *output) results() properties {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return properties{
		"stdout": textValue(strings.TrimSuffix(o.stdout.String(), "\n")),
		"stderr": textValue(strings.TrimSuffix(o.stderr.String(), "\n")),
	}
}

// all returns both streams in the order in which they arrived.
func (o *output) all() string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.combined.String()
}

// stream is one of a command's two streams.
type stream struct {
	output *output
	own    *bytes.Buffer
	logged bool
}

// Write takes over what the command printed. It never fails.
func (s *stream) Write(data []byte) (int, error) {
	s.output.mutex.Lock()
	s.own.Write(data)
	s.output.combined.Write(data)
	s.output.mutex.Unlock()
	if s.logged {
		s.output.lines.write(data)
	}
	return len(data), nil
}

// lineLogger cuts output into lines and logs each of them.
type lineLogger struct {
	mutex   sync.Mutex
	pending []byte
	queue   chan string
	done    chan struct{}
}

func newLineLogger(log func(string)) *lineLogger {
	l := &lineLogger{queue: make(chan string, logQueue), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		for line := range l.queue {
			log(line)
		}
	}()
	return l
}

func (l *lineLogger) write(data []byte) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n')
		line, rest := data, []byte(nil)
		if end >= 0 {
			line, rest = data[:end], data[end+1:]
		}
		l.pending = append(l.pending, line...)
		for len(l.pending) > maxLogLine {
			cut := maxLogLine
			for cut > maxLogLine-utf8.UTFMax && !utf8.RuneStart(l.pending[cut]) {
				cut-- // not in the middle of a character
			}
			l.queue <- string(l.pending[:cut])
			l.pending = l.pending[cut:]
		}
		if end >= 0 {
			l.flush()
		}
		data = rest
	}
}

// flush logs the pending line, which may be empty.
func (l *lineLogger) flush() {
	l.queue <- strings.TrimSuffix(string(l.pending), "\r")
	l.pending = l.pending[:0]
}

// close logs a last line without an end and waits for the queue.
func (l *lineLogger) close() {
	l.mutex.Lock()
	if len(l.pending) > 0 {
		l.flush()
	}
	close(l.queue)
	l.mutex.Unlock()
	<-l.done
}
