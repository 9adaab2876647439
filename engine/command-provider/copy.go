package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/pkg/sftp"
	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"google.golang.org/protobuf/types/known/structpb"
)

// checkCopy looks for sources that cannot be copied.
func checkCopy(inputs properties) decodingError {
	source := inputs["source"]
	if holdsUnknown(source) {
		return nil
	}
	fields := bare(source).GetStructValue().GetFields()
	if _, hasPath := fields["path"]; hasPath {
		return nil
	}
	if signature(bare(source)) == archiveSignature {
		return decodingError{{"source", "archive must be a path to a file or directory"}}
	}
	if _, hasText := fields["text"]; !hasText {
		return decodingError{{"source", "asset must be a path-based file asset or a text asset"}}
	}
	return nil
}

func createCopy(ctx context.Context, log logger, inputs properties) (properties, error) {
	return nil, copyToRemote(ctx, log, inputs)
}

// updateCopy copies again only if there is something new to copy or a new
// place for it.
func updateCopy(ctx context.Context, log logger, inputs, old properties) (properties, error) {
	if sameContent(inputs["source"], old["source"]) &&
		inputs.text("remotePath") == old.text("remotePath") &&
		sameHost(inputs.object("connection"), old.object("connection")) {
		return nil, nil
	}
	return nil, copyToRemote(ctx, log, inputs)
}

// deleteCopy leaves the copied files where they are.
func deleteCopy(context.Context, logger, properties) error { return nil }

func sameContent(new, old *structpb.Value) bool {
	return assetHash(bare(new)) != "" && assetHash(bare(new)) == assetHash(bare(old))
}

// sameHost reports whether both connections lead to the same place. The
// official provider does not look at this and would leave a new host empty.
func sameHost(new, old properties) bool {
	return new.text("host") == old.text("host") && new.number("port") == old.number("port")
}

// copyToRemote copies the source to the remote path.
func copyToRemote(ctx context.Context, log logger, inputs properties) error {
	connection := inputs.object("connection")
	destination := inputs.text("remotePath")
	source := properties(bare(inputs["source"]).GetStructValue().GetFields())
	if failures := checkCopy(inputs); len(failures) > 0 {
		return fmt.Errorf("invalid inputs: %w", failures)
	}

	origin := "text asset"
	if source.has("path") {
		origin = "local path " + source.text("path")
	}
	log.log(pulumirpc.LogSeverity_DEBUG,
		fmt.Sprintf("Creating %s:%s from %s", connection.text("host"), destination, origin))

	client, err := dial(ctx, log, connection)
	if err != nil {
		return err
	}
	defer client.close()
	defer context.AfterFunc(ctx, client.close)() // unblocks a transfer that is cancelled

	transfer, err := sftp.NewClient(client.Client, sftp.UseConcurrentWrites(true))
	if err != nil {
		return fmt.Errorf("starting sftp: %w", err)
	}
	defer func() { _ = transfer.Close() }()
	remote := remoteFiles{transfer}
	if source.has("path") {
		return remote.copyPath(source.text("path"), destination)
	}
	return remote.writeText(source.text("text"), destination)
}

// remoteFiles is the file system of the remote host.
type remoteFiles struct{ *sftp.Client }

// writeText writes a file.
func (r remoteFiles) writeText(text, destination string) error {
	isDirectory, err := r.isDirectory(destination)
	if err != nil {
		return err
	}
	if isDirectory {
		return fmt.Errorf(
			"remote path %s is a directory; when using a text asset, remotePath must be a file path", destination)
	}
	if err := r.makeDirectory(path.Dir(destination)); err != nil {
		return err
	}
	file, err := r.Create(destination)
	if err != nil {
		return fmt.Errorf("creating the remote file %s: %w", destination, err)
	}
	if _, err := file.Write([]byte(text)); err != nil {
		_ = file.Close()
		return fmt.Errorf("writing the remote file %s: %w", destination, err)
	}
	return file.Close()
}

// copyPath copies a file or a directory with all that is in it.
//
// A file goes into the destination if that is a directory, else it becomes the
// destination. A directory always goes into the destination; with a slash at
// its end, only what is in it does.
func (r remoteFiles) copyPath(source, destination string) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		if !strings.HasSuffix(source, "/") {
			destination = path.Join(destination, filepath.Base(source))
		}
		return r.copyDirectory(source, destination)
	}
	isDirectory, err := r.isDirectory(destination)
	if err != nil {
		return err
	}
	if isDirectory {
		destination = path.Join(destination, filepath.Base(source))
	}
	if err := r.makeDirectory(path.Dir(destination)); err != nil {
		return err
	}
	return r.copyFile(source, destination)
}

// copyDirectory copies what is in a directory.
func (r remoteFiles) copyDirectory(source, destination string) error {
	source, err := filepath.EvalSymlinks(source)
	if err != nil {
		return err
	}
	return filepath.WalkDir(source, func(local string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(source, local)
		if err != nil {
			return err
		}
		target := path.Join(destination, filepath.ToSlash(relative))
		if entry.IsDir() {
			return r.makeDirectory(target)
		}
		info, err := os.Stat(local)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a file and cannot be copied (links are followed to files only)", local)
		}
		return r.copyFile(local, target)
	})
}

func (r remoteFiles) copyFile(source, destination string) error {
	local, err := os.Open(source)
	if err != nil {
		return err
	}
	defer func() { _ = local.Close() }()
	remote, err := r.Create(destination)
	if err != nil {
		return fmt.Errorf("creating the remote file %s: %w", destination, err)
	}
	if _, err := remote.ReadFrom(local); err != nil {
		_ = remote.Close()
		return fmt.Errorf("copying %s to the remote path %s: %w", source, destination, err)
	}
	return remote.Close()
}

// makeDirectory makes a directory and those above it, unless they exist.
func (r remoteFiles) makeDirectory(directory string) error {
	if err := r.MkdirAll(directory); err != nil {
		return fmt.Errorf("creating the remote directory %s: %w", directory, err)
	}
	return nil
}

// isDirectory reports whether a remote path exists and is a directory.
func (r remoteFiles) isDirectory(name string) (bool, error) {
	info, err := r.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking at the remote path %s: %w", name, err)
	}
	return info.IsDir(), nil
}
