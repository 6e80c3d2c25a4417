// Record runs a command on its own terminal and draws what it shows as an animated SVG. The picture needs no
// script, and stands still, at the end, for those who want no motion.
//
//	go -C tools run ./record -out ../docs/demo.svg ../bin/stage demo
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/creack/pty"
	"github.com/hinshun/vt10x"
)

func main() {
	log.SetFlags(0)
	out := flag.String("out", "recording.svg", "file to write")
	cols := flag.Int("cols", 132, "width of the terminal")
	rows := flag.Int("rows", 16, "height of the terminal")
	every := flag.Duration("every", 1500*time.Millisecond, "time between two frames")
	speed := flag.Float64("speed", 5, "how many times faster it is shown")
	patience := flag.Duration("patience", 5*time.Minute, "longest time of the command")
	flag.Parse()
	if flag.NArg() == 0 {
		log.Fatal("record: name a command")
	}
	frames, err := record(flag.Args(), *cols, *rows, *every, *patience)
	if err != nil {
		log.Fatal("record: ", err)
	}
	prompt := "$ " + strings.Join(append([]string{filepath.Base(flag.Arg(0))}, flag.Args()[1:]...), " ")
	picture := draw(prompt, frames, *cols, *rows, time.Duration(float64(*every) / *speed))
	if err := os.WriteFile(*out, []byte(picture), 0o644); err != nil { //nolint:gosec // a picture for all
		log.Fatal("record: ", err)
	}
}

// record returns what the terminal shows now and then, and at the end.
func record(args []string, cols, rows int, every, patience time.Duration) (frames [][]string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "TERM=xterm-256color")
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: uint16(cols), Rows: uint16(rows)})
	if err != nil {
		return nil, err
	}
	defer tty.Close() //nolint:errcheck // read to its end
	screen := vt10x.New(vt10x.WithSize(cols, rows))
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(screen, tty)
		ended <- err
	}()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			frames = append(frames, look(screen))
		case err := <-ended:
			frames = append(frames, look(screen))
			if err != nil && !errors.Is(err, syscall.EIO) { // what reading from a terminal gives whose other end is closed
				return nil, err
			}
			return frames, cmd.Wait()
		}
	}
}

// look returns the lines on the screen.
func look(screen vt10x.Terminal) []string {
	screen.Lock()
	defer screen.Unlock()
	cols, rows := screen.Size()
	lines := make([]string, rows)
	for y := range lines {
		var b strings.Builder
		for x := range cols {
			r := screen.Cell(x, y).Char
			if r == 0 {
				r = ' '
			}
			b.WriteRune(r)
		}
		lines[y] = strings.TrimRight(b.String(), " ")
	}
	return lines
}

// The measures of the picture, in pixels.
const (
	charWidth, lineHeight = 7.23, 17
	margin                = 14
	lastFrames            = 10 // for as many frames the last one stays
)

// draw lays the frames side by side, each line drawn once however often it is shown, and moves them past the window.
func draw(prompt string, frames [][]string, cols, rows int, each time.Duration) string {
	width := int(float64(cols)*charWidth) + 2*margin
	height := (rows+1)*lineHeight + 2*margin
	var b, strip strings.Builder
	ids := make(map[string]int)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`+"\n",
		width, height, width, height, escape("A recording of "+prompt[2:]))
	steps := len(frames) + lastFrames
	fmt.Fprintf(&b, "<style>\ntext{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d5dbe3;white-space:pre}\n"+
		".p{fill:#4cc364}\n.s{animation:m %.1fs steps(1,end) infinite}\n@media(prefers-reduced-motion:reduce){.s{animation:none;transform:translateX(%dpx)}}\n@keyframes m{",
		float64(steps)*each.Seconds(), -width*(len(frames)-1))
	for i := range frames {
		fmt.Fprintf(&b, "%.2f%%{transform:translateX(%dpx)}", 100*float64(i)/float64(steps), -i*width)
	}
	b.WriteString("}\n</style>\n<defs>\n")
	for i, frame := range frames {
		fmt.Fprintf(&strip, "<g transform=\"translate(%d)\">", i*width)
		for y, line := range frame {
			if line == "" {
				continue
			}
			id, known := ids[line]
			if !known {
				id = len(ids)
				ids[line] = id
				fmt.Fprintf(&b, "<text id=\"l%d\">%s</text>\n", id, escape(line))
			}
			fmt.Fprintf(&strip, "<use href=\"#l%d\" x=\"%d\" y=\"%d\"/>", id, margin, margin+(y+2)*lineHeight-5)
		}
		strip.WriteString("</g>\n")
	}
	fmt.Fprintf(&b, "</defs>\n<rect width=\"%d\" height=\"%d\" rx=\"8\" fill=\"#0d1117\"/>\n", width, height)
	fmt.Fprintf(&b, "<text class=\"p\" x=\"%d\" y=\"%d\">%s</text>\n", margin, margin+lineHeight-5, escape(prompt))
	fmt.Fprintf(&b, "<g class=\"s\">\n%s</g>\n</svg>\n", strip.String())
	return b.String()
}

func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;").Replace(s)
}
