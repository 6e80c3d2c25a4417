// Shots takes pictures of a running stage's dashboard in headless Chromium.
//
//	go -C tools run ./browser/shots -url http://127.0.0.1:9464/ -after 40s -width 1280 -height 1000 -out dashboard.png
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// patience bounds all of it.
const patience = 5 * time.Minute

func main() {
	log.SetFlags(0)
	url := flag.String("url", "http://127.0.0.1:9464/", "address of the dashboard")
	after := flag.Duration("after", 30*time.Second, "how old the run must be")
	width := flag.Int64("width", 1280, "width of the window, in CSS pixels")
	height := flag.Int64("height", 0, "height of the picture; 0: all of the page")
	schemes := flag.String("schemes", "light", "light, dark or light,dark; with both the names of the files get a suffix")
	out := flag.String("out", "dashboard.png", "file to write, PNG or, by its ending, WebP")
	flag.Parse()
	if err := shoot(*url, *after, *width, *height, strings.Split(*schemes, ","), *out); err != nil {
		log.Fatal("shots: ", err)
	}
}

func shoot(url string, after time.Duration, width, height int64, schemes []string, out string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ctx, end := chromedp.NewExecAllocator(ctx, chromedp.Headless, chromedp.DisableGPU)
	defer end()
	ctx, end = chromedp.NewContext(ctx)
	defer end()
	if err := serving(ctx, url); err != nil {
		return err
	}
	ready := fmt.Sprintf("samples.length >= 3 && samples.at(-1).time - samples[0].time + 1 >= %d", int(after.Seconds()))
	err := chromedp.Do(ctx, chromedp.EmulateViewport(width, 900), chromedp.Navigate(url),
		chromedp.Poll[chromedp.Void](ready, chromedp.WithPollingTimeout(0), chromedp.WithPollingInterval(200*time.Millisecond)))
	if err != nil {
		return err
	}
	for _, scheme := range schemes {
		name := out
		if len(schemes) > 1 {
			name = strings.TrimSuffix(out, filepath.Ext(out)) + "-" + scheme + filepath.Ext(out)
		}
		format := page.CaptureScreenshotFormatPng
		if filepath.Ext(out) == ".webp" {
			format = page.CaptureScreenshotFormatWebp
		}
		picture, err := picture(ctx, scheme, width, height, format)
		if err != nil {
			return err
		}
		if err := os.WriteFile(name, picture, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// serving waits until the stage answers.
func serving(ctx context.Context, url string) error {
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			return response.Body.Close()
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

func picture(ctx context.Context, scheme string, width, height int64, format page.CaptureScreenshotFormat) ([]byte, error) {
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, media); err != nil {
		return nil, err
	}
	// The next second's sample draws the charts in these colours.
	tall, err := chromedp.Run(ctx, chromedp.Evaluate[int64](
		`new Promise(done => setTimeout(() => done(document.documentElement.scrollHeight), 1200))`, chromedp.EvalAwaitPromise))
	if err != nil {
		return nil, err
	}
	if height > 0 {
		tall = height
	}
	beyond := true
	shot, err := chromedp.Call(ctx, page.CaptureScreenshot, page.CaptureScreenshotParams{
		Format: format, CaptureBeyondViewport: &beyond, Clip: &page.Viewport{Width: float64(width), Height: float64(tall), Scale: 1},
	})
	return shot.Data, err
}
