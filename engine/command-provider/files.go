package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
)

// collectFiles adds the files that a command left behind to its outputs:
// assetPaths as assets, archivePaths as one archive.
func collectFiles(inputs, outputs properties) error {
	directory := inputs.text("dir")
	if directory == "" {
		directory = "."
	}
	for _, wanted := range []struct{ input, output string }{
		{"assetPaths", "assets"}, {"archivePaths", "archive"},
	} {
		if !inputs.has(wanted.input) {
			outputs[wanted.output] = nil
			continue
		}
		assets, err := findAssets(directory, inputs.textList(wanted.input))
		if err != nil {
			return fmt.Errorf("collecting %s: %w", wanted.input, err)
		}
		if wanted.output == "assets" {
			outputs[wanted.output] = structpb.NewStructValue(assets.toStruct())
		} else {
			outputs[wanted.output] = archiveOf(assets)
		}
	}
	return nil
}

// findAssets returns an asset for each file below a directory that the
// patterns select, by its path relative to the directory.
func findAssets(directory string, patterns []string) (properties, error) {
	rules, err := compileRules(patterns)
	if err != nil {
		return nil, err
	}
	assets := properties{}
	err = filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		relative, err := filepath.Rel(directory, path)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(relative)
		if !rules.selects(name) {
			return nil
		}
		asset, err := fileAsset(path)
		if err != nil {
			return err
		}
		assets[name] = asset
		return nil
	})
	return assets, err
}

// fileAsset describes a file as an asset.
func fileAsset(path string) (*structpb.Value, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return nil, err
	}
	return special(assetSignature, hash.Sum(nil), "path", structpb.NewStringValue(path)), nil
}

// archiveOf bundles assets to an archive.
func archiveOf(assets properties) *structpb.Value {
	hash := sha256.New()
	for _, name := range sortedKeys(assets) {
		fmt.Fprintf(hash, "%s\x00%s\x00", name, assetHash(assets[name]))
	}
	return special(archiveSignature, hash.Sum(nil), "assets", structpb.NewStructValue(assets.toStruct()))
}

func special(signature string, hash []byte, key string, content *structpb.Value) *structpb.Value {
	return structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
		signatureKey: structpb.NewStringValue(signature),
		"hash":       structpb.NewStringValue(hex.EncodeToString(hash)),
		key:          content,
	}})
}

// rule includes or excludes the files whose names match.
type rule struct {
	exclude bool
	pattern *regexp.Regexp
}

type rules []rule

// selects reports whether the last rule that matches the name includes it.
func (r rules) selects(name string) bool {
	selected := false
	for _, rule := range r {
		if rule.pattern.MatchString(name) {
			selected = !rule.exclude
		}
	}
	return selected
}

// compileRules translates patterns: * and ? match within a path's element, **
// across elements, [...] a character, {a,b} alternatives; ! before a pattern
// excludes.
func compileRules(patterns []string) (rules, error) {
	var compiled rules
	for _, pattern := range patterns {
		glob, exclude := strings.CutPrefix(pattern, "!")
		expression, err := regexp.Compile("^" + globToRegexp(glob) + "$")
		if err != nil {
			return nil, fmt.Errorf("the pattern %q cannot be understood: %w", pattern, err)
		}
		compiled = append(compiled, rule{exclude, expression})
	}
	return compiled, nil
}

func globToRegexp(glob string) string {
	var expression strings.Builder
	depth := 0
	for i := 0; i < len(glob); i++ {
		switch c := glob[i]; {
		case c == '*' && strings.HasPrefix(glob[i:], "**"):
			expression.WriteString(".*")
			i++
		case c == '*':
			expression.WriteString("[^/]*")
		case c == '?':
			expression.WriteString("[^/]")
		case c == '[' && strings.HasPrefix(glob[i:], "[!"):
			expression.WriteString("[^")
			i++
		case c == '[' || c == ']' || c == '-':
			expression.WriteByte(c)
		case c == '{':
			depth++
			expression.WriteString("(?:")
		case c == '}' && depth > 0:
			depth--
			expression.WriteString(")")
		case c == ',' && depth > 0:
			expression.WriteString("|")
		case c == '\\' && i+1 < len(glob):
			i++
			expression.WriteString(regexp.QuoteMeta(glob[i : i+1]))
		case c < 0x80:
			expression.WriteString(regexp.QuoteMeta(glob[i : i+1]))
		default:
			expression.WriteByte(c) // a part of a longer character
		}
	}
	return expression.String()
}
