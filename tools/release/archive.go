package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// epoch is the time of everything in an archive or image: the hour of the build would make each build another one.
var epoch = time.Unix(0, 0).UTC()

// entry is a file of an archive or layer, or a directory, whose name ends in a slash.
type entry struct {
	name  string
	mode  int64
	owner int
	body  []byte
}

// writeTar writes the entries in the order given, with the directories above them.
func writeTar(out io.Writer, entries []entry) error {
	w := tar.NewWriter(out)
	made := map[string]bool{}
	for _, e := range entries {
		for i := range e.name {
			if above := e.name[:i+1]; e.name[i] == '/' && above != e.name && !made[above] {
				made[above] = true
				if err := putTar(w, entry{name: above, mode: 0o755}); err != nil {
					return err
				}
			}
		}
		made[e.name] = true
		if err := putTar(w, e); err != nil {
			return err
		}
	}
	return w.Close()
}

func putTar(w *tar.Writer, e entry) error {
	header := &tar.Header{
		Name: e.name, Mode: e.mode, Uid: e.owner, Gid: e.owner, Size: int64(len(e.body)), ModTime: epoch,
		Typeflag: tar.TypeReg, Format: tar.FormatPAX,
	}
	if strings.HasSuffix(e.name, "/") {
		header.Typeflag = tar.TypeDir
	}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err := w.Write(e.body)
	return err
}

// writeZip writes the entries as a zip file. It has no times.
func writeZip(out io.Writer, entries []entry) error {
	w := zip.NewWriter(out)
	for _, e := range entries {
		file, err := w.CreateHeader(&zip.FileHeader{Name: e.name, Method: zip.Deflate})
		if err != nil {
			return err
		}
		if _, err := file.Write(e.body); err != nil {
			return err
		}
	}
	return w.Close()
}

// archive writes what a person downloads: the program, the licences and the SBOM; a zip file for Windows.
func (o options) archive(p *program) error {
	licence, err := os.ReadFile(filepath.Join(o.Source, "LICENSE"))
	if err != nil {
		return err
	}
	binary, suffix := "stage", ".tar.gz"
	if p.os() == "windows" {
		binary, suffix = "stage.exe", ".zip"
	}
	entries := []entry{
		{name: binary, mode: 0o755, body: p.binary},
		{name: "LICENSE", mode: 0o644, body: licence},
		{name: licencesName, mode: 0o644, body: p.licences},
		{name: "stage.cdx.json", mode: 0o644, body: p.bill},
	}
	var b bytes.Buffer
	if suffix == ".zip" {
		err = writeZip(&b, entries)
	} else {
		w := gzip.NewWriter(&b)
		if err = writeTar(w, entries); err == nil {
			err = w.Close()
		}
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.Out, p.name()+suffix), b.Bytes(), 0o644)
}
