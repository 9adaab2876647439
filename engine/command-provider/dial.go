package main

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

const (
	// firstRetryDelay is the pause after the first failed attempt to connect.
	// It grows by half each time, up to maxRetryDelay.
	firstRetryDelay = 100 * time.Millisecond
	maxRetryDelay   = 5 * time.Second
)

// sshClient is a connection to a host and what has to be closed with it.
type sshClient struct {
	*ssh.Client
	closers []func() error
}

func (c *sshClient) close() {
	_ = c.Client.Close()
	for _, closer := range c.closers {
		_ = closer()
	}
}

// dial connects to a host. connection holds the checked properties with
// defaults. Failed attempts are repeated as often as these say.
func dial(ctx context.Context, log logger, connection properties) (*sshClient, error) {
	host, err := newTarget(connection)
	if err != nil {
		return nil, err
	}
	defer host.closeAgent()
	var proxy *target
	if connection.has("proxy") {
		if proxy, err = newTarget(connection.object("proxy")); err != nil {
			return nil, fmt.Errorf("proxy: %w", err)
		}
		defer proxy.closeAgent()
	}

	limit := int(connection.number("dialErrorLimit"))
	limitText := strconv.Itoa(limit)
	if limit < 0 {
		limitText = "inf"
	}
	delay := firstRetryDelay
	for attempt := 1; ; attempt++ {
		client, err := connect(ctx, host, proxy)
		if err == nil {
			return client, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("connecting to %s: %w", host.address, err)
		}
		log.status(fmt.Sprintf("Dial %d/%s failed: retrying", attempt, limitText))
		if limit >= 0 && attempt >= limit {
			return nil, fmt.Errorf("after %d failed attempts: %w", attempt, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("connecting to %s: %w", host.address, err)
		case <-time.After(delay):
		}
		delay = min(delay*3/2, maxRetryDelay)
	}
}

// connect makes one attempt, through the proxy if there is one.
func connect(ctx context.Context, host, proxy *target) (*sshClient, error) {
	if proxy == nil {
		dialer := net.Dialer{Timeout: host.timeout}
		connection, err := dialer.DialContext(ctx, "tcp", host.address)
		if err != nil {
			return nil, err
		}
		return host.login(ctx, connection)
	}
	through, err := connect(ctx, proxy, nil)
	if err != nil {
		return nil, fmt.Errorf("proxy %s: %w", proxy.address, err)
	}
	connection, err := through.DialContext(ctx, "tcp", host.address)
	if err != nil {
		through.close()
		return nil, err
	}
	client, err := host.login(ctx, connection)
	if err != nil {
		through.close()
		return nil, err
	}
	client.closers = append(client.closers, through.Close)
	return client, nil
}

// target is a host and how to log in there.
type target struct {
	address string
	timeout time.Duration
	config  ssh.ClientConfig
	agent   net.Conn
}

// newTarget reads the properties of a connection or of a proxy.
func newTarget(connection properties) (*target, error) {
	t := &target{
		address: net.JoinHostPort(connection.text("host"), strconv.Itoa(int(connection.number("port")))),
		timeout: seconds(connection.number("perDialTimeout")),
		config: ssh.ClientConfig{
			User: connection.text("user"),
			// As documented: without hostKey any host key is accepted.
			HostKeyCallback: ssh.InsecureIgnoreHostKey(), //nolint:gosec
		},
	}
	if text := connection.text("hostKey"); text != "" {
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("hostKey is not a public key as in an authorized_keys file: %w", err)
		}
		t.config.HostKeyCallback = ssh.FixedHostKey(key)
		t.config.HostKeyAlgorithms = signatureAlgorithms(key.Type())
	}
	if err := t.addLogins(connection); err != nil {
		t.closeAgent()
		return nil, err
	}
	return t, nil
}

// signatureAlgorithms returns how a host may prove that it has a key of a type.
func signatureAlgorithms(keyType string) []string {
	if keyType == ssh.KeyAlgoRSA {
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSA}
	}
	return []string{keyType}
}

// addLogins adds the ways to log in that the connection has.
func (t *target) addLogins(connection properties) error {
	if text := connection.text("privateKey"); text != "" {
		signer, err := parseKey([]byte(text), connection.text("privateKeyPassword"))
		if err != nil {
			return fmt.Errorf("privateKey: %w", err)
		}
		t.config.Auth = append(t.config.Auth, ssh.PublicKeys(signer))
	}
	if connection.has("password") {
		password := connection.text("password")
		answer := func(_, _ string, questions []string, _ []bool) ([]string, error) {
			answers := make([]string, len(questions))
			for i := range answers {
				answers[i] = password
			}
			return answers, nil
		}
		t.config.Auth = append(t.config.Auth, ssh.Password(password), ssh.KeyboardInteractive(answer))
	}
	socket := connection.text("agentSocketPath")
	if socket == "" {
		socket = os.Getenv("SSH_AUTH_SOCK")
	}
	if socket != "" {
		connection, err := net.Dial("unix", socket)
		if err != nil {
			return fmt.Errorf("the ssh agent: %w", err)
		}
		t.agent = connection
		t.config.Auth = append(t.config.Auth, ssh.PublicKeysCallback(agent.NewClient(connection).Signers))
	}
	return nil
}

func parseKey(text []byte, password string) (ssh.Signer, error) {
	if password != "" {
		return ssh.ParsePrivateKeyWithPassphrase(text, []byte(password))
	}
	return ssh.ParsePrivateKey(text)
}

func (t *target) closeAgent() {
	if t.agent != nil {
		_ = t.agent.Close()
	}
}

// login makes an ssh client of a network connection. A server that accepts a
// connection and then says nothing must not block it for ever.
func (t *target) login(ctx context.Context, connection net.Conn) (*sshClient, error) {
	unlink := context.AfterFunc(ctx, func() { _ = connection.Close() })
	timer := time.AfterFunc(orForever(t.timeout), func() { _ = connection.Close() })
	ours, channels, requests, err := ssh.NewClientConn(connection, t.address, &t.config)
	if !timer.Stop() {
		err = fmt.Errorf("%s does not finish the ssh handshake within %s", t.address, t.timeout)
	}
	if !unlink() {
		err = ctx.Err()
	}
	if err != nil {
		_ = connection.Close()
		return nil, err
	}
	return &sshClient{Client: ssh.NewClient(ours, channels, requests)}, nil
}

func seconds(number float64) time.Duration {
	return time.Duration(number * float64(time.Second))
}

// orForever returns the longest time there is for zero, which means no limit.
func orForever(timeout time.Duration) time.Duration {
	if timeout <= 0 {
		return math.MaxInt64
	}
	return timeout
}
