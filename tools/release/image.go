package main

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	// imageName is the image as an OCI layout in a tar file.
	imageName = "llm-stage-image.tar"
	// user is that of the process: a number, so that Kubernetes can see that it is not root.
	user = 65532
	// sbomPath is where scanners look.
	sbomPath     = "usr/share/sbom/stage.cdx.json"
	licencesPath = "usr/share/doc/stage/" + licencesName
)

// image makes the image of all platforms and writes it. It returns the digest of the image.
func (o options) image(programs []*program) (v1.Hash, error) {
	certificates, err := certificatesLayer()
	if err != nil {
		return v1.Hash{}, err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range programs {
		image, err := o.platformImage(p, certificates)
		if err != nil {
			return v1.Hash{}, fmt.Errorf("%s: %w", p.platform, err)
		}
		goos, arch, _ := strings.Cut(p.platform, "/")
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: goos, Architecture: arch},
		}})
	}
	index = mutate.Annotations(index, o.labels()).(v1.ImageIndex)
	if err := writeLayout(filepath.Join(o.Out, imageName), index, "llm-stage:"+o.Version); err != nil {
		return v1.Hash{}, err
	}
	return index.Digest()
}

// labels are those of the image, as the Dockerfile has them.
func (o options) labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       "llm-stage",
		"org.opencontainers.image.description": "Rows of a JetStream stream in, ordered results of an LLM out",
		"org.opencontainers.image.source":      sourceURL,
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     o.Version,
		"org.opencontainers.image.revision":    o.Commit,
	}
}

// platformImage makes the image of one platform.
func (o options) platformImage(p *program, certificates v1.Layer) (v1.Image, error) {
	goos, arch, _ := strings.Cut(p.platform, "/")
	program, err := layer([]entry{
		{name: "data/", mode: 0o700, owner: user},
		{name: "stage", mode: 0o755, body: p.binary},
		{name: licencesPath, mode: 0o644, body: p.licences},
		{name: sbomPath, mode: 0o644, body: p.bill},
	})
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.AppendLayers(image, certificates, program)
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(image, &v1.ConfigFile{
		OS: goos, Architecture: arch, Created: v1.Time{Time: epoch},
		RootFS: rootFS(image),
		Config: v1.Config{
			Env:          []string{"PATH=/", "STAGE_DATA_DIR=/data"},
			Entrypoint:   []string{"/stage"},
			Cmd:          []string{"run"},
			WorkingDir:   "/data",
			User:         fmt.Sprintf("%d:%d", user, user),
			ExposedPorts: map[string]struct{}{"9464/tcp": {}},
			Labels:       o.labels(),
		},
	})
}

// rootFS keeps the layers when the rest of the configuration is set.
func rootFS(image v1.Image) v1.RootFS {
	config, err := image.ConfigFile()
	if err != nil {
		return v1.RootFS{}
	}
	return config.RootFS
}

// certificatesLayer holds the CAs that Mozilla trusts without conditions. They come by a module, so that every machine
// has the same; a condition, such as a last date, cannot be expressed in a PEM file.
func certificatesLayer() (v1.Layer, error) {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return layer([]entry{{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, body: b.Bytes()}})
}

// layer makes a layer of entries.
func layer(entries []entry) (v1.Layer, error) {
	var b bytes.Buffer
	if err := writeTar(&b, entries); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
}

// writeLayout writes an OCI layout with the image in it, as a tar file.
func writeLayout(path string, index v1.ImageIndex, name string) error {
	dir, err := os.MkdirTemp("", "stage-layout")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // left to the system
	out, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := out.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": name})); err != nil {
		return err
	}
	var entries []entry
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error { // in the order of names
		if err != nil || d.IsDir() {
			return err
		}
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		entries = append(entries, entry{name: filepath.ToSlash(name), mode: 0o644, body: body})
		return err
	})
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := writeTar(&b, entries); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}
